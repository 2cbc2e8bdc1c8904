"""Measuring solvers: runs, metrics, tables."""
