"""Whole layers from the relaxed recompute program: round up, repair, give back.

The relaxed optimum is close to the best plan but counts fractions of layers; a plan beside it is
found in a fraction of the time a search takes. What comes out keeps every memory row.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from hexisolve.formulation.chunk_load import FloatArray, IntArray
from hexisolve.formulation.recompute_program import RECOMPUTED, Place, RecomputeProgram
from hexisolve.plan.plan import Policy

_TOLERANCE = 1e-7
Change = tuple[int, int, int]
# One layer less recomputed, or recomputed less: dearest first.
_CHEAPER: tuple[Change, ...] = ((0, 0, -1), (0, 1, -1), (0, -1, 0), (1, -1, 0), (-1, 0, 0))


@dataclass(eq=False)
class _PlaceRows:
    """The memory rows that a place stands in.

    Parameters
    ----------
    rows, saved
        Their numbers, and ``[row, policy]`` what one layer takes off the left side.
    own, present
        Rows at the start of its own B, and ``[row, policy]`` what "some layer" adds there.
    """

    rows: list[int] = field(default_factory=list)
    saved: list[list[float]] = field(default_factory=list)
    own: list[int] = field(default_factory=list)
    present: list[list[float]] = field(default_factory=list)

    def effect(self, change: Sequence[int], before: IntArray, slack: FloatArray) -> FloatArray:
        """The slack of its rows after a change of its layers; no change of `slack` itself."""
        after = slack.copy()
        after[self.rows] += np.array(self.saved) @ np.array(change)
        if self.own:
            more = _present(before + np.array(change)) - _present(before)
            after[self.own] -= np.array(self.present) @ more
        return after


def _present(layers: IntArray) -> IntArray:
    """Whether some layer is at least as dear as each policy."""
    return (np.cumsum(layers[::-1])[::-1] > 0).astype(np.int64)


class _Rounding:
    """Layers per place and the slack of every memory row."""

    def __init__(self, program: RecomputeProgram, values: Sequence[float]) -> None:
        self.places = list(dict.fromkeys(place for place, _ in program.layers))
        self.most = [program.num_layers[place.stage_idx] for place in self.places]
        index = {place: idx for idx, place in enumerate(self.places)}
        of_layers = {v.index: (index[p], RECOMPUTED.index(c)) for (p, c), v in
                     program.layers.items()}  # fmt: skip
        of_present = {v.index: (index[p], RECOMPUTED.index(c)) for (p, c), v in
                      program.present.items()}  # fmt: skip
        self.rows = [_PlaceRows() for _ in self.places]
        slack: list[float] = []
        for row in program.model.rows:
            if not row.name.startswith("memory["):
                continue
            saved: dict[int, list[float]] = {}
            present: dict[int, list[float]] = {}
            for variable, factor in row.terms.items():
                if variable in of_layers:
                    idx, policy = of_layers[variable]
                    saved.setdefault(idx, [0.0] * len(RECOMPUTED))[policy] = -factor
                else:
                    idx, policy = of_present[variable]
                    present.setdefault(idx, [0.0] * len(RECOMPUTED))[policy] = factor
            for idx, factors in saved.items():
                self.rows[idx].rows.append(len(slack))
                self.rows[idx].saved.append(factors)
            for idx, factors in present.items():
                self.rows[idx].own.append(len(slack))
                self.rows[idx].present.append(factors)
            slack.append(row.right)
        self.members: list[list[int]] = [[] for _ in slack]
        for idx, own in enumerate(self.rows):
            for number in own.rows:
                self.members[number].append(idx)
        self.slack = np.array(slack)
        self.relaxed = np.array(
            [[values[program.layers[place, c].index] for c in RECOMPUTED] for place in self.places]
        )
        self.again_s = np.array(
            [[program.prices.again_s[c][place] for c in RECOMPUTED] for place in self.places]
        )
        self.layers = np.zeros_like(self.relaxed, dtype=np.int64)
        for idx, numbers in enumerate(self.relaxed):
            self._apply(idx, _rounded_up(numbers, self.most[idx]))

    def _apply(self, idx: int, change: Sequence[int]) -> None:
        self.slack = self.rows[idx].effect(change, self.layers[idx], self.slack)
        self.layers[idx] += np.array(change)

    def repair(self) -> bool:
        """Recompute more until every row holds; the cheapest seconds per byte first."""
        for row in range(len(self.slack)):
            while self.slack[row] < -_TOLERANCE:
                best: tuple[float, int, Change] | None = None
                for idx in self.members[row]:
                    for change in self._dearer(idx):
                        after = self.rows[idx].effect(change, self.layers[idx], self.slack)
                        gained = float(after[row] - self.slack[row])
                        broken = after[after < np.minimum(self.slack, -_TOLERANCE) - _TOLERANCE]
                        if gained <= _TOLERANCE or len(broken):
                            continue
                        cost = float(self.again_s[idx] @ np.array(change)) / gained
                        if best is None or cost < best[0]:
                            best = (cost, idx, change)
                if best is None:
                    return False
                self._apply(best[1], best[2])
        return True

    def _dearer(self, idx: int) -> list[Change]:
        """One layer more recomputed, or recomputed more."""
        mlp, layer, _ = (int(count) for count in self.layers[idx])
        found: list[Change] = []
        if int(self.layers[idx].sum()) < self.most[idx]:
            found += [(1, 0, 0), (0, 1, 0), (0, 0, 1)]
        if mlp:
            found += [(-1, 1, 0), (-1, 0, 1)]
        if layer:
            found.append((0, -1, 1))
        return found

    def give_back(self) -> None:
        """Recompute less where every row allows it, first where most was rounded up."""
        rounded_s = ((self.layers - self.relaxed) * self.again_s).sum(axis=1)
        for idx in np.argsort(-rounded_s, kind="stable").tolist():
            is_open = True
            while is_open:
                is_open = any(self._try(idx, change) for change in _CHEAPER)

    def _try(self, idx: int, change: Change) -> bool:
        if (self.layers[idx] + np.array(change)).min() < 0:
            return False
        after = self.rows[idx].effect(change, self.layers[idx], self.slack)
        if (after < -_TOLERANCE).any():
            return False
        self.slack = after
        self.layers[idx] += np.array(change)
        return True


def _rounded_up(numbers: FloatArray, most: int) -> list[int]:
    """At least as many layers that are at least as dear as each policy."""
    dearer, result = 0, []
    total = 0.0
    for number in numbers[::-1].tolist():
        total += number
        count = min(math.ceil(total - 1e-6), most)
        result.append(count - dearer)
        dearer = count
    return result[::-1]


def rounded_counts(
    program: RecomputeProgram, values: Sequence[float]
) -> Mapping[Place, Mapping[Policy, int]] | None:
    """Whole recompute beside values of the relaxed program; None when repair finds none.

    Places without variables recompute nothing.
    """
    rounding = _Rounding(program, values)
    if not rounding.repair():
        return None
    rounding.give_back()
    num_chunks = program.prices.forward_s.shape[1]
    counts: dict[Place, Mapping[Policy, int]] = {
        Place(p, k): {"none": most}
        for p, most in enumerate(program.num_layers)
        for k in range(num_chunks)
    }
    for place, most, own in zip(rounding.places, rounding.most, rounding.layers, strict=True):
        numbers = dict(zip(RECOMPUTED, own.tolist(), strict=True))
        numbers["none"] = most - sum(own.tolist())
        counts[place] = {policy: count for policy, count in numbers.items() if count}
    return counts
