"""The dynamic program: second exact method for the relaxed layout problem, and its proofs.

Fix a step time T and ask whether any configuration keeps F1 and F2. Stages are placed from the
last one. A label of (stages placed, units used, layers covered) is the pair

    X   sum of t + x of the stages placed (wanted small: F2)
    D   how much the stages still to come may take together (wanted large: F1, F2)

and placing a stage of t seconds in front gives X + t + x and
``min(D - t, T - n t - f, T - (1 + k) X - (n - k j) t - f) - x``. Labels are kept in buckets of X;
a bucket keeps its least X and its largest D, even if of different labels. That only adds
configurations, so "no label is left" proves ``step > T``. More buckets make it tighter.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from hexisolve.formulation.pipeline_table import (
    Choice,
    Configuration,
    FloatArray,
    IntArray,
    PipelineTable,
    state_strides,
    usage_states,
)
from hexisolve.formulation.twins import Twins

_MAX_BUCKETS = 64
_FIRST_STRIDE = 0.03


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
        Whether bound and value met within the gap asked for.
    """

    configuration: Configuration | None
    value_s: float
    bound_s: float
    is_complete: bool


@dataclass(frozen=True, eq=False)
class _Front:
    """Labels after some stages, ``[state, layers covered, bucket]``; D below 0: no label."""

    behind: FloatArray
    room: FloatArray


