"""What any role may use: settings, logs, seeds, devices, threads.

Owns nothing of a call. Never plays a role itself, never imports another wing.
"""
