"""Price many token and head shares of one ring at once, by the rule of `price_stage`.

Equations 1-6 of docs/cost-model.md on arrays: a row for each candidate, a column for each rank.
Pairs are taken in proportion to a group's tokens, which is exact for causal attention over even
groups; the caller prices what it keeps with `price_stage`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hexisolve.cost.communication import FlowNetwork, flow_network
from hexisolve.cost.flop import attention_backward_flop, attention_forward_flop, query_pairs
from hexisolve.data.model_spec import LayerSpec
from hexisolve.plan.price_book import PriceBook
from hexisolve.solvers.realise_structures import Groups

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


class LayerTimes(NamedTuple):
    """Seconds of one layer for every candidate.

    Parameters
    ----------
    forward
        The forward pass.
    none, layer, full
        The backward pass under each recompute policy.
    """

    forward: Floats
    none: Floats
    layer: Floats
    full: Floats


class Flows:
    """Pairs of ranks that exchange bytes, with what every edge makes of them."""

    def __init__(self, network: FlowNetwork, efficiency: float, pairs: Ints, ids: Ints) -> None:
        self.source, self.target = pairs[:, 0], pairs[:, 1]
        self.there = _EdgeTimes(network, efficiency, ids[self.source], ids[self.target])
        self.back = _EdgeTimes(network, efficiency, ids[self.target], ids[self.source])


class _EdgeTimes:
    def __init__(
        self, network: FlowNetwork, efficiency: float, sources: Ints, targets: Ints
    ) -> None:
        routes = network.route_table(sources, targets)
        is_used = np.zeros(network.num_edges + 1, dtype=bool)
        is_used[routes] = True
        is_used[-1] = False  # the padding of short routes
        edges = np.flatnonzero(is_used)
        column = np.cumsum(is_used) - 1
        column[-1] = len(edges)
        table = np.zeros((len(routes), len(edges) + 1))
        table[np.arange(len(routes))[:, None], column[routes]] = 1.0
        seconds = table[:, :-1] / (network.edge_bytes_per_s[edges] * efficiency)
        # Edges that carry the same flows at the same rate need not be added up twice.
        marks = np.sqrt(np.arange(1.0, len(seconds) + 1.0)) @ seconds
        _, kept = np.unique(marks, return_index=True)
        self.seconds_per_byte: Floats = seconds[:, kept]
        self.latency_s: Floats = network.pair_latency_s(sources, targets)

    def seconds(self, num_bytes: Floats) -> Floats:
        """The flow rule, one answer for each row of bytes per pair."""
        busiest: Floats = (num_bytes @ self.seconds_per_byte).max(axis=1)
        latency: Floats = np.where(num_bytes > 0.0, self.latency_s, 0.0).max(axis=1)
        return busiest + latency


class Gauge:
    """One ring of head groups on its devices; rows of shares go in, seconds come out."""

    def __init__(self, book: PriceBook, groups: Groups, num_tokens: int) -> None:
        self.book, self.groups, self.num_tokens = book, groups, num_tokens
        instance = book.instance
        devices = [instance.cluster.device(name) for group in groups for name in group]
        self.dense = np.array([d.dense_flop_per_s for d in devices])
        self.attention_forward = np.array([d.attention_forward_flop_per_s for d in devices])
        self.attention_backward = np.array([d.attention_backward_flop_per_s for d in devices])
        sizes = [len(group) for group in groups]
        self.starts: Ints = np.concatenate(([0], np.cumsum(sizes)[:-1]))
        self.group_of: Ints = np.repeat(np.arange(len(groups)), sizes)
        network = flow_network(instance.cluster)
        ids = np.array([network.device_index[d.id] for d in devices])
        members = [
            range(start, start + size) for start, size in zip(self.starts, sizes, strict=True)
        ]
        inside = [(r, q) for own in members for r in own for q in own if r != q]
        around = [(r, q) for idx, own in enumerate(members) for r in members[idx - 1] for q in own]
        efficiency = instance.cost.link_efficiency
        self.inside = Flows(network, efficiency, np.array(inside), ids) if inside else None
        self.around = None
        if len(groups) > 1:
            self.around = Flows(network, efficiency, np.array(around), ids)

    def layer(self, spec: LayerSpec, tokens: Ints, heads: Ints) -> LayerTimes:
        """Seconds of one layer; `tokens` and `heads` are (candidates, ranks)."""
        attention, s = spec.attention, self.num_tokens
        is_causal = self.book.is_causal
        all_pairs = query_pairs(0, s, s, attention.window_tokens, is_causal)
        group_tokens = np.add.reduceat(tokens, self.starts, axis=1)
        pairs = (group_tokens * (all_pairs / s))[:, self.group_of]
        widths = (attention.qk_head_dim, attention.v_head_dim)
        work = heads * pairs
        forward = work * attention_forward_flop(*widths, 1, 1) / self.attention_forward
        backward = work * attention_backward_flop(*widths, 1, 1) / self.attention_backward
        dense = self._slowest(tokens * (2.0 * spec.matmul_parameters) / self.dense)
        kv_low, kv_high = self._kv_ranges(heads, attention.num_q_heads, attention.num_kv_heads)
        exchanges = self._exchanges(spec, tokens, heads, kv_high - kv_low)
        before, after, before_back, after_back = exchanges
        ring, ring_back = self._ring(spec, group_tokens, kv_low, kv_high)
        cost = self.book.instance.cost
        launches = cost.launch_overhead_s * (cost.launches_per_layer + len(self.groups) - 1)
        half = 0.5 * cost.launch_overhead_s * cost.launches_per_layer
        attention_back = self._slowest(backward)
        there, back = before + after, before_back + after_back
        return LayerTimes(
            _phase(dense, there, self._slowest(forward), ring) + launches,
            _phase(2 * dense, back, attention_back, ring_back) + launches,
            _phase(3 * dense, back + there, attention_back, ring_back) + launches + half,
            _phase(3 * dense, back + there, self._slowest(backward + forward), ring_back + ring)
            + 2 * launches,
        )

    def _slowest(self, seconds: Floats) -> Floats:
        slowest: Floats = np.maximum.reduceat(seconds, self.starts, axis=1)
        return slowest

    def _kv_ranges(self, heads: Ints, num_q: int, num_kv: int) -> tuple[Ints, Ints]:
        """KV heads that every rank reads, given heads in rank order inside each group."""
        per_kv = max(num_q // max(num_kv, 1), 1)
        total = np.cumsum(heads, axis=1)
        stop = total - num_q * self.group_of
        first = stop - heads
        low = first // per_kv
        return low, np.where(heads > 0, (stop - 1) // per_kv + 1, low)

    def _exchanges(
        self, spec: LayerSpec, tokens: Ints, heads: Ints, kv_heads: Ints
    ) -> tuple[Floats, Floats, Floats, Floats]:
        """Equation 4: before, after, and their transposes."""
        flows = self.inside
        if flows is None:
            nothing = np.zeros(len(tokens))
            return nothing, nothing, nothing, nothing
        attention, e = spec.attention, self.book.e
        widths = attention.qk_head_dim + attention.v_head_dim
        asked = (heads * attention.qk_head_dim + kv_heads * widths) * e * (heads > 0)
        sent: Floats = tokens[:, flows.source].astype(np.float64)
        before: Floats = sent * asked[:, flows.target]
        after: Floats = sent * heads[:, flows.target] * float(attention.v_head_dim * e)
        return (
            flows.there.seconds(before), flows.back.seconds(after),
            flows.back.seconds(before), flows.there.seconds(after),
        )  # fmt: skip

    def _ring(
        self, spec: LayerSpec, group_tokens: Ints, low: Ints, high: Ints
    ) -> tuple[Floats, Floats]:
        """Equation 5, K and V travelling; every group must own tokens."""
        flows = self.around
        if flows is None:
            nothing = np.zeros(len(group_tokens))
            return nothing, nothing
        attention, e = spec.attention, self.book.e
        first, stop = self._owned(low, high)
        shared = np.minimum(stop[:, flows.source], high[:, flows.target])
        shared = shared - np.maximum(first[:, flows.source], low[:, flows.target])
        total = (high - low)[:, flows.target]
        width = total * (attention.qk_head_dim + attention.v_head_dim)
        if attention.kv_latent_dim is not None:
            width = np.minimum(width, attention.kv_latent_dim)
        carried: Floats = np.maximum(shared, 0) * width / np.maximum(total, 1)
        away: Floats = (self.num_tokens - group_tokens).astype(np.float64)
        visiting = away[:, self.group_of[flows.target]]
        before = away[:, self.group_of[flows.source]]
        e_acc = self.book.instance.cost.accumulator_bytes
        forward: Floats = visiting * carried * float(e)
        backward: Floats = (visiting * float(e) + before * float(e_acc)) * carried
        return flows.there.seconds(forward), flows.there.seconds(backward)

    def _owned(self, low: Ints, high: Ints) -> tuple[Ints, Ints]:
        """The KV heads a rank sends: those that no earlier rank of its group holds."""
        first = low.copy()
        for start, group in zip(self.starts, self.groups, strict=True):
            if len(group) > 1:
                own = slice(start + 1, start + len(group))
                covered = np.maximum.accumulate(high[:, start : start + len(group) - 1], axis=1)
                first[:, own] = np.maximum(low[:, own], covered)
        return first, high


def _phase(dense: Floats, all_to_all: Floats, attention: Floats, ring: Floats) -> Floats:
    """Equation 6."""
    compute = (dense + attention).max(axis=1)
    seconds: Floats = np.maximum(compute, dense.max(axis=1) + ring) + all_to_all
    return seconds
