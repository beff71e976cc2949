"""Starts the roles and supervises them; never touches an arena's bytes."""
