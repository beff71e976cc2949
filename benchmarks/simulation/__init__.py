"""The broker as a model, held against the real one; never imported by what measures."""
