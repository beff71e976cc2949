"""The parent's side: it starts the roles, supervises them and ends them in order.

Owns a launch's settings, what roles report at their end, and the log of events. Never touches what
lies in an arena.
"""
