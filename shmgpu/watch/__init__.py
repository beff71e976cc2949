"""Counters and traces of a running broker, read and shown.

Owns samples, rates, tables and the screen. Never writes to a broker.
"""
