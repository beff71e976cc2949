"""Many helpers as one device: a tensor is cut over a mesh of them, and programs with it.

Owns what a layout is (:mod:`.layout`), how each operation may be done on pieces (:mod:`.rules`),
which way is chosen (:mod:`.choice`), and the local programs that come of it (:mod:`.lowering`).
Never sends, never computes: all of it is a function from a program to programs.
"""
