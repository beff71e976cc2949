"""How a helper runs programs: planned once for each structure, then again and again.

Owns plans, compiled programs, CUDA graphs, and what a helper holds for each child. Never knows
graphs, gradients, children's tensors or messages.
"""
