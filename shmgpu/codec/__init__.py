"""Bytes from values and values from bytes; never owns memory, never sends."""
