"""Backends that solve formulations, baselines, and the `solve` that joins them."""
