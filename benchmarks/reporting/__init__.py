"""Rows as files, tables, plots and pages; measures nothing."""
