"""Connections, routes, and both front ends: HTTP and gRPC.

Owns sockets and what is said on them. Never runs a model's code.
"""
