"""What is measured, one file for each workload.

Never prints, never draws.
"""
