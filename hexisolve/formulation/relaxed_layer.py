"""A lower bound on the seconds of one layer, forward and backward, on a set of devices.

It holds for *every* internal arrangement: any head groups, ring order, token shares and heads.
The arguments, numbered R1-R7, are in docs/formulation.md. Symbols: device r has the token share
x_r and the share y_r of the attention; d_r, a_r are its seconds if it did all dense, all
attention work; A the seconds of all-to-all; G the number of head groups.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from hexisolve.data.cluster import Device
from hexisolve.data.constants import CostConstants
from hexisolve.formulation.cuts import Cut, CutRates, column_cuts
from hexisolve.formulation.pipeline_table import FloatArray
from hexisolve.formulation.work import REPEATS, LayerLoad
from hexisolve.plan.plan import Policy

# Cells into which the range of A is cut; the bound loses at most one cell.
_NUM_CELLS = 24
_MAX_EXACT = 3
_NUM_SEGMENTS = 8
# How far shares of tokens can be uneven depends on how long a layer takes: ranges of its time, as
# multiples of the compute bound, are looked at one after the other (R4).
_STRETCHES = (1.01, 1.03, 1.06, 1.12, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0, 1e9)
_FRACTIONS = (0, 0.002, 0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3, 0.5,
              0.75, 1.0, 1.5, 2.5, 4.0, 8.0)  # fmt: skip


@dataclass(frozen=True, eq=False)
class ColumnShape:
    """The devices of a column and what can flow between them.

    Parameters
    ----------
    numbers
        Device numbers in the cluster.
    devices
        The devices, in the same order.
    cuts
        Sets of devices with limited borders: hosts, devices behind one switch.
    device_bytes_per_s
        Sum over the devices of what each can receive from, or send to, the others (the lesser).
    own_bytes_per_s
        Per device, the larger of what it can receive and send.
    slowest_bytes_per_s
        Narrowest border that a ring over all devices must enter.
    """

    numbers: tuple[int, ...]
    devices: tuple[Device, ...]
    cuts: tuple[Cut, ...]
    device_bytes_per_s: float
    own_bytes_per_s: FloatArray
    slowest_bytes_per_s: float

    @cached_property
    def hosts(self) -> tuple[tuple[int, ...], ...]:
        """Positions of the devices of every host."""
        hosts: dict[str, list[int]] = {}
        for idx, device in enumerate(self.devices):
            hosts.setdefault(device.host, []).append(idx)
        return tuple(map(tuple, hosts.values()))

    @cached_property
    def _kinds(self) -> set[tuple[str, int, float, float, float]]:
        """Hosts with what tells their devices apart."""
        return {
            (d.host, d.memory_bytes, d.dense_flop_per_s, d.attention_forward_flop_per_s,
             d.attention_backward_flop_per_s)
            for d in self.devices
        }  # fmt: skip

    @cached_property
    def has_like_hosts(self) -> bool:
        """Whether the devices of every host are equal."""
        return len(self._kinds) == len(self.hosts)

    @cached_property
    def is_uniform(self) -> bool:
        """Whether all devices are of equal speed and memory and share a host."""
        return len(self._kinds) == 1


def column_shape(rates: CutRates, numbers: Sequence[int]) -> ColumnShape:
    """Collect the cuts of a column."""
    cluster = rates.network.cluster
    devices = tuple(cluster.devices[number] for number in numbers)
    received, sent = [], []
    if len(numbers) > 1:
        everyone = range(len(cluster.devices)) if len(numbers) > _MAX_EXACT else numbers
        for number in numbers:
            # More senders than there are can only raise the limit.
            others = [other for other in everyone if other != number]
            received.append(rates.rate_bytes_per_s(others, [number]))
            sent.append(rates.rate_bytes_per_s([number], others))
    cuts = column_cuts(rates, numbers, [device.host for device in devices])
    slowest = min((*received, *(cut.in_bytes_per_s for cut in cuts)), default=np.inf)
    own = np.maximum(received, sent)
    total = min(sum(received), sum(sent))
    return ColumnShape(tuple(numbers), devices, cuts, total, own, slowest)


def compute_bound_s(seconds: FloatArray) -> float:
    """R1 for one kind of work: ``1 / sum 1 / c_r``, all devices busy until the end."""
    return float(1.0 / (1.0 / seconds).sum())


def two_pass_bound_s(forward_s: FloatArray, backward_s: FloatArray) -> float:
    """R1: least ``max_r f_r x_r + max_r b_r x_r`` with the same shares in both passes.

    With F = theta B the shares are ``min(F / f_r, B / b_r)``; the best theta is some f_r / b_r.
    """
    theta = forward_s / backward_s
    shares = np.minimum(theta[:, None] / forward_s, 1 / backward_s).sum(axis=1)
    return float(((1 + theta) / shares).min())


def two_work_bound_s(dense_s: FloatArray, attention_s: FloatArray) -> float:
    """R1: least ``max_r (d_r x_r + a_r y_r)`` with x and y free, sums 1 each.

    By duality ``max_k (d_k + a_k) / sum_i max(d_k / d_i, a_k / a_i)``.
    """
    ratios = np.maximum(dense_s[:, None] / dense_s, attention_s[:, None] / attention_s)
    return float(((dense_s + attention_s) / ratios.sum(axis=1)).max())


def least_layer_s(
    load: LayerLoad, policy: Policy, column: ColumnShape, cost: CostConstants, num_tokens: int
) -> float:
    """Least F + B seconds of one layer on a column under a recompute policy."""
    _, _, before, after, ring, launches = REPEATS[policy]
    overhead = cost.launch_overhead_s * cost.launches_per_layer * (1.0 + launches)
    num_devices = len(column.devices)
    if num_devices == 1:
        return float((load.forward_s() + load.backward_s(policy))[0]) + overhead
    hop_s = cost.launch_overhead_s * (2 + ring)
    exchanged = (2 + before) * (load.query_bytes + load.kv_bytes) + (2 + after) * load.output_bytes
    if column.is_uniform:
        return overhead + _uniform_s(load, policy, column, hop_s, exchanged)
    return overhead + _mixed_s(load, policy, column, hop_s, exchanged, num_tokens)


def _uniform_s(
    load: LayerLoad, policy: Policy, column: ColumnShape, hop_s: float, exchanged: float
) -> float:
    """R2-R4 on equal devices of one host, for every number of groups."""
    num_devices, rate = len(column.devices), column.device_bytes_per_s
    forward = float(load.forward_s()[0]) / num_devices
    backward = float(load.backward_s(policy)[0]) / num_devices
    repeats = REPEATS[policy]
    dense = float(load.dense_s[0]) / num_devices
    dense_back = (2 + repeats[0]) * dense
    whole = forward + backward
    attention_to_dense = (whole - dense - dense_back) / (dense + dense_back)
    least = np.inf
    for num_groups in range(1, num_devices + 1):
        share = num_groups / num_devices
        ring_forward = (num_groups - 1) * load.ring_forward_bytes / rate
        ring_backward = (num_groups - 1) * sum(load.ring_backward_bytes) / rate
        ring_backward += repeats[4] * ring_forward
        busy = max(forward, dense + ring_forward) + max(backward, dense_back + ring_backward)
        all_to_all = 0.0
        if load.is_proportional:
            # R3: idle time e lets shares be less even, so A may shrink by `slope` per unit of it.
            slope = (share + attention_to_dense) * exchanged / rate
            missing = (1 - share) * exchanged / rate - slope * (busy / whole - 1)
            all_to_all = max(missing, 0.0) * min(1.0, whole / slope)
        total = _over_all_to_all(load, policy, column, all_to_all, busy)
        least = min(least, total + hop_s * (num_groups - 1))
    return float(least)


def _over_all_to_all(
    load: LayerLoad, policy: Policy, column: ColumnShape, least_a2a: float, busy: float
) -> float:
    """R4 on equal devices: least ``A + max(busy, rows of the cuts)`` over ``A >= least_a2a``."""
    if not column.cuts:
        return least_a2a + busy
    rows = _CutRows(load, policy, column)

    def inside(all_to_all: FloatArray) -> FloatArray:
        return _over_stretches(busy, lambda limit: rows(all_to_all, limit))

    total = least_a2a + float(inside(np.array([least_a2a]))[0])
    if total <= (least_a2a + busy) * (1 + 1e-9):
        return total
    cells = np.linspace(least_a2a, total - busy, _NUM_CELLS + 1)
    return float(min(total, (cells[:-1] + inside(cells[1:])).min()))


def _over_stretches(base: float, rows: Callable[[float], FloatArray]) -> FloatArray:
    """Least time T >= base with ``T >= rows(limit)`` whenever ``T <= limit``."""
    low = base
    best: FloatArray | None = None
    for stretch in _STRETCHES:
        value = np.maximum(low, rows(base * stretch))
        best = value if best is None else np.minimum(best, value)
        low = base * stretch
        if (best <= low).all():
            break
    assert best is not None
    return best


def near_or_tiny(share: FloatArray) -> FloatArray:
    """A share that can be divided by."""
    result: FloatArray = np.maximum(share, 1e-12)
    return result


class _CutRows:
    """R4 for all cuts of a column: rows as a function of A and of how long a layer may take.

    The token share X inside a cut lies in the range that the compute bound leaves when a layer
    takes at most `limit` seconds. The range is cut in segments; a row takes the best segment.
    Arrays are ``[cut, segment, A]``.
    """

    def __init__(self, load: LayerLoad, policy: Policy, column: ColumnShape) -> None:
        self.load, self.repeats = load, REPEATS[policy]
        forward, backward = load.forward_s(), load.backward_s(policy)
        joint = forward + backward
        inside = np.zeros((len(column.cuts), len(joint)), dtype=bool)
        for idx, cut in enumerate(column.cuts):
            inside[idx, list(cut.inside)] = True

        def per_cut(values: FloatArray) -> FloatArray:
            return values[:, None, None]

        self.speed_inside = per_cut(inside @ (1 / joint))
        self.speed_outside = per_cut(~inside @ (1 / joint))
        self.speed_forward = per_cut(inside @ (1 / forward))
        self.speed_backward = per_cut(inside @ (1 / backward))
        self.dense_s = compute_bound_s(load.dense_s)
        rates = [(cut.in_bytes_per_s, cut.out_bytes_per_s) for cut in column.cuts]
        self.rate_in = per_cut(np.array([rate for rate, _ in rates]))
        everything = load.query_bytes + load.kv_bytes
        self.crossing_s = per_cut(
            np.array([exchange_s(load, policy, everything, *pair) for pair in rates])
        )
        self.query_s = np.array(
            [exchange_s(load, policy, load.query_bytes, *pair) for pair in rates]
        )
        # A KV head whose query heads are all on one rank crosses with its queries and outputs.
        self.is_whole = load.query_heads == load.kv_heads
        fetched = (everything, load.output_bytes) if self.is_whole else (load.kv_bytes, 0.0)
        self.fetch_s = per_cut(
            np.array([exchange_s(load, policy, fetched[0], *pair, fetched[1]) for pair in rates])
        )
        self.stays_inside = _GroupShare(load, policy, column, inside, self.fetch_s)
        self.stays_outside = _GroupShare(load, policy, column, ~inside, self.fetch_s)

    def __call__(self, all_to_all: FloatArray, limit: float) -> FloatArray:
        """For each A, the largest row, A itself left out of it."""
        load, repeats = self.load, self.repeats
        exchange = all_to_all[None, None, :]
        deviation = exchange / self.query_s[:, None, None]
        if not load.is_proportional:
            deviation = np.ones_like(deviation)
        high = np.minimum(limit * self.speed_inside + deviation, 1.0)
        low = np.clip(1.0 - limit * self.speed_outside - deviation, 0.0, 1.0)
        places = low + (high - low) * np.linspace(0, 1, _NUM_SEGMENTS + 1)[None, :, None]
        near, far = places[:, :-1], places[:, 1:]
        visiting, returning = (width / self.rate_in for width in load.ring_backward_bytes)
        # Heads closed on one side need no ring across the border but send all their tokens of the
        # other side through A; an open head's first group inside, and its last outside, miss at
        # most the tokens of their own side and what A brings from the other.
        crossed = exchange / self.crossing_s
        fetched = exchange / self.fetch_s
        open_share = np.maximum(
            1 - crossed / near_or_tiny(near) - crossed / near_or_tiny(1 - far), 0
        )
        if self.is_whole:
            missing = 1 - far - crossed / near_or_tiny(near)
            behind = near - crossed / near_or_tiny(1 - far)
        else:
            missing = open_share * (1 - far) - fetched
            behind = open_share * near - fetched
        missing = np.maximum(missing, open_share - self.stays_inside(exchange, open_share, limit))
        behind = np.maximum(behind, open_share - self.stays_outside(exchange, open_share, limit))
        ring_f = np.maximum(missing, 0.0) * visiting
        ring_b = (1 + repeats[4]) * ring_f + np.maximum(behind, 0.0) * returning
        own = np.maximum(near - deviation, 0.0)
        rows = np.maximum(own / self.speed_forward, self.dense_s + ring_f) + np.maximum(
            own / self.speed_backward, (2 + repeats[0]) * self.dense_s + ring_b
        )
        result: FloatArray = rows.min(axis=1).max(axis=0)
        return result


class _GroupShare:
    """R7: largest share of the tokens that the group of a head can have, averaged over heads.

    The rank that computes the head holds x_r of them, at most an even share T / c_r on average,
    and receives the rest through its own link: ``S <= T / c + A (rate / bytes + ...)``.
    """

    def __init__(
        self, load: LayerLoad, policy: Policy, column: ColumnShape,
        inside: npt.NDArray[np.bool_], crossing_s: FloatArray,
    ) -> None:  # fmt: skip
        repeats = REPEATS[policy]
        dense = (3 + repeats[0]) * load.dense_s
        joint = load.forward_s() + load.backward_s(policy)
        is_whole = load.query_heads == load.kv_heads
        exchanged = (2 + repeats[2]) * load.kv_bytes
        if is_whole:
            exchanged += (2 + repeats[2]) * load.query_bytes + (2 + repeats[3]) * load.output_bytes

        def least(values: FloatArray) -> FloatArray:
            found: FloatArray = np.where(inside, values, np.inf).min(axis=1)[:, None, None]
            return found

        self.per_second = (inside @ column.own_bytes_per_s)[:, None, None] / exchanged
        # A KV head whose query heads are spread over ranks costs each little attention: such a
        # rank may hold as many tokens as its dense work allows.
        self.alone_s = least(dense)
        if is_whole:
            share = dense / joint
            spread = -least(-share) - least(share)
            self.alone_s = least(joint) / (1 + spread)
            self.per_second = self.per_second + (1 - least(share)) / crossing_s

    def __call__(self, exchange: FloatArray, opened: FloatArray, limit: float) -> FloatArray:
        """Upper limit of S over the heads that are open, for layers of at most `limit` seconds."""
        result: FloatArray = exchange * self.per_second + opened * limit / self.alone_s
        return result


def exchange_s(
    load: LayerLoad,
    policy: Policy,
    before_bytes: float,
    rate_in: float,
    rate_out: float,
    after_bytes: float | None = None,
) -> float:
    """All-to-all seconds of F + B per unit of tokens x heads that crosses a border one way.

    The cheaper direction; backward runs the exchanges the other way round.
    """
    before, after = REPEATS[policy][2:4]
    output = load.output_bytes if after_bytes is None else after_bytes

    def one_way(there: float, back: float) -> float:
        forward = (1 + before) * before_bytes / there + (1 + after) * output / back
        return forward + before_bytes / back + output / there

    return min(one_way(rate_in, rate_out), one_way(rate_out, rate_in))


def _mixed_s(
    load: LayerLoad,
    policy: Policy,
    column: ColumnShape,
    hop_s: float,
    exchanged: float,
    num_tokens: int,
) -> float:
    """R1-R7 on unlike devices, cell by cell of A."""
    repeats = REPEATS[policy]
    joint = load.forward_s() + load.backward_s(policy)
    dense_all = (3 + repeats[0]) * load.dense_s
    even_s = two_pass_bound_s(load.forward_s(), load.backward_s(policy))
    free_s = two_work_bound_s(dense_all, joint - dense_all)
    if not load.is_proportional:
        even_s = free_s
    num_devices, rate = len(joint), column.device_bytes_per_s
    cells = np.array([*(share * even_s for share in _FRACTIONS), np.inf])
    upper = np.minimum(cells[1:], 1e30)
    # R5: the gain of unlike shares of tokens and attention.
    alpha = np.concatenate([
        1 - load.dense_s / load.forward_s(),
        1 - (2 + repeats[0]) * load.dense_s / load.backward_s(policy),
    ])  # fmt: skip
    gain = np.zeros(len(upper))
    if load.is_proportional:
        gain = (alpha.max() - alpha.min()) * _total_deviation(load, policy, column, upper)
        gain += num_devices / num_tokens  # odd pieces: a pair more or less per query
    compute = np.maximum(free_s, even_s * (1 - gain))
    dense = compute_bound_s(load.dense_s)
    cut_rows = _CutRows(load, policy, column) if column.cuts else None

    def inside(limit: float) -> FloatArray:
        # R6: few groups need much all-to-all, many groups many hops and more ring.
        reach = np.sort(np.minimum(limit / dense_all, 1.0))[::-1]
        kept = np.minimum(np.cumsum(reach), 1.0)  # the most that stays at home with G groups
        needed = (1 - kept) * exchanged / rate
        groups = 1 + np.searchsorted(-needed, -upper)  # `needed` falls with G
        forward = (groups - 1) * load.ring_forward_bytes / rate
        backward = (groups - 1) * sum(load.ring_backward_bytes) / rate + repeats[4] * forward
        ring = (3 + repeats[0]) * dense + forward + backward
        rows = np.maximum(compute, ring)
        if cut_rows is not None:
            rows = np.maximum(rows, cut_rows(upper, limit))
        result: FloatArray = rows + hop_s * (groups - 1)
        return result

    return float((cells[:-1] + _over_stretches(free_s, inside)).min())


def _total_deviation(
    load: LayerLoad, policy: Policy, column: ColumnShape, all_to_all: FloatArray
) -> FloatArray:
    """R5: half the sum over sets of equal devices of what their two shares can differ by."""
    total = np.zeros(len(all_to_all))
    sets = [cut for cut in column.cuts if cut.inside in column.hosts]
    covered = sum(len(cut.inside) for cut in sets)
    if covered < len(column.devices) or not _hosts_are_uniform(column):
        return np.ones(len(all_to_all))
    for cut in sets:
        seconds = exchange_s(load, policy, load.query_bytes, cut.in_bytes_per_s,
                              cut.out_bytes_per_s)  # fmt: skip
        total += all_to_all / seconds
    result: FloatArray = np.minimum(total / 2, 1.0)
    return result


def _hosts_are_uniform(column: ColumnShape) -> bool:
    return all(
        len({column.devices[idx].type for idx in host}) == 1
        and len({column.devices[idx].dense_flop_per_s for idx in host}) == 1
        for host in column.hosts
    )
