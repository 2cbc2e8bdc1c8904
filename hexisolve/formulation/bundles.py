"""A lower bound on a layer's seconds for stages over several hosts, by the bundles of its hosts.

On clusters of more than 8 devices the plan space joins hosts in *bundles* (docs/plan-space.md): a
head group lies in one bundle, all groups of a bundle are alike, and like devices of a host share
evenly. Bundles, numbers of groups, the turn of the ring, and boxes of tokens and heads are opened
with the least bound first (docs/formulation.md, R8); every value on the way is a lower bound.
"""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from hexisolve.formulation.bundle_hosts import Hosts
from hexisolve.formulation.bundle_program import Box, BundleProgram
from hexisolve.formulation.bundled_work import Bundle, BundledStage, BundledWork
from hexisolve.formulation.pipeline_table import FloatArray, IntArray
from hexisolve.formulation.small_program import Optimise
from hexisolve.formulation.whole_shares import largest_remainder

MAX_HOSTS = 4

_MAX_SETTLED = 4  # open boxes that are settled at once


class Suggestion(NamedTuple):
    """Whole shares near a relaxed optimum, with the seconds that the rows give them.

    Parameters
    ----------
    seconds
        Of all layers.
    stage
        Nothing is open.
    blocks, heads
        Of every host.
    """

    seconds: float
    stage: BundledStage
    blocks: tuple[int, ...]
    heads: tuple[int, ...]


class BundledLayer:
    """Least F + B seconds of the layers of a `BundledWork` over all bundles of their hosts.

    The launches of a layer are not counted, those of ring hops are. Never more than `enough_s`:
    nobody asks for more. `bound_s` is valid at any time; `run` raises it.

    0 for one host and for more than `MAX_HOSTS`, where this bound is not computed.

    Parameters
    ----------
    work
        What is done.
    optimise
        Solves small programs.
    enough_s
        The most that is wanted.
    floor_s
        By bundles, what is known before; such bundles are looked at only when it matters.
    """

    def __init__(
        self,
        work: BundledWork,
        optimise: Optimise,
        enough_s: float,
        floor_s: Callable[[tuple[Bundle, ...]], float] | None = None,
    ) -> None:
        self.work, self._optimise = work, optimise
        self._order = itertools.count()
        self._programs: dict[BundledStage, BundleProgram] = {}
        self._open: list[tuple[float, int, BundledStage, Box | None, FloatArray | None]] = []
        self._closed_s = np.inf
        self._closed_of: dict[tuple[Bundle, ...], float] = {}
        self._closed: tuple[float, BundledStage, FloatArray | None] | None = None
        self._target_s = enough_s if 2 <= len(work.any_hosts) <= MAX_HOSTS else 0.0
        # Bundles whose boxes are not cut down yet; their number is in the heap.
        self._fresh: set[BundledStage] = set()
        self._settled: set[tuple[object, ...]] = set()
        if self._target_s:
            hosts = work.any_hosts
            for bundles in _partitions(tuple(range(len(hosts)))):
                if _is_first_of_twins(bundles, hosts):
                    stage = BundledStage(bundles, (None,) * len(bundles), None)
                    self._fresh.add(stage)
                    floor = 0.0 if floor_s is None else floor_s(bundles)
                    if floor < self._target_s:
                        heapq.heappush(self._open, (floor, next(self._order), stage, None, None))

    @property
    def bound_s(self) -> float:
        """What is proved so far."""
        least = min(self._open[0][0] if self._open else np.inf, self._closed_s)
        return float(min(least, self._target_s))

    @property
    def is_done(self) -> bool:
        """Whether `run` cannot raise the bound."""
        return not self._open or self._open[0][0] >= min(self._target_s, self._closed_s)

    def bound_of(self, bundles: tuple[Bundle, ...]) -> float:
        """What is proved so far of stages with these bundles."""
        closed = self._closed_of.get(bundles, np.inf)
        own = [entry[0] for entry in self._open if entry[2].bundles == bundles]
        return float(min(self._target_s, closed, *own))

    def expect(self, enough_s: float) -> None:
        """Ask for no more than this from now on."""
        self._target_s = min(self._target_s, enough_s)

    def run(self, pause_s: float, deadline: float = np.inf) -> None:
        """Raise the bound to `pause_s`, or until it is done or the deadline has come.

        The deadline is on `time.monotonic`.
        """
        while not self.is_done and self.bound_s < pause_s and time.monotonic() < deadline:
            value, _, stage, box, point = heapq.heappop(self._open)
            program = self._program(stage)
            if box is None:
                self._push(stage, program.first_box(), value)
                continue
            if stage in self._fresh:
                self._fresh.discard(stage)
                self._push(stage, program.shrunk(box, self._target_s), value)
                continue
            if len(stage.bundles) > 2 and stage.turn is None:
                for rest in itertools.permutations(range(1, len(stage.bundles))):
                    self._push(stage._replace(turn=(0, *rest)), box, value)
                continue
            if point is None:
                parts = program.halved(box)
            else:
                parts = program.divided(box, point, self._target_s)
            if parts is not None:
                for part in parts:
                    self._push(stage, part, value)
                continue
            opened = self._with_groups(stage)
            if not opened:
                known = self._closed_of.get(stage.bundles, np.inf)
                self._closed_of[stage.bundles] = min(known, value)
            if not opened and value < self._closed_s:
                self._closed_s = value
                self._closed = (value, stage, point)
            for each in opened:
                self._push(each, box, value)

    def _program(self, stage: BundledStage) -> BundleProgram:
        known = self._programs.get(stage)
        if known is None:
            known = BundleProgram(self.work, stage, self._optimise, self._target_s)
            self._programs[stage] = known
        return known

    def _push(self, stage: BundledStage, box: Box | None, floor_s: float) -> None:
        program = self._program(stage)
        box = None if box is None else program.tightened(box)
        if box is None:
            return
        found = program.relaxation(box, self._target_s)
        value = max(found.seconds, floor_s)
        if value >= self._target_s:
            return
        point = found.point
        heapq.heappush(self._open, (value, next(self._order), stage, box, point))

    def suggestions(self) -> list[Suggestion]:
        """Whole shares near the relaxed optima with the least bounds, best first.

        What is still open of them is chosen bundle by bundle, the number of groups with the least
        seconds. Heads that were suggested before are not suggested again.
        """
        while self._open and self._open[0][3] is None and self._open[0][0] < self._target_s:
            value, _, stage, _, _ = heapq.heappop(self._open)
            self._push(stage, self._program(stage).first_box(), value)
        found, stages = list[Suggestion](), set[tuple[Bundle, ...]]()
        least = [
            (value, stage, point)
            for value, _, stage, _, point in heapq.nsmallest(4 * _MAX_SETTLED, self._open)
        ]
        if self._closed is not None:
            least.insert(0, self._closed)
        for value, stage, point in least:
            if value >= self._target_s or len(stages) == _MAX_SETTLED:
                break
            if point is None or stage.bundles in stages:
                continue
            stages.add(stage.bundles)
            suggestion = self._whole(stage, point)
            if suggestion is not None:
                found.append(suggestion)
        return sorted(found, key=lambda own: own.seconds)

    def _whole(self, stage: BundledStage, point: FloatArray) -> Suggestion | None:
        program = self._program(stage)
        num_heads = self.work.load.query_heads
        heads = np.zeros(len(self.work.any_hosts), dtype=np.int64)
        for bundle in stage.bundles:
            own = list(bundle)
            heads[own] = _rounded(point[program.names.heads][own], num_heads)
        if (stage, *heads.tolist()) in self._settled:
            return None
        self._settled.add((stage, *heads.tolist()))
        if len(stage.bundles) > 2 and stage.turn is None:
            stage = stage._replace(turn=tuple(range(len(stage.bundles))))
        shares = tuple((heads / num_heads).tolist())
        # With whole heads the best tokens are a linear program; the rest suits whole blocks.
        none, everything = (0.0,) * len(heads), (1.0,) * len(heads)
        best = self._program(stage).relaxation(Box(none, everything, shares, shares), np.inf)
        if best.point is None:
            return None
        blocks = _rounded(best.point[program.names.tokens], self.work.num_blocks)
        tokens = tuple((blocks / self.work.num_blocks).tolist())
        box = Box(tokens, tokens, shares, shares)
        seconds = self._program(stage).relaxation(box, np.inf).seconds
        while None in stage.groups:
            choices = [
                (self._program(each).relaxation(box, np.inf).seconds, each)
                for each in self._with_groups(stage)
            ]
            seconds, stage = min(choices, key=lambda choice: choice[0])
        return Suggestion(seconds, stage, tuple(blocks.tolist()), tuple(heads.tolist()))

    def _with_groups(self, stage: BundledStage) -> list[BundledStage]:
        """The stage with every number of groups for one more bundle: the slowest in its hosts."""
        hosts = self.work.any_hosts
        open_ = [idx for idx, number in enumerate(stage.groups) if number is None]
        if not open_:
            return []

        def slowness(idx: int) -> tuple[float, int]:
            own = list(stage.bundles[idx])
            return -float(hosts.device_in[own].min()), len(own)

        place = max(open_, key=slowness)
        groups = stage.groups
        return [
            stage._replace(groups=(*groups[:place], number, *groups[place + 1 :]))
            for number in numbers_of_groups(stage.bundles[place], hosts)
        ]


