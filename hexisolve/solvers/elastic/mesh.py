"""Where long sequences are cut: slices of equal seconds on unlike stages.

Equation E5 of docs/elastic.md: the cuts of one mesh minimise the largest seconds that any slice of
the longest sequence takes on any stage. All long sequences are cut at the same positions.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from hexisolve.formulation.chunk_load import FloatArray, IntArray
from hexisolve.formulation.chunk_seconds import StageSeconds

_MOST_POSITIONS = 1024
_NUM_HALVINGS = 16


@dataclass(frozen=True, eq=False)
class Ruler:
    """Seconds of the first tokens of the longest sequence, on every group of every stage.

    Parameters
    ----------
    positions
        Where a cut may be, from 0 to the whole length.
    curves
        Pairs of lists over the positions: seconds counted at the start, and at the end, of a
        slice. They differ where a ring counts the whole context.
    """

    positions: IntArray
    curves: list[tuple[list[float], list[float]]]

    def slice_s(self, start: int, stop: int) -> float:
        """The largest seconds of the slice between two positions (by index)."""
        return max(ends[stop] - starts[start] for starts, ends in self.curves)


def make_ruler(stages: Sequence[StageSeconds], num_tokens: int, is_causal: bool) -> Ruler:
    """Measure the longest sequence; cuts lie on at most a thousand positions of it."""
    count = min(num_tokens, _MOST_POSITIONS)
    positions = np.linspace(0, num_tokens, count + 1).round().astype(np.int64)
    curves: dict[tuple[float, float], tuple[FloatArray, FloatArray]] = {}
    for stage in stages:
        for curve, is_ring in stage.group_curves(positions, is_causal):
            ends = curve
            if is_ring and not stage.queries_travel:
                ends = curve + stage.ring_s * positions
            elif is_ring:
                curve = ends = curve + stage.ring_s * positions
            curves[float(ends[-1]), float(ends[len(ends) // 2])] = (curve, ends)
    return Ruler(positions, [(a.tolist(), b.tolist()) for a, b in _undominated(curves)])


def _undominated(
    curves: dict[tuple[float, float], tuple[FloatArray, FloatArray]],
) -> list[tuple[FloatArray, FloatArray]]:
    """Curves that can be the largest: another is not steeper everywhere."""
    kept: list[tuple[FloatArray, FloatArray]] = []
    for starts, ends in sorted(curves.values(), key=lambda pair: -float(pair[1][-1])):
        is_beaten = any(
            bool((np.diff(other) >= np.diff(starts)).all()) and ends is starts for other, _ in kept
        )
        if not is_beaten:
            kept.append((starts, ends))
    return kept


def equal_cuts(ruler: Ruler, num_slices: int) -> list[int]:
    """The mesh: positions (in tokens) of the inner cuts, at most ``num_slices - 1`` of them.

    The cap on the seconds of a slice is halved in; under a cap every slice reaches as far as it
    can, so the least cap with which `num_slices` suffice is the optimum (tested by enumeration).
    """
    if num_slices <= 1:
        return []
    last = len(ruler.positions) - 1
    whole = ruler.slice_s(0, last)
    low, high = whole / num_slices * 0.5, whole
    best = [last]
    for _ in range(_NUM_HALVINGS):
        cap = 0.5 * (low + high)
        reached = _reach(ruler, cap, num_slices)
        if reached is None:
            low = cap
        else:
            best, high = reached, cap
    return [int(ruler.positions[index]) for index in best if index != last]


def _reach(ruler: Ruler, cap: float, num_slices: int) -> list[int] | None:
    """Ends of the slices when each takes at most `cap` seconds; None when too few reach."""
    last = len(ruler.positions) - 1
    ends, start = [], 0
    for _ in range(num_slices):
        stop = last
        for starts, stops in ruler.curves:
            stop = bisect_right(stops, starts[start] + cap, start, stop + 1) - 1
        if stop <= start:
            return None
        ends.append(stop)
        if stop == last:
            return ends
        start = stop
    return None


def cut(num_tokens: int, mesh: Sequence[int]) -> list[tuple[int, int]]:
    """(start, stop) of the slices of a sequence under a mesh.

    >>> cut(10, [4, 7, 20]), cut(4, [4, 7])
    ([(0, 4), (4, 7), (7, 10)], [(0, 4)])
    """
    bounds = [0, *mesh[: bisect_left(mesh, num_tokens)], num_tokens]
    return list(pairwise(bounds))
