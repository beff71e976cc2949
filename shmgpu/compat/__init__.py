"""Other systems' names over this one's tensors, where theirs mean something else than ours.

Owns nothing but names. Never computes, and is never imported by the package itself: a program that
wants another system's meanings says so with its import.
"""