class _Paths:
    """Which configurations of a table can keep a step time."""

    def __init__(self, table: PipelineTable, num_stages: int | None) -> None:
        self.table = table
        self.num_layers = table.num_layers
        self.twins = Twins(table)
        every = usage_states(table.available)
        strides = state_strides(table.available)
        kept = (self.twins.canonical(every) == every).all(axis=1)
        numbers = np.cumsum(kept) - 1
        self.states = every[kept]
        fits = (self.states[:, None, :] + table.units[None, :, :] <= np.array(table.available)).all(
            axis=2
        )
        sources, columns = np.nonzero(fits)
        reached = self.twins.canonical(self.states[sources] + table.units[columns])
        targets = numbers[reached @ strides]
        # Of ways with equal ends and prices one is enough.
        ways = np.stack([targets, sources, self.twins.price_ids[columns]], axis=1)
        _, first = np.unique(ways, axis=0, return_index=True)
        self.sources: IntArray = sources[first]
        self.columns: IntArray = columns[first]
        self.targets: IntArray = targets[first]
        self.stage_counts = range(
            *((1, table.max_stages + 1) if num_stages is None else (num_stages, num_stages + 1))
        )
        self.rest = self._rest()

    def _rest(self) -> FloatArray:
        """``[state, layers covered]`` least seconds that the layers not yet covered take.

        The best column that fits into the units left, at its least seconds per layer.
        """
        table, num_layers = self.table, self.num_layers
        layers = np.maximum(np.arange(num_layers + 1), 1)
        per_layer = (table.time_s / layers).min(axis=(0, 2, 3))
        left = np.array(table.available) - self.states
        fits = (table.units[None, :, :] <= left[:, None, :]).all(axis=2)
        best = np.where(fits, per_layer[None, :], np.inf).min(axis=1, initial=np.inf)
        missing = num_layers - np.arange(num_layers + 1)
        with np.errstate(invalid="ignore"):
            rest = best[:, None] * missing[None, :] * (1 - 1e-12)
        return np.where(missing[None, :] == 0, 0.0, rest)

    def within(self, step_s: float, num_buckets: int) -> Configuration | None:
        """A configuration that may keep `step_s`; None proves that there is none."""
        shape = (len(self.states), self.num_layers + 1, num_buckets)
        front = _Front(np.full(shape, np.inf), np.full(shape, -np.inf))
        front.behind[0, 0, 0], front.room[0, 0, 0] = 0.0, step_s
        fronts = [front]
        for j in range(self.stage_counts.stop - 1):
            allowed = self._allowed(j, step_s)
            front, is_whole = self._extend(front, allowed, j, step_s)
            if is_whole and j + 1 in self.stage_counts:
                return self._trace(fronts, j, step_s)
            fronts.append(front)
            if (front.room < 0).all():
                break
        return None

    def _allowed(self, j: int, step_s: float) -> FloatArray:
        """Seconds of the stages that keep F1 on their own, infinite elsewhere."""
        table = self.table
        fits = table.total_s[j] + table.finish_s <= step_s
        return np.where(fits, table.time_s[j], np.inf)

    def _step(
        self, front: _Front, sources: IntArray, columns: IntArray, seconds: FloatArray, j: int,
        layers: int, step_s: float, span: slice,
    ) -> tuple[FloatArray, FloatArray]:  # fmt: skip
        """X and D after stages of `layers` layers are placed before labels, entries left out.

        Arrays are ``[pair, layers after (of the span), bucket]``.
        """
        table, n = self.table, self.table.num_chunks
        behind = front.behind[sources, span]
        room = front.room[sources, span]
        own = seconds[:, :, None]
        limit = step_s - table.finish_s[columns, span, layers][:, :, None]
        room = np.minimum(room - own, limit - table.total_s[j, columns, span, layers][:, :, None])
        loops = table.loops(j)
        for k in loops:
            room = np.minimum(room, limit - (1 + k) * behind - (n - k * j) * own)
        if j and not loops:
            room = np.minimum(room, limit - behind - own)
        room[~(room >= 0)] = -np.inf
        return behind + own, room

    def _extend(
        self, front: _Front, allowed: FloatArray, j: int, step_s: float
    ) -> tuple[_Front, bool]:
        """Place one more stage; also whether it can be the first stage of a whole pipeline."""
        table, num_layers = self.table, self.num_layers
        following = _Front(np.full_like(front.behind, np.inf), np.full_like(front.room, -np.inf))
        is_whole = False
        has_label: npt.NDArray[np.bool_] = np.any(front.room >= 0, axis=2)
        covered = np.flatnonzero(has_label.any(axis=0))
        if not len(covered):
            return following, False
        possible = np.isfinite(allowed.min(axis=(1, 2)))
        states_used: npt.NDArray[np.bool_] = np.any(has_label, axis=1)
        use = states_used[self.sources] & possible[self.columns]
        sources, columns, targets = self.sources[use], self.columns[use], self.targets[use]
        for layers in range(1, num_layers + 1 - int(covered[0])):
            span = slice(int(covered[0]), min(int(covered[-1]) + 1, num_layers + 1 - layers))
            by_column = allowed[:, span, layers]
            usable = np.isfinite(by_column.min(axis=1))[columns]
            if not usable.any():
                continue
            own_columns, own_targets = columns[usable], targets[usable]
            behind, room = self._step(
                front, sources[usable], own_columns, by_column[own_columns], j, layers, step_s, span
            )
            if span.stop == num_layers + 1 - layers:
                is_whole = is_whole or bool((room[:, -1] >= 0).any())
                behind, room = behind[:, :-1], room[:, :-1]
            if not room.shape[1]:
                continue
            entry = table.entry_s[own_columns][:, None, None]
            behind, room = behind + entry, room - entry
            place = span.start + layers
            rest = self.rest[own_targets, place : place + room.shape[1]][:, :, None]
            lost = room < rest
            room[lost] = -np.inf
            behind[lost] = np.inf
            _collect(following, own_targets, place, behind, room, step_s)
        return following, is_whole

    def _trace(self, fronts: list[_Front], last: int, step_s: float) -> Configuration:
        """Walk back from the first stage to the last along the largest D."""
        table, num_layers = self.table, self.num_layers
        chosen: list[Choice] = []
        state, covered, bucket = -1, num_layers, -1
        num_buckets = fronts[0].room.shape[2]
        for j in range(last, -1, -1):
            pairs = (
                np.arange(len(self.sources)) if state < 0 else np.flatnonzero(self.targets == state)
            )
            sources, columns = self.sources[pairs], self.columns[pairs]
            allowed = self._allowed(j, step_s)
            best, found = -np.inf, None
            for layers in range(1, covered + 1):
                after = covered - layers
                span = slice(after, after + 1)
                seconds = allowed[columns, span, layers]
                behind, room = self._step(
                    fronts[j], sources, columns, seconds, j, layers, step_s, span
                )
                behind, room = behind[:, 0], room[:, 0]
                if chosen:
                    entry = table.entry_s[columns][:, None]
                    behind, room = behind + entry, room - entry
                    room = np.where(_bucket(behind, step_s, num_buckets) == bucket, room, -np.inf)
                if room.size and room.max() > best:
                    best = float(room.max())
                    pair, before = np.unravel_index(int(room.argmax()), room.shape)
                    found = (int(columns[pair]), layers, int(sources[pair]), int(before))
            assert found is not None, "a label has no way back"
            column, layers, state, bucket = found
            chosen.append(Choice(column, num_layers - covered, layers))
            covered -= layers
        return self.twins.assign(tuple(chosen))


def _bucket(behind: FloatArray, step_s: float, num_buckets: int) -> IntArray:
    """Bucket of X; X never exceeds T."""
    scaled = np.where(np.isfinite(behind), behind, 0.0) * (num_buckets / step_s)
    return np.minimum(scaled.astype(np.int64), num_buckets - 1)


def _collect(
    following: _Front, targets: IntArray, place: int, behind: FloatArray, room: FloatArray,
    step_s: float,
) -> None:  # fmt: skip
    """Keep the least X and the largest D of every bucket; arrays start at `place` layers."""
    num_buckets = following.room.shape[2]
    if num_buckets == 1:
        starts = np.flatnonzero(np.r_[True, targets[1:] != targets[:-1]])
        span = (targets[starts], slice(place, place + room.shape[1]), 0)
        least = np.minimum.reduceat(behind[:, :, 0], starts, axis=0)
        most = np.maximum.reduceat(room[:, :, 0], starts, axis=0)
        following.behind[span] = np.minimum(following.behind[span], least)
        following.room[span] = np.maximum(following.room[span], most)
        return
    pair, after, before = np.nonzero(room >= 0)
    values, rooms = behind[pair, after, before], room[pair, after, before]
    flat = (targets[pair] * following.room.shape[1] + after + place) * num_buckets
    flat = flat + _bucket(values, step_s, num_buckets)
    np.minimum.at(following.behind.reshape(-1), flat, values)
    np.maximum.at(following.room.reshape(-1), flat, rooms)


