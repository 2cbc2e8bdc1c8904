"""A linear relaxation of a layer over given bundles, in a box of tokens and heads.

Products of shares lie between McCormick's planes, which close in as a box shrinks. Tokens are whole
blocks and heads whole heads: a box ends at them, and what the busiest device has is rounded up.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import cached_property
from math import ceil, floor
from typing import NamedTuple

import numpy as np

from hexisolve.formulation.bundle_rows import known_rows
from hexisolve.formulation.bundled_work import BundledStage, BundledWork
from hexisolve.formulation.pipeline_table import FloatArray
from hexisolve.formulation.small_program import Optimise, SmallProgram, least

_TOLERANCE = 1e-3  # of the target: errors of products below it are not worth a division
_ROUND = 1e-7
_FINEST = 1e-4  # of the tokens, where blocks are not whole
_MIDDLE = 0.2  # a box is divided at least so far from its ends


Shares = tuple[float, ...]


class Box(NamedTuple):
    """Limits of the tokens and heads of every host."""

    least_tokens: Shares
    most_tokens: Shares
    least_heads: Shares
    most_heads: Shares


class Relaxation(NamedTuple):
    """Seconds that nothing in the box goes below, and the shares of the relaxed optimum."""

    seconds: float
    point: FloatArray | None


class BundleProgram:
    """The linear program of a `BundledStage`.

    Parameters
    ----------
    work, stage
        What is done, and what is fixed.
    optimise
        Solves small programs.
    target_s
        Nothing above it is of interest: seconds are limited by it.
    """

    def __init__(
        self, work: BundledWork, stage: BundledStage, optimise: Optimise, target_s: float
    ) -> None:
        self.work, self.stage, self._optimise = work, stage, optimise
        self._rows = rows = known_rows(work, stage)
        self.names = names = rows.names
        hosts = self.hosts = rows.hosts
        groups = [number or 1 for number in stage.groups]
        self._numbers = groups
        self.head_step = (rows.per_group / work.load.query_heads).tolist()
        self._head = 1.0 / work.load.query_heads
        self._block = work.margins.block
        self._block_step = (hosts.num_devices * self._block).tolist()
        # Blocks are dealt to the groups in turn, so the first group has what is left over.
        self._group_step = [self._block * number for number in groups]
        cost = np.zeros(names.count)
        total = sum(work.weights.values()) if work.forwards is None else work.forwards
        cost[names.forward] = total
        for variable, seconds in rows.swap_terms(None).items():
            cost[variable] += total * seconds
        for policy, weight in work.weights.items():
            cost[names.backward[policy]] = weight
            for variable, seconds in rows.swap_terms(policy).items():
                cost[variable] += weight * seconds
        self._products = np.array(rows.products, dtype=np.int64).reshape(-1, 3).T
        if work.ends is not None:
            policy, forwards, backwards = work.ends
            plain_forward, plain_backward = names.plain
            cost[[names.forward, plain_forward]] += -forwards, forwards
            cost[[names.backward[policy], plain_backward]] += -backwards, backwards
        # Passes that keep the target keep it alone; of those that do not count any will do.
        counted = cost[rows.costed]
        most = target_s / max(float(counted[counted > 0].min()), 1e-9)
        high = np.full(names.count, most * (1.0 if (counted > 0).all() else 100.0))
        high[: names.num_shares] = 1.0
        program = rows.rows.program(cost, np.zeros(names.count), high)
        values, right = program.values.copy(), program.right.copy()
        first = rows.memory_row
        self._memory_entries = program.starts[first : first + len(hosts)]
        entry = program.starts[rows.cutoff_row]
        values[entry:][: len(rows.costed)] = -cost[rows.costed] / cost.max()
        self._program = replace(program, values=values, right=right)
        first = rows.product_row
        self._planes = program.starts[first : first + 4 * len(rows.products)]

    def first_box(self) -> Box | None:
        """Everything that is allowed."""
        none, everything = (0.0,) * len(self.hosts), (1.0,) * len(self.hosts)
        alone = tuple(map(float, self._rows.alone))
        return self.tightened(Box(none, everything, alone, everything))

    def tightened(self, box: Box) -> Box | None:
        """Ends moved to whole blocks and heads, and to what the other hosts leave; None: empty."""
        low, high, few, many = map(list, box)
        everyone = range(len(low))
        for _ in range(2):
            _leave(low, high, everyone)
            for bundle in self.stage.bundles:
                _leave(few, many, bundle)
        if self._block:
            _to_whole(low, high, self._block)
        _to_whole(few, many, self._head)
        for bottom, top in ((low, high), (few, many)):
            for host in everyone:
                if bottom[host] > top[host] + 1e-12:
                    return None
                top[host] = max(bottom[host], top[host])
        return Box(tuple(low), tuple(high), tuple(few), tuple(many))

    def _hops_s(self, box: Box) -> float:
        """Launches of hops between groups that have tokens, as many as the box makes sure of."""
        block, filled = self._block or self.work.margins.uneven, 0
        for bundle, number in zip(self.stage.bundles, self._numbers, strict=True):
            blocks = max(floor(box.least_tokens[h] / block + _ROUND) for h in bundle)
            filled += min(number, blocks)
        return max(filled - 1, 0) * self.work.weighted_hop_s

    def relaxation(self, box: Box, target_s: float, cost: FloatArray | None = None) -> Relaxation:
        """The relaxed optimum of a box below the target, of the seconds or of another cost."""
        hops_s = self._hops_s(box)
        program = self._in_box(box, target_s - hops_s)
        if cost is not None:
            program = replace(program, cost=cost)
        value, point = least(program, self._optimise)
        return Relaxation(value + (hops_s if cost is None else 0.0), point)

    def _in_box(self, box: Box, target_s: float) -> SmallProgram:
        names, program = self.names, self._program
        low, high = program.low.copy(), program.high.copy()
        everyone = range(len(self.hosts))
        low[names.tokens], high[names.tokens] = box.least_tokens, box.most_tokens
        low[names.heads], high[names.heads] = box.least_heads, box.most_heads
        few = [_up(share, self.head_step[h]) for h, share in enumerate(box.least_heads)]
        many = [_up(share, self.head_step[h]) for h, share in enumerate(box.most_heads)]
        low[names.busiest], high[names.busiest] = few, many
        high[names.busiest_pairs] = [max(own, 1.0) * 2.0 for own in many]
        if self._block:
            steps = self._block_step
            low[names.blocks] = [_up(box.least_tokens[h], steps[h]) for h in everyone]
            high[names.blocks] = [_up(box.most_tokens[h], steps[h]) for h in everyone]
        fewest, most = sum(box.least_tokens), sum(box.most_tokens)
        for whole, bundle in zip(names.bundle, self.stage.bundles, strict=True):
            own_least = sum(box.least_tokens[h] for h in bundle)
            own_most = sum(box.most_tokens[h] for h in bundle)
            low[whole] = max(own_least, 1.0 - (most - own_most))
            high[whole] = min(own_most, 1.0 - (fewest - own_least))
        groups = self._group_step
        for number, busiest in enumerate(names.busiest_group):
            bundle, step = self.stage.bundles[number], groups[number]
            if step:
                low[busiest] = sum(_up(box.least_tokens[h], step) for h in bundle)
                high[busiest] = sum(_up(box.most_tokens[h], step) for h in bundle)
            else:
                low[busiest], high[busiest] = low[names.bundle[number]], high[names.bundle[number]]
        values, right = program.values.copy(), program.right.copy()
        _, one, other = self._products
        one_low, one_high, other_low, other_high = low[one], high[one], low[other], high[other]
        first, entries = self._rows.product_row, self._planes
        last = first + len(entries)
        values[entries + 1] = np.stack([-other_low, -other_high, other_low, other_high], 1).ravel()
        values[entries + 2] = np.stack([-one_low, -one_high, one_high, one_low], 1).ravel()
        right[first:last] = np.stack(
            [-one_low * other_low, -one_high * other_high, one_high * other_low,
             one_low * other_high], 1,
        ).ravel()  # fmt: skip
        # Rows are kept in units of their largest coefficient.
        if self.work.memory is not None:
            filled = self._rows.memory_values(self.work.memory, box.least_tokens)
            entries, first = self._memory_entries, self._rows.memory_row
            values[entries], values[entries + 1] = filled[0].T
            right[first : first + len(filled[1])] = filled[1]
        right[self._rows.cutoff_row] = -min(target_s, 1e9) / program.cost.max()
        return replace(program, values=values, right=right, low=low, high=high)

    def shrunk(self, box: Box, target_s: float) -> Box | None:
        """The box cut to where the relaxation can keep the target; None: nowhere."""
        names = self.names
        for end, numbers in ((0, names.tokens), (2, names.heads)):
            for host, number in enumerate(numbers):
                for side, sign in ((end, 1.0), (end + 1, -1.0)):
                    if box[end + 1][host] - box[end][host] < _ROUND:
                        continue
                    cost = np.zeros(names.count)
                    cost[number] = sign
                    value = self.relaxation(box, target_s, cost).seconds
                    if value == np.inf:
                        return None
                    ends = list(map(list, box))
                    if sign > 0:
                        ends[side][host] = max(ends[side][host], value - _ROUND)
                    else:
                        ends[side][host] = min(ends[side][host], _ROUND - value)
                    smaller = self.tightened(Box(*map(tuple, ends)))
                    if smaller is None:
                        return None
                    box = smaller
        return box

    def divided(self, box: Box, point: FloatArray, target_s: float) -> tuple[Box, Box] | None:
        """Two boxes without the point of a relaxation; None: it is as good as exact."""
        worst, best = _TOLERANCE * target_s, None
        for error, side, host, end in self._errors(box, point):
            if error > worst:
                worst, best = error, (side, host, end)
        return None if best is None else self._halves(box, point, *best)

    def halved(self, box: Box) -> tuple[Box, Box] | None:
        """The box divided across its widest side; None: it is a point."""
        width, side, host = max(
            (box[2 * side + 1][host] - box[2 * side][host], side, host)
            for side in (0, 1)
            for host in range(len(self.hosts))
        )
        if width < _ROUND:
            return None
        middle = np.zeros(self.names.count)
        ends = box[2 * side][host] + box[2 * side + 1][host]
        middle[(self.names.tokens, self.names.heads)[side][host]] = ends / 2
        return self._halves(box, middle, side, host, None)

    def _errors(self, box: Box, point: FloatArray) -> list[tuple[float, int, int, float | None]]:
        """(seconds, side, host, where): what dividing tokens (0) or heads (1) could change."""
        names, found = self.names, list[tuple[float, int, int, float | None]]()
        for host, bundle in enumerate(self._rows.bundle_of.tolist()):
            tokens, heads = point[names.tokens[host]], point[names.heads[host]]
            whole = point[names.bundle[bundle]]
            dense_s, attention_s, exchange_s = self._seconds[host]
            if self._block:
                step = self._block_step[host]
                up = _up(tokens, step)
                if box.least_tokens[host] <= up - step < box.most_tokens[host]:
                    found.append(((up - point[names.blocks[host]]) * dense_s, 0, host, up - step))
            step = self._group_step[bundle]
            if step:
                up = _up(tokens, step)
                error = (up - tokens) * attention_s * point[names.heads[host]]
                is_open = point[names.busiest_group[bundle]] < whole + (up - tokens) / 2
                if is_open and box.least_tokens[host] <= up - step < box.most_tokens[host]:
                    found.append((error, 0, host, up - step))
            if self._rows.alone[host]:
                continue
            step = self.head_step[host]
            up = _up(heads, step)
            error = (up * whole - point[names.busiest_pairs[host]]) * attention_s
            is_between = box.least_heads[host] <= up - step < box.most_heads[host]
            if is_between and up > point[names.busiest[host]] + _ROUND:
                found.append((error, 1, host, up - step))
            own = (point[names.own[host]] - tokens * heads) * exchange_s
            pairs = abs(point[names.pairs[host]] - whole * heads) * (exchange_s + attention_s)
            widths = (
                box.most_tokens[host] - box.least_tokens[host],
                box.most_heads[host] - box.least_heads[host],
            )
            found.append((max(own, pairs), int(widths[1] >= widths[0]), host, None))
        return found

    @cached_property
    def _seconds(self) -> list[tuple[float, float, float]]:
        """Dense, attention and all-to-all seconds of every host, of all layers."""
        load = self.work.load
        exchanged = load.query_bytes + load.kv_bytes + load.output_bytes
        totals = np.zeros((3, len(self.hosts)))
        for policy, weight in self.work.weights.items():
            own = self.work.hosts[policy]
            dense = 3.0 * own.dense_forward
            attention = own.attention_forward + own.attention_backward
            totals += weight * np.stack([dense, attention, 2.0 * exchanged / own.rate_in])
        return [(float(a), float(b), float(c)) for a, b, c in totals.T]

    def _halves(
        self, box: Box, point: FloatArray, side: int, host: int, end: float | None
    ) -> tuple[Box, Box] | None:
        """Boxes up to `end`, and from the next block or head on; by default near the point."""
        low, high = float(box[2 * side][host]), float(box[2 * side + 1][host])
        step = (self._block or _FINEST, self._head)[side]
        if high - low < _ROUND:
            return None
        if end is None:
            value = float(point[(self.names.tokens, self.names.heads)[side][host]])
            inner = _MIDDLE * (high - low)
            end = float(floor(min(max(value, low + inner), high - inner) / step + _ROUND) * step)
            end = min(max(end, low), high - step)
        gap = step if side or self._block else 0.0
        lower, upper = list(map(list, box)), list(map(list, box))
        lower[2 * side + 1][host], upper[2 * side][host] = end, end + gap
        return Box(*map(tuple, lower)), Box(*map(tuple, upper))


def _leave(least: list[float], most: list[float], members: Iterable[int]) -> None:
    """Shares of the members sum to 1: what the others cannot do is left, what they must is not."""
    members = list(members)
    room = sum(most[h] for h in members)
    for h in members:
        least[h] = max(least[h], 1.0 - (room - most[h]))
    taken = sum(least[h] for h in members)
    for h in members:
        most[h] = min(most[h], 1.0 - (taken - least[h]))


def _to_whole(least: list[float], most: list[float], step: float) -> None:
    for h in range(len(least)):
        least[h] = ceil(least[h] / step - _ROUND) * step
        most[h] = floor(most[h] / step + _ROUND) * step


def _up(share: float, step: float) -> float:
    return ceil(share / step - _ROUND) * step
