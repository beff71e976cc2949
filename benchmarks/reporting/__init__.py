"""Rows as files, tables, plots and pages, and two runs compared.

Never measures.
"""
