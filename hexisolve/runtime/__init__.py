"""Executes compiled programs with torch: the only package that imports it."""
