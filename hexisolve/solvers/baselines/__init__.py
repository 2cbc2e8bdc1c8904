"""Baselines: what even splits and published heuristics reach on an instance.

Every baseline but ``megatron`` is a legal plan priced by `evaluate`. See docs/baselines.md.
"""

from __future__ import annotations

from hexisolve.solvers.baselines.compare import NAMES, Baseline, baselines

__all__ = ["NAMES", "Baseline", "baselines"]
