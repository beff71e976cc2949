"""Allocation traces: recorded ones, made ones, and the form both are written in."""
