"""A lower bound on a layer's seconds for stages over several hosts, by the bundles of its hosts.

On clusters of more than 8 devices the plan space joins hosts in *bundles* (docs/plan-space.md): a
head group lies in one bundle, all groups of a bundle are alike, and like devices of a host share
evenly. With X_h the tokens and eta_h the heads of host h, X_S the tokens of its bundle S and G the
groups of it (docs/formulation.md, R8):

* attention of h takes ``X_S eta_h`` of the whole, in whole heads per device;
* by all-to-all ``(X_S - X_h) eta_h`` of q, K, V enter host h, ``X_h (1 - eta_h)`` leave it; of a
  host alone in its bundle, ``X_h / n_h (1 - G / n_h)`` enter each of its n_h devices;
* by the ring ``1 - X_S / G`` of K and V reach the first group of a bundle, and as much for its own
  heads reaches each device.

Bundles and numbers of groups are opened with the least bound first; every value on the way is a
lower bound.
"""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Iterator

import numpy as np

from hexisolve.data.constants import CostConstants
from hexisolve.formulation.bundle_boxes import (
    Boxes,
    Bundle,
    BundledStage,
    Hosts,
    Margins,
    assign,
)
from hexisolve.formulation.cuts import Cut
from hexisolve.formulation.relaxed_layer import ColumnShape, exchange_s
from hexisolve.formulation.work import REPEATS, LayerLoad
from hexisolve.plan.plan import Policy

MAX_HOSTS = 4
_NUM_ROUNDS = 6  # of halving between two looks at what is least
_OPEN_ROUNDS = 12  # before a number of groups is fixed
_MAX_ROUNDS = 600


class BundledLayer:
    """Least F + B seconds of a layer over all bundles of the hosts of a column.

    The launches of the layer are not counted, those of ring hops are. Never more than the fastest
    host alone needs: a column without the others is no slower. Nor more than `enough_s`: nobody
    asks for more. `bound_s` is valid at any time; `run` raises it.

    `moved_bytes` pass every border beside forward and backward: gathers and gradient sums.

    `uneven_share` is a block's share of the longest sequence, where this is a shorter one.

    0 for one host and for more than `MAX_HOSTS`, where this bound is not computed.
    """

    def __init__(
        self,
        load: LayerLoad,
        policy: Policy,
        column: ColumnShape,
        cost: CostConstants,
        num_tokens: int,
        block_tokens: int,
        enough_s: float = np.inf,
        moved_bytes: tuple[float, float] = (0.0, 0.0),
        uneven_share: float = 0.0,
    ) -> None:
        self.load, self.policy, self._moved = load, policy, moved_bytes
        num_hosts = len(column.hosts)
        self._order = itertools.count()
        self._open: list[tuple[float, int, int, BundledStage, Boxes]] = []
        self._closed_s = np.inf
        self._target_s = 0.0
        if not 2 <= num_hosts <= MAX_HOSTS or not load.is_proportional:
            return
        self._hosts = hosts = _hosts(load, policy, column)
        # Groups take blocks in turn; pieces of odd size have a few pairs less than their share.
        # Shares are weights of the longest sequence, in blocks; others are dealt by the token.
        uneven = max(block_tokens / num_tokens, uneven_share) + 1.0 / num_tokens
        self._margins = Margins(
            slack=num_hosts * uneven,
            odd=2.0 * len(column.devices) / (num_tokens + 1),
            block=0.0 if num_tokens % block_tokens else block_tokens / num_tokens,
            uneven=uneven,
        )
        self._hop_s = cost.launch_overhead_s * (2 + REPEATS[policy][4])
        alone = (hosts.dense_forward + hosts.dense_backward + hosts.attention_forward
                 + hosts.attention_backward)  # fmt: skip
        self._target_s = min(float(alone.min()), enough_s)
        for bundles in _partitions(tuple(range(num_hosts))):
            if _is_first_of_twins(bundles, hosts):
                self._push(BundledStage(bundles, (None,) * len(bundles)), 0.0)

    @property
    def bound_s(self) -> float:
        """What is proved so far."""
        least = min(self._open[0][0] if self._open else np.inf, self._closed_s)
        return float(min(least, self._target_s))

    @property
    def is_done(self) -> bool:
        """Whether `run` cannot raise the bound."""
        return not self._open or self._open[0][0] >= min(self._target_s, self._closed_s)

    def run(self, pause_s: float, deadline: float = np.inf) -> None:
        """Raise the bound to `pause_s`, or until it is done or the deadline has come.

        The deadline is on `time.monotonic`.
        """
        while not self.is_done and self.bound_s < pause_s and time.monotonic() < deadline:
            value, _, rounds, stage, boxes = heapq.heappop(self._open)
            most = _MAX_ROUNDS if None not in stage.groups else _OPEN_ROUNDS
            goes_on = rounds < most and boxes.halve(_NUM_ROUNDS, deadline)
            value = max(value, boxes.least + self._hops_s(stage))
            if value >= self._target_s:
                continue
            if goes_on or time.monotonic() > deadline:
                entry = (value, next(self._order), rounds + _NUM_ROUNDS, stage, boxes)
                heapq.heappush(self._open, entry)
                continue
            numbers = [_numbers_of_groups(bundle, self._hosts) for bundle in stage.bundles]
            slowness = [
                float(self._hosts.device_exchange[list(bundle)].max()) for bundle in stage.bundles
            ]
            opened = assign(stage, numbers, slowness)
            if not opened:
                self._closed_s = min(self._closed_s, value)
            for each in opened:
                self._push(each, value, boxes)

    def _hops_s(self, stage: BundledStage) -> float:
        return (sum(number or 1 for number in stage.groups) - 1) * self._hop_s

    def _push(self, stage: BundledStage, floor_s: float, mother: Boxes | None = None) -> None:
        hops_s = self._hops_s(stage)
        target = self._target_s - hops_s
        boxes = Boxes(
            self.load, self.policy, self._hosts, stage, self._margins, target, self._moved, mother
        )
        value = max(boxes.least + hops_s, floor_s)
        heapq.heappush(self._open, (value, next(self._order), 0, stage, boxes))


