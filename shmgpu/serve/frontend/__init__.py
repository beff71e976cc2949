"""Connections, routes and both front ends; never a model's code."""
