"""Elastic pipelines: chunks, their order and their recompute for one batch on a given layout."""
