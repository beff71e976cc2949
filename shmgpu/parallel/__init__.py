"""A child's tensors on meshes of helpers: who has which piece, and what is sent to all at once.

Owns the child's side of :mod:`shmgpu.distributed`, whose public names are made here: tensors whose
values are in pieces, steps that use such tensors (one program for each member, in one message), and
the ways in which a model is cut. Never computes, never looks into a piece.
"""
