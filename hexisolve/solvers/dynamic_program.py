"""The dynamic program: second exact method for the relaxed layout problem, and its proofs.

With ``c >= k X_j + (n - 1 - k j) t_j`` for all stages, ``tau >= t_j`` and ``d >= finish_j`` fixed,
the least ``S = sum (t_j + x_j)`` is a shortest path over (units used, layers covered), built from
the last stage: F2 only asks that X_j, the path so far, is small. Then
``T = max(n tau, S + c) + d`` (F1, F2). S falls when c, tau or d grow, so for a box

    T >= max(n tau_low, S(c_high, tau_high, d_high) + c_low) + d_low

and boxes are split, least bound first, until the bound meets the best configuration found.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple

import numpy as np

from hexisolve.formulation.pipeline_table import (
    Choice,
    Configuration,
    FloatArray,
    IntArray,
    PipelineTable,
    state_strides,
    usage_states,
)


class Box(NamedTuple):
    """Ranges of c, tau and d."""

    low: tuple[float, float, float]
    high: tuple[float, float, float]


@dataclass(frozen=True)
class RelaxedOptimum:
    """What the dynamic program proved.

    Parameters
    ----------
    configuration
        Best configuration found; None when there is none below the cutoff.
    value_s
        Its relaxed step time; the cutoff without one.
    bound_s
        No configuration takes less.
    is_complete
        False when the time limit ended the search before bound and value met.
    """

    configuration: Configuration | None
    value_s: float
    bound_s: float
    is_complete: bool


class _Paths:
    """Shortest paths through a table for given limits on c, tau and d."""

    def __init__(self, table: PipelineTable, num_stages: int | None) -> None:
        self.table = table
        self.num_stages = num_stages
        self.states = usage_states(table.available)
        strides = state_strides(table.available)
        shifts = table.units @ strides
        fits = (self.states[:, None, :] + table.units[None, :, :] <= np.array(table.available)).all(
            axis=2
        )
        sources, columns = np.nonzero(fits)
        targets = sources + shifts[columns]
        order = np.argsort(targets, kind="stable")
        self.sources: IntArray = sources[order]
        self.columns: IntArray = columns[order]
        self.targets: IntArray = targets[order]
        self.num_layers = table.num_layers

    def shortest(
        self, limits: tuple[float, float, float], most_s: float
    ) -> tuple[float, Configuration | None]:
        """Least S under the limits (c, tau, d), and a configuration that has it.

        Paths longer than `most_s` are dropped.
        """
        table, num_layers = self.table, self.num_layers
        limit, tallest, latest = limits
        n = table.num_chunks
        best, best_stage = np.inf, -1
        fronts: list[FloatArray] = []
        front = np.full((len(self.states), num_layers + 1), np.inf)
        front[0, 0] = 0.0
        fronts.append(front)
        stages = table.max_stages if self.num_stages is None else self.num_stages
        for j in range(stages):
            allowed = np.where(
                (table.finish_s <= latest) & (table.time_s[j] <= tallest), table.time_s[j], np.inf
            )
            loops = table.loops(j)
            if j == 0:
                allowed = np.where(allowed <= limit / max(n - 1, 1e-9), allowed, np.inf)
            following, ended = self._extend(front, allowed, j, loops, limit, most_s)
            is_last = self.num_stages is None or j == self.num_stages - 1
            if is_last and ended < best:
                best, best_stage = ended, j
            front = following
            fronts.append(front)
            if not np.isfinite(front).any():
                break
        if best_stage < 0 or not np.isfinite(best):
            return np.inf, None
        return best, self._trace(fronts, best, best_stage, limits)

    def _extend(
        self,
        front: FloatArray,
        allowed: FloatArray,
        j: int,
        loops: tuple[int, ...],
        limit: float,
        most: float,
    ) -> tuple[FloatArray, float]:
        """Add one stage in front: the new front, and the least S when it is the first stage."""
        table, num_layers, n = self.table, self.num_layers, self.table.num_chunks
        following = np.full_like(front, np.inf)
        ended = np.inf
        alive = np.isfinite(front).any(axis=1)
        possible = np.isfinite(allowed).any(axis=(1, 2))
        use = alive[self.sources] & possible[self.columns]
        sources, columns, targets = self.sources[use], self.columns[use], self.targets[use]
        if not len(sources):
            return following, ended
        for layers in range(1, num_layers + 1):
            seconds_by_column = allowed[:, : num_layers + 1 - layers, layers]
            usable = np.isfinite(seconds_by_column).any(axis=1)[columns]
            if not usable.any():
                continue
            own_columns, own_targets = columns[usable], targets[usable]
            behind = front[sources[usable], : num_layers + 1 - layers]
            seconds = seconds_by_column[own_columns]
            total = behind + seconds
            with np.errstate(invalid="ignore"):  # 0 x infinity: no such path anyway
                for k in loops:
                    row = k * behind + (n - 1 - k * j) * seconds
                    total = np.where(row <= limit, total, np.inf)
            ended = min(ended, float(total[:, -1].min()))
            total = total[:, :-1] + table.entry_s[own_columns][:, None]
            total[total > most] = np.inf
            starts = np.flatnonzero(np.r_[True, own_targets[1:] != own_targets[:-1]])
            least = np.minimum.reduceat(total, starts, axis=0) if total.shape[1] else total
            if total.shape[1]:
                rows = own_targets[starts]
                part = following[rows, layers:num_layers]
                following[rows, layers:num_layers] = np.minimum(part, least)
        return following, ended

    def _trace(
        self, fronts: list[FloatArray], best: float, best_stage: int,
        limits: tuple[float, float, float],
    ) -> Configuration:  # fmt: skip
        """Walk back from the first stage to the last."""
        table, num_layers = self.table, self.num_layers
        limit, tallest, latest = limits
        n = table.num_chunks
        chosen: list[Choice] = []
        wanted, state, covered = best, -1, num_layers
        for j in range(best_stage, -1, -1):
            is_first = covered == num_layers and not chosen
            found = None
            pairs = slice(None) if state < 0 else np.flatnonzero(self.targets == state)
            sources, columns = self.sources[pairs], self.columns[pairs]
            for layers in range(1, covered + 1):
                after = covered - layers
                seconds = table.time_s[j, columns, after, layers]
                behind = fronts[j][sources, after]
                total = behind + seconds
                if not is_first:
                    total = total + table.entry_s[columns]
                fits = (seconds <= tallest) & (table.finish_s[columns, after, layers] <= latest)
                if j == 0:
                    fits &= seconds <= limit / max(n - 1, 1e-9)
                with np.errstate(invalid="ignore"):
                    for k in table.loops(j):
                        fits &= k * behind + (n - 1 - k * j) * seconds <= limit
                total = np.where(fits, total, np.inf)
                idx = int(np.argmin(np.abs(total - wanted))) if len(total) else 0
                if len(total) and abs(total[idx] - wanted) <= 1e-12 * max(wanted, 1e-300):
                    found = (int(columns[idx]), layers, int(sources[idx]), float(behind[idx]))
                    break
            assert found is not None, "the shortest path has no way back"
            column, layers, state, wanted = found
            chosen.append(Choice(column, num_layers - covered, layers))
            covered -= layers
        return tuple(chosen)


def solve_relaxed(
    table: PipelineTable,
    *,
    cutoff_s: float,
    relative_gap: float = 1e-9,
    num_stages: int | None = None,
    deadline: float = np.inf,
    on_configuration: Callable[[Configuration, float], None] | None = None,
) -> RelaxedOptimum:
    """Minimise F1 and F2 over all configurations of a table.

    Parameters
    ----------
    table
        Relaxed prices.
    cutoff_s
        Only configurations below this step time are wanted.
    relative_gap
        Bound and value may differ by this share of the value.
    num_stages
        Exact number of stages; None for any.
    deadline
        `time.monotonic` after which the search stops with what is proved.
    on_configuration
        Called with every configuration met and its relaxed value.
    """
    paths = _Paths(table, num_stages)
    best: Configuration | None = None
    value = cutoff_s
    finite = table.time_s[np.isfinite(table.time_s)]
    if not finite.size:
        return RelaxedOptimum(None, cutoff_s, cutoff_s, True)
    n = table.num_chunks
    finishes = table.finish_s[np.isfinite(table.time_s).any(axis=0)]
    low = ((n - 1) * float(finite.min()) if n > 1 else 0.0, float(finite.min()),
           float(finishes.min()))  # fmt: skip
    high = (cutoff_s, cutoff_s / n, min(float(finishes.max()), cutoff_s))
    ticket = count()
    heap: list[tuple[float, int, Box, tuple[float, float, float] | None]] = []

    def consider(box: Box) -> None:
        nonlocal best, value
        tallest = min(box.high[1], value / n)
        limit = min(box.high[0], value)
        most = value - box.low[0] - box.low[2]
        shortest, configuration = paths.shortest((limit, tallest, box.high[2]), most)
        bound = max(n * box.low[1], shortest + box.low[0]) + box.low[2]
        if configuration is None or bound >= value:
            return
        found = table.value_s(configuration)
        if on_configuration is not None:
            on_configuration(configuration, found)
        if found < value:
            best, value = configuration, found
        heapq.heappush(heap, (bound, next(ticket), Box(box.low, (limit, tallest, box.high[2])),
                              _used(table, configuration)))  # fmt: skip

    consider(Box(low, high))
    is_complete = True
    bound = value
    while heap:
        bound, _, box, used = heapq.heappop(heap)
        if bound >= value * (1 - relative_gap):
            break
        if time.monotonic() > deadline:
            is_complete = False
            break
        for half in _split(box, used, n):
            consider(half)
        bound = value
    return RelaxedOptimum(best, value, min(bound, value), is_complete)


def _used(table: PipelineTable, configuration: Configuration) -> tuple[float, float, float]:
    """The c, tau and d that a configuration needs."""
    n = table.num_chunks
    behind = limit = tallest = latest = 0.0
    after = 0
    for j, choice in enumerate(reversed(configuration)):
        seconds = float(table.time_s[j, choice.column, after, choice.num_layers])
        rows = [k * behind + (n - 1 - k * j) * seconds for k in table.loops(j)]
        limit = max([limit, *rows, (n - 1) * seconds if j == 0 else 0.0])
        tallest = max(tallest, seconds)
        latest = max(latest, float(table.finish_s[choice.column, after, choice.num_layers]))
        after += choice.num_layers
        behind += seconds + float(table.entry_s[choice.column])
    return limit, tallest, latest


def _split(box: Box, used: tuple[float, float, float] | None, n: int) -> tuple[Box, Box]:
    """Cut the range that costs most between the box's corner and what its path needs."""
    assert used is not None
    weights = (1.0, float(n), 1.0)
    losses = [w * (u - low) for w, u, low in zip(weights, used, box.low, strict=True)]
    axis = max(range(3), key=lambda idx: losses[idx])
    middle = (box.low[axis] + min(used[axis], box.high[axis])) / 2
    below = tuple(middle if idx == axis else value for idx, value in enumerate(box.high))
    above = tuple(middle if idx == axis else value for idx, value in enumerate(box.low))
    return Box(box.low, below), Box(above, box.high)  # type: ignore[arg-type]
