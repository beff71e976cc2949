"""The Open Inference Protocol: bytes as requests, and answers as bytes.

Owns what the protocol says of fields, types and sizes. Never holds a socket, never calls a helper.
"""
