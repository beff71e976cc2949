"""Counters and traces, read and shown; never writes to a broker."""
