"""What all workers of a server share: settings, counters, regions, the repository.

Owns the shared memory that holds them. Never handles a request, never runs a model's code.
"""
