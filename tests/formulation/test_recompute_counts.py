"""Counts of recompute against every pair of counts."""

from __future__ import annotations

import numpy as np
import pytest

from hexisolve.formulation.recompute_counts import best_counts


def least_s(kept, transient, dearer, num_layers: int, rooms, live: float) -> float:
    """Every pair of counts, one by one."""
    best = np.inf
    for full in range(num_layers + 1):
        for again in range(num_layers - full + 1):
            counts = np.array([num_layers - full - again, again, full])
            # The transient of ``none`` is the smallest, so it never binds alone.
            used = [0, *([1] if again else []), *([2] if full else [])]
            need = live * (kept @ counts) + transient[:, used].max(axis=1)
            if (need <= rooms * (1 + 1e-12)).all():
                best = min(best, full * dearer.sum() + again * dearer[0])
    return best


@pytest.mark.parametrize("seed", range(30))
def test_best_counts_are_the_best_of_all(seed: int) -> None:
    rng = np.random.default_rng(seed)
    num_ranks, most = int(rng.integers(1, 4)), 9
    kept = np.sort(rng.uniform(1, 10, (num_ranks, 3)), axis=1)[:, ::-1]
    transient = np.sort(rng.uniform(0, 5, (num_ranks, 3)), axis=1)
    dearer = rng.uniform(0.1, 2.0, 2)
    layers = np.arange(most + 1)[None]
    rooms = rng.uniform(5, 120, (num_ranks, 1, 1)) * np.ones((num_ranks, 1, most + 1))
    live = np.array([1.0, 2.0])[:, None, None]
    again, full = best_counts(kept, transient, dearer, layers, rooms, live)
    for j in range(2):
        for count in range(1, most + 1):
            own = least_s(kept, transient, dearer, count, rooms[:, 0, count], live[j, 0, 0])
            found = np.inf
            if again[j, 0, count] >= 0:
                found = full[j, 0, count] * dearer.sum() + again[j, 0, count] * dearer[0]
            assert found == pytest.approx(own)
