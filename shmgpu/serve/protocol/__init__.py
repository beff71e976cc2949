"""Requests and answers from bytes and as bytes; never a socket, never a helper."""
