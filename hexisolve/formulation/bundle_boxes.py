"""A lower bound on a layer for one set of bundles: boxes of shares are halved until it is tight.

Symbols of `hexisolve.formulation.bundles`: X_h and eta_h are the tokens and the heads of host h,
X_S the tokens of its bundle S, A the seconds of all-to-all, G the head groups of a bundle, n_h the
devices of a host. A box limits every X_h, and A; its bound is the least time for which heads can be
found. Boxes with the least bound are halved first.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from hexisolve.formulation.pipeline_table import FloatArray
from hexisolve.formulation.relaxed_layer import two_work_bound_s
from hexisolve.formulation.work import REPEATS, LayerLoad
from hexisolve.plan.plan import Policy

_MAX_SPLIT = 256
_NEAR = 1.05  # boxes this close to the least bound are halved together
_NUM_BISECTIONS = 6
Bundle = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Hosts:
    """Seconds and rates of every host of a column, arrays over the hosts.

    Parameters
    ----------
    dense_forward, attention_forward, dense_backward, attention_backward
        Seconds if the host did all of that work alone.
    exchange
        Seconds of all-to-all per share of tokens times heads that crosses the host's border.
    rate_in
        Bytes/s into the host.
    device_exchange, device_rate
        The same for the border of one device; 0 and infinite where unknown.
    part_exchange, part_rate, part_size
        The same for the devices behind one edge inside the host, and how many they are; 0: none.
    num_devices
        Devices.
    """

    dense_forward: FloatArray
    attention_forward: FloatArray
    dense_backward: FloatArray
    attention_backward: FloatArray
    exchange: FloatArray
    rate_in: FloatArray
    device_exchange: FloatArray
    device_rate: FloatArray
    part_exchange: FloatArray
    part_rate: FloatArray
    part_size: FloatArray
    num_devices: FloatArray


@dataclass(frozen=True)
class BundledStage:
    """What is fixed: the bundles, and the number of head groups of those that have one."""

    bundles: tuple[Bundle, ...]
    groups: tuple[int | None, ...]


class Margins(NamedTuple):
    """Shares of the tokens.

    Parameters
    ----------
    slack
        How much more than its even share of its bundle a group may have, because of whole blocks.
    odd
        How much less than its share its pairs may be, because of pieces of odd size.
    block
        What one block is; 0 where blocks are not all whole.
    uneven
        How much more than the average of its host a device may have.
    """

    slack: float
    odd: float
    block: float
    uneven: float


class Boxes:
    """Boxes of X (one per host) and A.

    Parameters
    ----------
    load, policy, hosts
        The work.
    stage
        Its bundles; a bundle without a number of groups takes the best of every number in each row.
    margins
        What whole blocks and odd pieces change.
    target
        Bounds above it are not worked out: such boxes count with it.
    moved
        Bytes that enter every host beside forward and backward, around a ring of all devices.
    mother
        Boxes of the stage before one of its numbers of groups was fixed: halved so far.
    """

    def __init__(
        self, load: LayerLoad, policy: Policy, hosts: Hosts, stage: BundledStage,
        margins: Margins, target: float, moved: tuple[float, float], mother: Boxes | None = None,
    ) -> None:  # fmt: skip
        self.hosts, self.bundles = hosts, stage.bundles
        self.slack, self.odd, block, self.uneven = margins
        self.token_step = block * hosts.num_devices
        self.ring_again = REPEATS[policy][4]
        self.forward_bytes = load.ring_forward_bytes
        self.visiting_bytes, self.returning_bytes = load.ring_backward_bytes
        self.joint_dense = hosts.dense_forward + hosts.dense_backward
        self.joint_attention = hosts.attention_forward + hosts.attention_backward
        num_hosts = len(hosts.rate_in)
        # [host, host] 1 where both are of one bundle.
        self.same = np.zeros((num_hosts, num_hosts))
        self.groups = np.zeros(num_hosts)
        self.caps = np.ones(num_hosts)  # the most that the bundle of each can have
        for bundle, number in zip(stage.bundles, stage.groups, strict=True):
            self.same[np.ix_(bundle, bundle)] = 1.0
            self.groups[list(bundle)] = number or 0
        self.alone = self.same.sum(axis=1) == 1.0
        # Share of the heads that one head more per device is; a host's heads are whole anyway.
        known = self.groups > 0
        per_group = np.where(known, hosts.num_devices / np.maximum(self.groups, 1), 1.0)
        self.head_step = per_group / load.query_heads
        self.inside = self._inside_s(known)
        self.passes = self._passes(known)
        self.scale = float(1.0 / (1.0 / (self.joint_dense + self.joint_attention)).sum())
        self.target, self.moved = target, moved
        self.low, self.high, floor_s = self._first()
        if mother is not None:
            self.low, self.high, floor_s = mother.low, mother.high, mother.all_values
        self.all_values: FloatArray = np.maximum(self.values(self.low, self.high, floor_s), floor_s)
        open_ = self.all_values < target
        self.low, self.high = self.low[open_], self.high[open_]
        self.all_values = self.all_values[open_]

    def _inside_s(self, known: np.ndarray) -> FloatArray:
        """All-to-all seconds inside a host that has all heads, per share of the tokens."""
        hosts = self.hosts
        size = hosts.num_devices / np.maximum(self.groups, 1)  # devices of the host in a group
        per_device = 1.0 / hosts.num_devices
        device = per_device * (1.0 - 1.0 / size) * hosts.device_exchange
        # Devices behind one edge: the others of their group send to all of their heads.
        across = np.where(size > hosts.part_size, size - hosts.part_size, 0.0)
        part = per_device * hosts.part_size * across / size * hosts.part_exchange
        result: FloatArray = np.where(known & self.alone, np.maximum(device, part), 0.0)
        return result

    def _passes(self, known: np.ndarray) -> FloatArray:
        """Seconds per byte of all heads' K, V into one device, or part, that has all of a host's.

        0 where the number of groups is open.
        """
        hosts = self.hosts
        device = self.groups / hosts.num_devices / hosts.device_rate
        size = hosts.num_devices / np.maximum(self.groups, 1)
        part = np.minimum(hosts.part_size / size, 1.0) / hosts.part_rate
        result: FloatArray = np.where(known, np.maximum(device, part), 0.0)
        return result

    def _first(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """One box over all that can keep the target."""
        dense, attention = self.joint_dense, self.joint_attention
        least = two_work_bound_s(dense, attention)
        num_hosts = len(dense)
        low, high = np.zeros((1, num_hosts + 1)), np.ones((1, num_hosts + 1))
        busy = dense + np.where(self.alone, attention, 0.0)
        high[0, :-1] = np.minimum(self.target / busy, 1.0)
        high[0, -1] = 0.0 if self.alone.all() else max(self.target - least, 0.0)
        for bundle in self.bundles:
            own = list(bundle)
            cap = self.target / two_work_bound_s(dense[own], attention[own])
            self.caps[own] = min(cap, 1.0)
        (low, high), floor_s = self._tightened(low, high, np.zeros(1))
        return low, high, floor_s

    def _tightened(
        self, low: FloatArray, high: FloatArray, mothers: FloatArray
    ) -> tuple[tuple[FloatArray, FloatArray], FloatArray]:
        """Boxes cut to where shares sum to 1 and bundles have what they can do; empty ones go."""
        tokens, most = low[:, :-1], high[:, :-1]
        for _ in range(2):
            tokens = np.maximum(tokens, 1.0 - (most.sum(axis=1, keepdims=True) - most))
            # Seen from a host: other bundles can do `caps` at most, the rest is its bundle's.
            for bundle in self.bundles:
                own = list(bundle)
                outside = np.ones(most.shape[1], dtype=bool)
                outside[own] = False
                rest = 1.0 - self.caps[own[0]]
                room = most[:, outside]
                least = rest - (room.sum(axis=1, keepdims=True) - room)
                tokens[:, outside] = np.maximum(tokens[:, outside], least)
            most = np.minimum(most, 1.0 - (tokens.sum(axis=1, keepdims=True) - tokens))
            inside = self.caps - (tokens @ self.same - tokens)
            most = np.minimum(most, inside)
        exists = (tokens <= most + 1e-12).all(axis=1)
        low = np.concatenate([tokens, low[:, -1:]], axis=1)[exists]
        high = np.concatenate([np.maximum(most, tokens), high[:, -1:]], axis=1)[exists]
        return (low, high), mothers[exists]

    @property
    def least(self) -> float:
        """The bound so far."""
        return float(self.all_values.min(initial=self.target))

    def halve(self, num_rounds: int, deadline: float) -> bool:
        """Halve the boxes with the least bounds; False when nothing is left to gain."""
        for _ in range(num_rounds):
            values = self.all_values
            least = self.least
            if least >= self.target or time.monotonic() > deadline:
                return False
            chosen = np.flatnonzero(values <= least * _NEAR)
            if len(chosen) > _MAX_SPLIT:
                chosen = chosen[np.argsort(values[chosen], kind="stable")[:_MAX_SPLIT]]
            parts, mothers = (self.low[chosen], self.high[chosen]), values[chosen]
            # Few boxes are halved several times at once.
            for _ in range(1 + (len(chosen) <= 64) + (len(chosen) <= 16)):
                halves = self._halves(*parts)
                if halves is None:
                    return False
                parts, mothers = self._tightened(*halves, np.tile(mothers, 2))
            fresh = np.maximum(self.values(*parts, mothers), mothers)
            added = fresh < self.target
            stays = np.ones(len(values), dtype=bool)
            stays[chosen] = False
            self.low = np.concatenate([self.low[stays], parts[0][added]])
            self.high = np.concatenate([self.high[stays], parts[1][added]])
            self.all_values = np.concatenate([values[stays], fresh[added]])
        return True

    def _halves(self, low: FloatArray, high: FloatArray) -> tuple[FloatArray, FloatArray] | None:
        """Both halves of every box, across the side that matters most."""
        weights = np.append(self.joint_dense + self.joint_attention + self.hosts.exchange, 1.0)
        width = np.where(np.isfinite(high), high - low, 0.0) * weights
        if width.max(initial=0.0) <= 2e-4 * self.scale:
            return None
        side = width.argmax(axis=1)
        rows = np.arange(len(low))
        middle = (low[rows, side] + high[rows, side]) / 2
        upper, lower = low.copy(), high.copy()
        upper[rows, side] = middle
        lower[rows, side] = middle
        return np.concatenate([low, upper]), np.concatenate([lower, high])

    def values(self, low: FloatArray, high: FloatArray, floor_s: FloatArray) -> FloatArray:
        """Least F + B of every box, at least `floor_s`; the target where it is not below."""
        if not len(low):
            return np.zeros(0)
        hosts = self.hosts
        tokens, most = low[:, :-1], high[:, :-1]
        exists = (tokens.sum(axis=1) <= 1 + 1e-12) & (most.sum(axis=1) >= 1 - 1e-12)
        least = np.maximum(tokens - self.uneven * np.maximum(self.groups, 1.0), 0.0)
        exchange = np.maximum(low[:, -1], (least * self.inside).max(axis=1))
        # Some device of a host has at least the average, in whole blocks.
        blocks = tokens
        if self.token_step.all():
            blocks = np.ceil(tokens / self.token_step - 1e-9) * self.token_step
        dense_f = np.maximum(
            (hosts.dense_forward * blocks).max(axis=1), 1 / (1 / hosts.dense_forward).sum()
        )
        dense_b = np.maximum(
            (hosts.dense_backward * blocks).max(axis=1), 1 / (1 / hosts.dense_backward).sum()
        )
        absent = self._absent(tokens, most)
        ring_f, ring_b, link_f, link_b = self._ring(absent)
        ringed_f, ringed_b = dense_f + ring_f, dense_b + ring_b
        floor = ringed_f + ringed_b
        own_f, own_b = self._own_ring(absent)
        of_bundle = np.maximum(tokens @ self.same, 1.0 - most @ (1.0 - self.same))
        of_bundle = np.maximum(of_bundle - self.odd, 0.0)
        fewest, greatest_heads = self._heads(tokens, most, of_bundle, high[:, -1])
        # Ways a host can be late in a pass: other seconds, and seconds per share of the heads.
        # Links alone: exchanges and gathers of the same pass follow one another on a border, so
        # the seconds of all-to-all are not added there.
        forward = [
            (hosts.dense_forward * blocks, hosts.attention_forward * of_bundle),
            (ringed_f[:, None], np.zeros(1)),
        ]
        backward = [
            (hosts.dense_backward * blocks, hosts.attention_backward * of_bundle),
            (ringed_b[:, None], np.zeros(1)),
        ]
        if self.passes.any():
            forward.append((dense_f[:, None], own_f))
            backward.append((dense_b[:, None], own_b))
        crossing: tuple[FloatArray, FloatArray] | None = None
        if self.moved[0]:
            links = exchange[:, None]
            forward.append((link_f[:, None] - links, np.zeros(1)))
            backward.append((link_b[:, None] - links, np.zeros(1)))
            floor = np.maximum(floor, link_f + link_b - exchange)
            # The same at the port of a device, with what all-to-all inside the host needs there.
            ports = [moved / hosts.device_rate for moved in self.moved]
            forward.append((ports[0] - links, own_f))
            backward.append((ports[1] - links, own_b))
            busiest = (ports[0] + ports[1] + self.inside * least).max(axis=1)
            floor = np.maximum(floor, busiest - exchange)
            # What enters a host by all-to-all passes its border beside the ring and the gathers.
            others = np.maximum(tokens @ self.same - tokens, 0.0)
            crossing = (link_f + link_b - exchange)[:, None], hosts.exchange * others
        shape = (len(forward), len(backward), *tokens.shape)
        other, attention = np.empty(shape), np.empty(shape)
        for idx, (other_f, heads_f) in enumerate(forward):
            for k, (other_b, heads_b) in enumerate(backward):
                other[idx, k], attention[idx, k] = other_f + other_b, heads_f + heads_b
        other, attention = other.reshape(-1, *tokens.shape), attention.reshape(-1, *tokens.shape)
        if crossing is not None:
            other = np.concatenate([other, np.broadcast_to(crossing[0], tokens.shape)[None]])
            attention = np.concatenate([attention, crossing[1][None]])
        attention = np.maximum(attention, 1e-30)
        exists &= (fewest @ self.same <= 1.0 + 1e-12).all(axis=1)
        result = np.full(len(low), self.target)
        # In what is left after the exchange; most boxes end here.
        room = self.target - exchange
        open_ = np.flatnonzero(exists & (floor < room))
        late = (other[:, open_], attention[:, open_])
        limits = (fewest[open_], greatest_heads[open_])
        alive = self._is_enough(room[open_], late, limits)
        open_, late = open_[alive], (late[0][:, alive], late[1][:, alive])
        limits = (limits[0][alive], limits[1][alive])
        low_s, high_s = np.maximum(floor, floor_s - exchange)[open_], room[open_]
        for _ in range(_NUM_BISECTIONS):
            middle = (low_s + high_s) / 2
            enough = self._is_enough(middle, late, limits)
            high_s = np.where(enough, middle, high_s)
            low_s = np.where(enough, low_s, middle)
        result[open_] = exchange[open_] + low_s
        return result

    def _is_enough(
        self, seconds: FloatArray, late: tuple[FloatArray, FloatArray],
        limits: tuple[FloatArray, FloatArray],
    ) -> np.ndarray:  # fmt: skip
        """Whether the hosts of every bundle can do all heads in time."""
        (other, attention), (fewest, greatest) = late, limits
        heads = ((seconds[:, None] - other) / attention).min(axis=0, initial=2.0)
        # Whole heads on every device.
        heads = np.floor(heads / self.head_step + 1e-9) * self.head_step
        heads = np.minimum(heads, greatest)
        enough: np.ndarray = (heads >= fewest - 1e-12).all(axis=1)
        enough &= (heads @ self.same >= 1.0 - 1e-9).all(axis=1)
        return enough

    def _heads(
        self, tokens: FloatArray, most: FloatArray, of_bundle: FloatArray, exchange_most: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Least and greatest share of the heads of a host that A seconds of exchange allow."""
        hosts = self.hosts
        others = np.maximum(tokens @ self.same - tokens, 0.0)
        limit = exchange_most[:, None] / hosts.exchange
        greatest = np.minimum(limit / np.maximum(others, 1e-30), 1.0)
        fewest = np.maximum(1.0 - limit / np.maximum(tokens, 1e-30), 0.0)
        if self.passes.any():
            # The same for one device of the host, and for those behind one edge.
            for exchange, size in (
                (hosts.device_exchange, np.ones_like(hosts.num_devices)),
                (hosts.part_exchange, hosts.part_size),
            ):
                known = (self.groups > 0) & (exchange > 0) & (size > 0)
                per_group = hosts.num_devices / np.maximum(self.groups, 1)
                numbers = np.maximum(size / per_group, 1.0)  # groups with devices there
                share = np.minimum(size / per_group, 1.0)  # of the host's heads in such a group
                own = size / numbers / hosts.num_devices  # its tokens there
                limit = exchange_most[:, None] / np.maximum(exchange, 1e-30)
                into = of_bundle / np.maximum(self.groups, 1) - most * own
                spread = self.uneven * size / numbers  # of its devices in a group
                into = np.maximum((into - spread) * numbers * share, 1e-30)
                greatest = np.where(known, np.minimum(greatest, limit / into), greatest)
                out = np.maximum((tokens * own - spread) * numbers, 1e-30)
                needed = (1.0 - limit / out) / np.maximum(share, 1e-30)
                fewest = np.where(known, np.maximum(fewest, needed), fewest)
        return np.where(self.alone, 1.0, fewest), np.where(self.alone, 1.0, greatest)

    def _absent(self, tokens: FloatArray, most: FloatArray) -> list[FloatArray]:
        """What the group that owns most of a bundle's tokens misses, bundle by bundle."""
        absent = []
        for bundle in self.bundles:
            inside = list(bundle)
            outside = [h for h in range(tokens.shape[1]) if h not in bundle]
            share = np.minimum(most[:, inside].sum(axis=1), 1.0 - tokens[:, outside].sum(axis=1))
            number = self.groups[inside[0]]
            if number > 1:
                share = np.minimum(share / number + self.slack, share)
            share = share + self.odd
            absent.append(np.maximum(1.0 - share, 0.0))
        return absent

    def _ring(self, absent: list[FloatArray]) -> tuple[FloatArray, ...]:
        """Ring seconds across the borders of bundles, forward and backward, at least.

        Then the same with what is moved beside the layer.
        """
        none = np.zeros_like(absent[0])
        rates = [float(self.hosts.rate_in[list(bundle)].sum()) for bundle in self.bundles]
        # Moved bytes enter every host; of a bundle of several, each port takes its part.
        beside = [
            [len(bundle) * moved / rate for moved in self.moved]
            for bundle, rate in zip(self.bundles, rates, strict=True)
        ]
        if len(self.bundles) == 1:
            return none, none, none + beside[0][0], none + beside[0][1]
        forward, link_f = none, none
        for missing, rate, own in zip(absent, rates, beside, strict=True):
            seconds = missing * self.forward_bytes / rate
            forward, link_f = np.maximum(forward, seconds), np.maximum(link_f, seconds + own[0])
        backward, link_b = np.full_like(none, np.inf), np.full_like(none, np.inf)
        for rest in itertools.permutations(range(1, len(self.bundles))):
            turn = (0, *rest)
            slowest, busiest = none, none
            for before, idx in zip((turn[-1], *turn[:-1]), turn, strict=True):
                back = absent[idx] * self.visiting_bytes + absent[before] * self.returning_bytes
                seconds = back / rates[idx]
                again = self.ring_again * absent[idx] * self.forward_bytes / rates[idx]
                slowest = np.maximum(slowest, seconds)
                busiest = np.maximum(busiest, seconds + again + beside[idx][1])
            backward, link_b = np.minimum(backward, slowest), np.minimum(link_b, busiest)
        return forward, backward + self.ring_again * forward, link_f, link_b

    def _own_ring(self, absent: list[FloatArray]) -> tuple[FloatArray, FloatArray]:
        """Seconds of the ring per share of the heads into one device or part, ``[box, host]``."""
        shape = (len(absent[0]), len(self.passes))
        forward, backward = np.zeros((2, *shape))
        for idx, bundle in enumerate(self.bundles):
            if len(self.bundles) == 1 and self.groups[bundle[0]] == 1:
                continue  # no ring
            # The group before is one of the own bundle, or, where there is one group, another's.
            before = absent[idx]
            if self.groups[bundle[0]] == 1:
                before = np.min([own for k, own in enumerate(absent) if k != idx], axis=0)
            for host in bundle:
                seconds = float(self.passes[host])
                forward[:, host] = absent[idx] * self.forward_bytes * seconds
                back = absent[idx] * self.visiting_bytes + before * self.returning_bytes
                backward[:, host] = back * seconds + self.ring_again * forward[:, host]
        return forward, backward


def assign(
    stage: BundledStage, numbers: Sequence[Sequence[int]], slowness: Sequence[float]
) -> list[BundledStage]:
    """The stage with every number of groups for one more bundle: the slowest inside its hosts."""
    open_ = [idx for idx, number in enumerate(stage.groups) if number is None]
    if not open_:
        return []
    place = max(open_, key=lambda idx: (slowness[idx], len(stage.bundles[idx])))
    return [
        BundledStage(stage.bundles, (*stage.groups[:place], number, *stage.groups[place + 1 :]))
        for number in numbers[place]
    ]
