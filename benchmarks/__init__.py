"""What shmgpu costs, measured beside what else a user would pick and beside the machine's limit.

Run ``python -m benchmarks --list`` in the checkout; ``benchmarks/README.md`` explains the figures.
Never installed with the package.
"""
