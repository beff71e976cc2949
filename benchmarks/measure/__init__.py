"""Rounds, clients, clocks and loads; never a workload, never a page."""
