"""The caller's side of a call: arguments into the arena, one message out, the result back.

Owns the port and what this process knows of the calls it has out. Never runs a user's function,
never imports helper/.
"""
