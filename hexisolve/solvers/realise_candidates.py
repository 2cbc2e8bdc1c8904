"""Arrangements of one set of devices worth pricing: rings with their shares, best first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import permutations

import numpy as np

from hexisolve.cost.flop import (
    attention_backward_flop,
    attention_forward_flop,
    dense_forward_flop,
    head_forward_flop,
    query_pairs,
)
from hexisolve.data.cluster import Cluster
from hexisolve.plan.price_book import PriceBook
from hexisolve.solvers.realise_gauge import Floats, Gauge, Ints
from hexisolve.solvers.realise_shares import MAX_ALL_SHARES, ShareSpace, num_compositions
from hexisolve.solvers.realise_structures import MAX_ALL_CUTS, Groups, structures

# Rings that are tried with leaning shares, and that are climbed: the most promising ones.
MAX_CLIMBED = 5
MAX_LEANED = 16
CLIMB_WITHIN = 1.25
# Shares kept of a ring whose shares are all priced.
MAX_KEPT = 24
MAX_ALL_ORDERS = 4
# By how much one class of devices gets more, or less, in some starting shares.
LEANS = (0.25, 0.5, 2.0, 4.0)
# How far token shares lean from speed towards memory.
LEANINGS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.65, 0.8, 1.0)


@dataclass(frozen=True, eq=False)
class Candidate:
    """A ring with its shares.

    Parameters
    ----------
    groups
        Devices of every head group, in ring order.
    tokens, heads
        Of every rank, in rank order.
    seconds
        ``[layer kind][policy]``: F + B of one layer, policies ``full, layer, none``.
    forward_s
        ``[layer kind]``: F of one layer.
    head_s
        F + B of the output projection, for the last stage.
    """

    groups: Groups
    tokens: tuple[int, ...]
    heads: tuple[int, ...]
    seconds: Floats
    forward_s: Floats
    head_s: float


@dataclass(frozen=True, eq=False)
class Search:
    """The question: which devices, how much the output projection counts against a layer."""

    book: PriceBook
    devices: tuple[str, ...]
    num_tokens: int
    head_weight: float

    @cached_property
    def num_heads(self) -> int:
        """Query heads of a layer; a stage has layers of one number only."""
        return self.book.kind_layers[0].attention.num_q_heads

    @property
    def is_tiny(self) -> bool:
        """Whether every ring and all its shares can be priced."""
        num_ranks = len(self.devices)
        units = self.num_tokens // self.book.instance.workload.block_tokens
        num_shares = num_compositions(units, num_ranks) * num_compositions(
            self.num_heads, num_ranks
        )
        return num_ranks <= MAX_ALL_CUTS and num_shares <= MAX_ALL_SHARES

    @cached_property
    def kind_weights(self) -> Floats:
        """Share of every layer kind in the model."""
        counts = np.bincount(self.book.layer_kinds, minlength=len(self.book.kind_layers))
        weights: Floats = counts / counts.sum()
        return weights


@dataclass(frozen=True, eq=False)
class Ring:
    """One grouping of the devices with all it takes to search its shares."""

    search: Search
    groups: Groups
    device_key: dict[str, int] = field(repr=False)

    @cached_property
    def gauge(self) -> Gauge:
        """The price of shares."""
        return Gauge(self.search.book, self.groups, self.search.num_tokens)

    @cached_property
    def space(self) -> ShareSpace:
        """The shares there are."""
        block = self.search.book.instance.workload.block_tokens
        return ShareSpace(
            self.groups, self.device_key.__getitem__, self.search.num_tokens, block,
            self.search.num_heads,
        )  # fmt: skip

    @property
    def memory_bytes(self) -> list[int]:
        """Capacity of every rank."""
        cluster = self.search.book.instance.cluster
        return [cluster.device(name).memory_bytes for group in self.groups for name in group]

    def seconds(self, tokens: Ints, heads: Ints) -> tuple[Floats, Floats]:
        """F ``[candidate][kind]`` and F + B ``[candidate][kind][policy]`` of one layer."""
        forward, both = [], []
        for layer in self.search.book.kind_layers:
            times = self.gauge.layer(layer, tokens, heads)
            backward = np.stack([times.full, times.layer, times.none], axis=1)
            forward.append(times.forward)
            both.append(times.forward[:, None] + backward)
        return np.stack(forward, axis=1), np.stack(both, axis=1)

    def head_seconds(self, tokens: Ints) -> Floats:
        """Equation 7: F + B of the output projection."""
        model = self.search.book.instance.model
        flop = 3.0 * head_forward_flop(model.hidden_size, model.vocab_size, 1)
        seconds: Floats = (tokens * flop / self.gauge.dense).max(axis=1)
        return seconds

    def objective(self, policy: int, tokens: Ints, heads: Ints) -> Floats:
        """Seconds per layer under one policy; infinite where a group owns no token."""
        total: Floats = self.seconds(tokens, heads)[1][:, :, policy] @ self.search.kind_weights
        if self.search.head_weight:
            total = total + self.search.head_weight * self.head_seconds(tokens)
        if len(self.groups) > 1:
            owned = np.add.reduceat(tokens, self.gauge.starts, axis=1)
            total = np.where((owned > 0).all(axis=1), total, np.inf)
        return total

    @cached_property
    def _filled(self) -> tuple[list[float], list[float]]:
        """Real shares by water-filling without recompute: all groups and ranks end together."""
        book, gauge, s = self.search.book, self.gauge, self.search.num_tokens
        dense = 0.0
        attention: Floats = np.zeros(len(gauge.dense))
        for layer, weight in zip(book.kind_layers, self.search.kind_weights, strict=True):
            spec = layer.attention
            widths = (spec.qk_head_dim, spec.v_head_dim)
            pairs = query_pairs(0, s, s, spec.window_tokens, book.is_causal) / s
            dense = dense + weight * 3.0 * dense_forward_flop(layer.matmul_parameters, 1)
            attention = attention + weight * spec.num_q_heads * pairs * (
                attention_forward_flop(*widths, 1, 1) / gauge.attention_forward
                + attention_backward_flop(*widths, 1, 1) / gauge.attention_backward
            )  # fmt: skip
        speed: Floats = 1.0 / attention
        per_token = dense / np.add.reduceat(gauge.dense, gauge.starts)
        per_token = per_token + 1.0 / np.add.reduceat(speed, gauge.starts)
        group_tokens = (1.0 / per_token)[gauge.group_of]
        inside = gauge.dense / np.add.reduceat(gauge.dense, gauge.starts)[gauge.group_of]
        return (group_tokens * inside).tolist(), speed.tolist()

    @cached_property
    def plain_s(self) -> float:
        """Seconds per layer, without recompute, of the best of three plain starting shares."""
        return float(self.objective(2, *self._expanded(self._plain())).min())

    def _plain(self) -> list[tuple[list[float], list[float]]]:
        """Water-filling, flattened, and even token shares."""
        tokens, heads = self._filled
        return [(tokens, heads), (np.sqrt(tokens).tolist(), heads), ([1.0] * len(tokens), heads)]

    def _expanded(self, rows: Sequence[tuple[list[float], list[float]]]) -> tuple[Ints, Ints]:
        tokens, heads = zip(*rows, strict=True)
        return self.space.expand(*self.space.rounded(tokens, heads))

    @cached_property
    def begin(self) -> tuple[float, Candidate]:
        """The best of some starting shares without recompute, and its seconds per layer.

        Water-filling is best while computing is the limit. Where links are, it pays to give one
        class of devices much more or much less; all of these are priced at once.
        """
        rows, classes = self._plain(), self.space.classes
        tokens, heads = rows[0]
        for members in classes if len(classes) > 1 else ():
            for factor in LEANS:
                more_tokens, more_heads = list(tokens), list(heads)
                for rank in members.ranks.ravel().tolist():
                    more_tokens[rank] *= factor
                    more_heads[rank] *= factor
                rows += [(more_tokens, heads), (tokens, more_heads), (more_tokens, more_heads)]
        shares = self._expanded(rows)
        seconds = self.objective(2, *shares)
        best = int(np.argmin(seconds))
        only = (shares[0][best : best + 1], shares[1][best : best + 1])
        return float(seconds[best]), self.candidates(*only)[0]

    def candidates(self, tokens: Ints, heads: Ints) -> list[Candidate]:
        """Rows of shares as candidates."""
        forward, seconds = self.seconds(tokens, heads)
        head = self.head_seconds(tokens)
        return [
            Candidate(self.groups, tuple(map(int, tokens[i])), tuple(map(int, heads[i])),
                      seconds[i], forward[i], float(head[i]))
            for i in range(len(tokens))
        ]  # fmt: skip

    def climbed(self, policies: Sequence[int], start: Candidate | None = None) -> list[Candidate]:
        """The best shares under some policies, from `begin` or from a candidate."""
        found: dict[tuple[bytes, bytes], tuple[Ints, Ints]] = {}
        for policy in policies:
            first = start or self.begin[1]
            shares = self.space.best(
                partial(self.objective, policy), first.tokens, first.heads, self.memory_bytes,
                MAX_KEPT,
            )  # fmt: skip
            for own in shares:
                found[own[0].tobytes(), own[1].tobytes()] = own
        if not found:
            return []
        return self.candidates(
            np.array([tokens for tokens, _ in found.values()]),
            np.array([heads for _, heads in found.values()]),
        )

    def leaning(self, candidate: Candidate) -> list[Candidate]:
        """Shares between those of `candidate` and shares in proportion to memory."""
        memory = self.memory_bytes
        total = sum(memory)
        rows: list[tuple[list[float], list[float]]] = []
        for lean in LEANINGS:
            tokens = [
                (1.0 - lean) * own + lean * self.search.num_tokens * size / total
                for own, size in zip(candidate.tokens, memory, strict=True)
            ]
            heads = [
                (1.0 - lean) * own + lean * self.search.num_heads * size / total
                for own, size in zip(candidate.heads, memory, strict=True)
            ]
            rows += [(tokens, list(map(float, candidate.heads))), (tokens, heads)]
        shares = self._expanded(rows)
        owned = np.isfinite(self.objective(2, *shares))
        return self.candidates(shares[0][owned], shares[1][owned])


def rings(search: Search) -> list[Ring]:
    """Rings over the devices, the most promising first."""
    cluster = search.book.instance.cluster
    keys = device_keys(cluster, search.devices)
    is_tiny = search.is_tiny
    cuts = structures(cluster, search.devices, all_ranks=is_tiny)
    found = [Ring(search, groups, keys) for groups in cuts]
    if is_tiny:
        return found
    unlike = {_likeness(cluster, ring): ring for ring in reversed(found)}
    found = list(reversed(unlike.values()))
    plain = sorted(found, key=lambda ring: ring.plain_s)[:MAX_LEANED]
    leaned = sorted(plain, key=lambda ring: ring.begin[0])
    limit = CLIMB_WITHIN * leaned[0].begin[0]
    best = [ring for ring in leaned if ring.begin[0] <= limit][:MAX_CLIMBED]
    return best or leaned[:1]


def _likeness(cluster: Cluster, ring: Ring) -> object:
    """Equal for rings that differ only in which of several like hosts or devices stands where."""
    groups = []
    for group in ring.groups:
        hosts: dict[str, list[str]] = {}
        for name in group:
            hosts.setdefault(cluster.device(name).host, []).append(name)
        hops = 0
        if len(hosts) == 1:
            hops = sum(len(cluster.route(group[0], name).edges) for name in group[1:])
        parts = [tuple(sorted(ring.device_key[n] for n in own)) for own in hosts.values()]
        groups.append((hops, *sorted(parts)))
    return tuple(sorted(groups))


def reordered(ring: Ring, best: Candidate) -> Iterator[tuple[Ring, Candidate]]:
    """The same groups and shares in other ring orders."""
    num_groups = len(ring.groups)
    if num_groups < 3:
        return
    sizes = [len(group) for group in ring.groups]
    bounds = np.cumsum([0, *sizes])
    turns = [(0, *range(num_groups - 1, 0, -1))]
    if num_groups <= MAX_ALL_ORDERS:
        turns = [(0, *rest) for rest in permutations(range(1, num_groups))][1:]
    for turn in turns:
        ranks = [r for g in turn for r in range(bounds[g], bounds[g + 1])]
        other = Ring(ring.search, tuple(ring.groups[g] for g in turn), ring.device_key)
        tokens = np.array([[best.tokens[r] for r in ranks]])
        heads = np.array([[best.heads[r] for r in ranks]])
        yield other, other.candidates(tokens, heads)[0]


def device_keys(cluster: Cluster, devices: Sequence[str]) -> dict[str, int]:
    """Numbers that tell the devices of a set apart: by rates, memory, links, company in the box."""
    boxes: dict[str, list[str]] = {}
    for name in devices:
        boxes.setdefault(cluster.device(name).host, []).append(name)
    numbers: dict[object, int] = {}
    keys: dict[str, int] = {}
    for host, members in boxes.items():
        outside = next((name for name in devices if cluster.device(name).host != host), None)
        for name in members:
            device = cluster.device(name)
            others = [other for other in members if other != name]
            if outside is not None:
                others.append(outside)
            links = sorted(
                tuple(cluster.edge_bytes_per_s(edge) for edge in cluster.route(*pair).edges)
                for other in others
                for pair in ((name, other), (other, name))
            )
            key = (
                device.dense_flop_per_s, device.attention_forward_flop_per_s,
                device.attention_backward_flop_per_s, device.memory_bytes,
                device.memory_bytes_per_s, len(members), tuple(links),
            )  # fmt: skip
            keys[name] = numbers.setdefault(key, len(numbers))
    return keys
