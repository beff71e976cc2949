"""The command line: each command parsed, and handed to the wing that does it.

Owns flags, what they mean, and exit statuses. Never does itself what a wing does.
"""
