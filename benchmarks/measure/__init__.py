"""How anything is measured: rounds, clients, clocks, loads, and what machine it was.

Never knows a workload, never prints or draws.
"""
