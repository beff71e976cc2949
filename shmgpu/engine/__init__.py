"""How a helper runs programs: planned once for each structure, then again and again.

Knows programs and operations; knows nothing of graphs, gradients, children's tensors or messages.
"""
