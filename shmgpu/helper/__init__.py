"""The session's side of a call: a block is checked, its function runs, the result is put.

Owns the session, batches, and results that wait for memory. Never sends a call, never imports
child/.
"""
