"""What all workers of a server share; never a request, never a model's code."""
