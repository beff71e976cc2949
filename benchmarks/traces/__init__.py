"""Allocation traces: recorded ones, made ones, and the form both are written in.

Never replays one: that is ``benchmarks/c/allocator.c``.
"""
