"""Token and head shares of a ring: water-filling, rounding, hill climbing on the price."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import combinations, pairwise, product
from math import comb, prod
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hexisolve.formulation.whole_shares import largest_remainder
from hexisolve.solvers.realise_gauge import Floats, Ints
from hexisolve.solvers.realise_structures import Groups

# Rings with at most this many ways to share tokens and heads are searched completely.
MAX_ALL_SHARES = 3000
MAX_CLIMBS = 60

# (tokens, heads) of candidates -> seconds, one answer for each row.
Objective = Callable[[Ints, Ints], Floats]


class ClassMembers(NamedTuple):
    """Ranks that nothing tells apart: ``ranks[group][member]``, equally many in every group."""

    ranks: Ints
    kind: int


class ShareSpace:
    """Shares of a ring written as totals of classes of like ranks.

    Inside a class tokens are spread as evenly as whole blocks allow, first over its groups, then
    inside them; heads are the same in all groups of one kind.

    Parameters
    ----------
    groups
        Devices of every head group.
    device_key
        What tells devices apart: rates, memory, links.
    num_tokens, block_tokens
        Context, and the unit of shares; what is left over goes to the first rank.
    num_heads
        Query heads of a layer.
    """

    def __init__(
        self,
        groups: Groups,
        device_key: Callable[[str], object],
        num_tokens: int,
        block_tokens: int,
        num_heads: int,
    ) -> None:
        keys = [[device_key(device) for device in group] for group in groups]
        self.num_ranks = sum(map(len, groups))
        self.starts: Ints = np.cumsum([0, *map(len, groups)])[:-1]
        self.num_groups = len(groups)
        self.num_units, self.left_over = divmod(num_tokens, block_tokens)
        self.block_tokens, self.num_heads = block_tokens, num_heads
        heads = prod(comb(num_heads + len(group) - 1, len(group) - 1) for group in groups)
        self.is_small = heads * num_compositions(self.num_units, self.num_ranks) <= MAX_ALL_SHARES
        if self.is_small:
            keys = [list(group) for group in groups]
        kinds: dict[tuple[object, ...], list[int]] = {}
        for idx, group_keys in enumerate(keys):
            kinds.setdefault(tuple(sorted(group_keys, key=repr)), []).append(idx)
        self.classes: list[ClassMembers] = []
        for kind, members in enumerate(kinds.values()):
            for key in dict.fromkeys(keys[members[0]]):
                ranks = [
                    [self.starts[g] + r for r, own in enumerate(keys[g]) if own == key]
                    for g in members
                ]
                self.classes.append(ClassMembers(np.array(ranks), kind))
        self.num_kinds = len(kinds)
        # [rank, class]: members of a class, and those in its first group.
        self._members: Floats = np.zeros((self.num_ranks, len(self.classes)))
        self._first_members: Floats = np.zeros_like(self._members)
        for idx, members_of in enumerate(self.classes):
            self._members[members_of.ranks.ravel(), idx] = 1.0
            self._first_members[members_of.ranks[0], idx] = 1.0

    def expand(self, units: Ints, heads: Ints) -> tuple[Ints, Ints]:
        """(tokens, heads) of every rank from totals of every class; one row for each candidate."""
        num_rows = len(units)
        rank_units = np.zeros((num_rows, self.num_ranks), dtype=np.int64)
        rank_heads = np.zeros((num_rows, self.num_ranks), dtype=np.int64)
        for idx, (ranks, _) in enumerate(self.classes):
            num_groups, size = ranks.shape
            per_group = _spread(units[:, idx], num_groups)
            rank_units[:, ranks] = _spread(per_group, size)
            rank_heads[:, ranks] = _spread(heads[:, idx], size)[:, None, :]
        tokens = rank_units * self.block_tokens
        tokens[:, 0] += self.left_over
        return tokens, rank_heads

    def rounded(self, tokens: npt.ArrayLike, heads: npt.ArrayLike) -> tuple[Ints, Ints]:
        """Totals of classes nearest to real shares of ranks, one row for each candidate."""
        weights = np.atleast_2d(np.asarray(tokens, dtype=np.float64)) @ self._members
        own = np.atleast_2d(np.asarray(heads, dtype=np.float64)) @ self._first_members
        whole = np.zeros(own.shape, dtype=np.int64)
        for kind in range(self.num_kinds):
            columns = [idx for idx, c in enumerate(self.classes) if c.kind == kind]
            whole[:, columns] = largest_remainder(own[:, columns], self.num_heads)
        return largest_remainder(weights, self.num_units), whole

    def all_shares(self) -> tuple[Ints, Ints]:
        """Every candidate of a small space."""
        units = list(compositions(self.num_units, len(self.classes)))
        own = [
            [idx for idx, c in enumerate(self.classes) if c.kind == kind]
            for kind in range(self.num_kinds)
        ]
        rows = []
        for parts in product(*(list(compositions(self.num_heads, len(m))) for m in own)):
            row = [0] * len(self.classes)
            for members, part in zip(own, parts, strict=True):
                for idx, count in zip(members, part, strict=True):
                    row[idx] = count
            rows.append(row)
        return np.repeat(units, len(rows), axis=0), np.tile(rows, (len(units), 1))

    def neighbours(self, units: Ints, heads: Ints) -> tuple[Ints, Ints]:
        """Moves of blocks from class to class, and of heads inside one kind of group.

        Heads move alone and with their share of the blocks.
        """
        unit_rows, head_rows = [], []
        for a, giver in enumerate(self.classes):
            for b, taker in enumerate(self.classes):
                if a == b:
                    continue
                total, sizes = int(units[0, a]), (giver.ranks.size, taker.ranks.size)
                # Down to equal ranks of the giver, up to equal ranks of the taker.
                even = (total % sizes[0], -int(units[0, b]) % sizes[1])
                for step in steps(total, *sizes, *even):
                    row = units[0].copy()
                    row[a] -= step
                    row[b] += step
                    unit_rows.append(row)
                    head_rows.append(heads[0])
                if giver.kind != taker.kind:
                    continue
                in_group = (giver.ranks.shape[1], taker.ranks.shape[1])
                for step in steps(int(heads[0, a]), *in_group):
                    row = heads[0].copy()
                    row[a] -= step
                    row[b] += step
                    unit_rows.append(units[0])
                    head_rows.append(row)
                    along = int(step * units[0, a] // max(heads[0, a], 1))
                    if along:
                        moved = units[0].copy()
                        moved[a] -= along
                        moved[b] += along
                        unit_rows.append(moved)
                        head_rows.append(row)
        return np.array(unit_rows), np.array(head_rows)

    def best(
        self,
        objective: Objective,
        tokens: Sequence[float],
        heads: Sequence[float],
        memory: Sequence[int],
        keep: int,
    ) -> list[tuple[Ints, Ints]]:
        """Shares of least seconds, best first: all of a small space, else by hill climbing.

        Parameters
        ----------
        objective
            Seconds of candidates; infinite where one is not allowed.
        tokens, heads
            Real shares to start from, rank by rank.
        memory
            Capacity of every rank.
        keep
            How many candidates of a small space to give back: the fastest, and as many of those
            that fill no rank's memory much more than another's.
        """
        if self.is_small:
            rows = self.expand(*self.all_shares())
            seconds = objective(*rows)
            pressure = (rows[0] / np.array(memory)).max(axis=1)
            fastest = np.argsort(seconds, kind="stable")[:keep]
            lightest = np.lexsort((seconds, pressure))[:keep]
            order = [i for i in dict.fromkeys([*fastest, *lightest]) if np.isfinite(seconds[i])]
            return [(rows[0][i], rows[1][i]) for i in order]
        units, counts = self.rounded(tokens, heads)
        best_s = float(objective(*self.expand(units, counts))[0])
        for _ in range(MAX_CLIMBS if len(self.classes) > 1 else 0):
            near = self.neighbours(units, counts)
            seconds = objective(*self.expand(*near))
            first = int(np.argmin(seconds))
            if not seconds[first] < best_s * (1 - 1e-9):
                break
            best_s = float(seconds[first])
            units, counts = near[0][first : first + 1], near[1][first : first + 1]
        if not np.isfinite(best_s):
            return []
        found = self.expand(units, counts)
        return [(found[0][0], found[1][0])]


def num_compositions(total: int, num_parts: int) -> int:
    """How many `compositions` there are.

    >>> num_compositions(4, 3)
    15
    """
    return comb(total + num_parts - 1, num_parts - 1)


def compositions(total: int, num_parts: int) -> Iterator[tuple[int, ...]]:
    """Every way to write `total` as an ordered sum of `num_parts` counts >= 0.

    >>> list(compositions(1, 2))
    [(0, 1), (1, 0)]
    """
    for bars in combinations(range(total + num_parts - 1), num_parts - 1):
        edges = (-1, *bars, total + num_parts - 1)
        yield tuple(b - a - 1 for a, b in pairwise(edges))


def _spread(totals: Ints, num_parts: int) -> Ints:
    """Whole parts that differ by at most one, on a new last axis; the first ones are larger."""
    low, extra = np.divmod(totals, num_parts)
    parts: Ints = low[..., None] + (np.arange(num_parts) < extra[..., None])
    return parts


@lru_cache(maxsize=65536)
def steps(total: int, *sizes: int) -> tuple[int, ...]:
    """How much to move at once: powers of four, and some sizes that matter.

    >>> steps(20, 8, 32)
    (1, 4, 8, 16)
    """
    found = {size for size in sizes if 0 < size <= total}
    step = 1
    while step <= total:
        found.add(step)
        step *= 4
    return tuple(sorted(found))