def _numbers_of_groups(bundle: Bundle, hosts: Hosts) -> list[int]:
    """Numbers that divide the devices of every host of a bundle."""
    sizes = [int(hosts.num_devices[host]) for host in bundle]
    return [number for number in range(1, min(sizes) + 1) if not any(s % number for s in sizes)]


def _is_first_of_twins(bundles: tuple[Bundle, ...], hosts: Hosts) -> bool:
    """Whether no exchange of two equal hosts gives bundles that come before these."""
    kinds = np.stack(list(vars(hosts).values()), axis=1)
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


def _hosts(load: LayerLoad, policy: Policy, column: ColumnShape) -> Hosts:
    repeats = REPEATS[policy]
    attention_backward = load.attention_backward_s + repeats[1] * load.attention_forward_s
    rates = {cut.inside: (cut.in_bytes_per_s, cut.out_bytes_per_s) for cut in column.cuts}
    everything = load.query_bytes + load.kv_bytes
    rows = []
    for host in column.hosts:
        own = list(host)
        dense = load.dense_s[own]
        # max_r (d_r x_r + a_r y_r) >= sum_r w_r (..) with w_r in proportion to 1 / d_r.
        pooled = 1.0 / (1.0 / dense).sum()
        into, out = rates.get(tuple(host), (np.inf, np.inf))
        device = float(column.own_bytes_per_s[own].max())
        parts = [cut for cut in column.cuts if set(cut.inside) < set(host)]
        part_s, part_rate, size = _narrowest_part(load, policy, everything, parts, host)
        rows.append(
            (
                pooled,
                pooled * (load.attention_forward_s[own] / dense).min(),
                (2 + repeats[0]) * pooled,
                pooled * (attention_backward[own] / dense).min(),
                exchange_s(load, policy, everything, into, out),
                into,
                exchange_s(load, policy, everything, device, device),
                device,
                part_s,
                part_rate,
                size,
                len(host),
            )
        )
    return Hosts(*np.array(rows, dtype=float).T)


def _narrowest_part(
    load: LayerLoad, policy: Policy, num_bytes: float, parts: list[Cut], host: tuple[int, ...]
) -> tuple[float, float, int]:
    """Seconds per crossing share, bytes/s in, and size of the part that is slowest to reach.

    Only runs of devices that groups of consecutive devices cannot straddle: their size divides the
    host's number, and they begin at a multiple of it.
    """
    best = (0.0, np.inf, 0)
    for cut in parts:
        size = len(cut.inside)
        first = min(cut.inside) - min(host)
        is_run = max(cut.inside) - min(cut.inside) + 1 == size
        if len(host) % size or first % size or not is_run:
            continue
        seconds = exchange_s(load, policy, num_bytes, cut.in_bytes_per_s, cut.out_bytes_per_s)
        if seconds * size > best[0] * best[2]:
            best = (seconds, cut.in_bytes_per_s, size)
    return best
