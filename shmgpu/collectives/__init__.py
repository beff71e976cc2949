"""What helpers of one call exchange: all_reduce, all_gather and so on, through one interface.

Owns the description of a collective and its backends: regions of shared memory that all helpers
map, torch.distributed where each helper has a GPU of its own, and staging through host memory where
they share one. Never takes a lock. Whoever waits for a helper that dies is woken.
"""