def solve_relaxed(
    table: PipelineTable,
    *,
    cutoff_s: float,
    relative_gap: float = 1e-9,
    num_stages: int | None = None,
    deadline: float = np.inf,
    floor_s: float = 0.0,
    max_buckets: int = _MAX_BUCKETS,
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
    floor_s
        A bound known beforehand.
    max_buckets
        How finely labels are kept apart at most.
    on_configuration
        Called with every configuration met and its relaxed value.

    Notes
    -----
    The label rows know only their own f_j. So the range of f is halved until the optimum is met:
    in one part stages with f_j above it are left out, and f is at least its lower end.
    """
    best: Configuration | None = None
    value = cutoff_s
    if not table.num_columns or not np.isfinite(table.time_s).any():
        return RelaxedOptimum(None, cutoff_s, cutoff_s, True)
    alone = (table.total_s + table.finish_s).min(axis=0)
    finishes = np.unique(table.finish_s[alone <= cutoff_s])
    if not len(finishes):
        return RelaxedOptimum(None, cutoff_s, cutoff_s, True)
    # Parts of the range of f still open: (bound, first, last value of it).
    parts = [(max(floor_s, float(alone.min())), 0, len(finishes) - 1)]
    closed = np.inf
    while parts:
        parts.sort()
        bound, first, last = parts[0]
        if bound >= value * (1 - relative_gap) or time.monotonic() > deadline:
            break
        del parts[0]
        part = _part(table, float(finishes[first]), float(finishes[last]))
        optimum = _solve_part(
            table, part, value, relative_gap, num_stages, deadline, bound, max_buckets,
            on_configuration,
        )  # fmt: skip
        if optimum.configuration is not None:
            best, value = optimum.configuration, optimum.value_s
        if first == last or optimum.bound_s >= value * (1 - relative_gap):
            closed = min(closed, optimum.bound_s)
            continue
        middle = int(np.searchsorted(finishes, (finishes[first] + finishes[last]) / 2, "right"))
        middle = min(max(middle, first + 1), last)
        parts += [(optimum.bound_s, first, middle - 1), (optimum.bound_s, middle, last)]
    bound = min([closed, value, *(part[0] for part in parts)])
    return RelaxedOptimum(best, value, bound, bound >= value * (1 - relative_gap))


def _part(table: PipelineTable, low: float, high: float) -> PipelineTable:
    """The table where f lies in a range."""
    allowed = table.finish_s <= high
    return replace(
        table,
        time_s=np.where(allowed[None], table.time_s, np.inf),
        total_s=np.where(allowed[None], table.total_s, np.inf),
        finish_s=np.where(allowed, np.maximum(table.finish_s, low), np.inf),
    )


def _solve_part(
    table: PipelineTable,
    part: PipelineTable,
    cutoff_s: float,
    relative_gap: float,
    num_stages: int | None,
    deadline: float,
    floor_s: float,
    max_buckets: int,
    on_configuration: Callable[[Configuration, float], None] | None,
) -> RelaxedOptimum:
    """Minimise over one part of the range of f; values are those of the whole table."""
    best: Configuration | None = None
    value, bound = cutoff_s, floor_s
    if not np.isfinite(part.time_s).any():
        return RelaxedOptimum(None, cutoff_s, cutoff_s, True)
    paths = _Paths(part, num_stages)
    num_buckets = 1
    while num_buckets <= max_buckets:
        # Below `open_s` nothing was refuted with so many buckets: labels were merged too much.
        open_s = np.nextafter(value, 0.0) if best is None else value
        stride = _FIRST_STRIDE
        is_first = best is None
        while bound < min(open_s, value) * (1 - relative_gap):
            if time.monotonic() > deadline:
                return RelaxedOptimum(best, value, min(bound, value), False)
            high = min(open_s, value)
            step_s = high
            if not is_first:
                # Near the top first; further down each time that a step is kept.
                step_s = max((bound + high) / 2, high * (1 - stride))
                step_s = min(step_s, high * (1 - relative_gap / 2))
            met = paths.within(step_s, num_buckets)
            if met is None:
                bound = value if is_first else step_s
                continue
            is_first = False
            open_s = step_s
            stride *= 2
            found = table.value_s(met)
            if on_configuration is not None:
                on_configuration(met, found)
            if found < value:
                best, value = met, found
        if bound >= value * (1 - relative_gap):
            return RelaxedOptimum(best, value, min(bound, value), True)
        num_buckets *= 4
    return RelaxedOptimum(best, value, min(bound, value), False)