def _rounded(shares: FloatArray, total: int) -> IntArray:
    whole: IntArray = largest_remainder(np.maximum(shares, 0.0)[None], total)[0]
    return whole


def numbers_of_groups(bundle: Bundle, hosts: Hosts) -> list[int]:
    """Numbers that divide the devices of every host of a bundle."""
    sizes = [int(hosts.num_devices[host]) for host in bundle]
    return [number for number in range(1, min(sizes) + 1) if not any(s % number for s in sizes)]


def _is_first_of_twins(bundles: tuple[Bundle, ...], hosts: Hosts) -> bool:
    """Whether no exchange of two equal hosts gives bundles that come before these."""
    kinds = hosts.key
    own = _sorted(bundles)
    for one, other in itertools.combinations(range(len(kinds)), 2):
        if (kinds[one] == kinds[other]).all():
            swap = {one: other, other: one}
            moved = tuple(tuple(swap.get(h, h) for h in bundle) for bundle in bundles)
            if _sorted(moved) < own:
                return False
    return True


def _sorted(bundles: tuple[Bundle, ...]) -> list[Bundle]:
    return sorted(tuple(sorted(bundle)) for bundle in bundles)


def _partitions(items: Bundle) -> Iterator[tuple[Bundle, ...]]:
    """All ways to put hosts in bundles, many bundles first."""
    if not items:
        yield ()
        return
    first, rest = items[0], items[1:]
    for others in _partitions(rest):
        yield ((first,), *others)
        for idx, bundle in enumerate(others):
            yield (*others[:idx], (first, *bundle), *others[idx + 1 :])
