"""The broker as a model, held against the real one.

Never imported by what measures.
"""
