"""Values as bytes and bytes as values: element types, containers, arrays, the parameter block.

Owns these formats. Never owns memory, never sends.
"""
