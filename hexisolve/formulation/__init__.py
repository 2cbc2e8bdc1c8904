"""Placement as mathematics: linear models, columns and bounds; no solver library here."""
