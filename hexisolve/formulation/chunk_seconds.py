"""Seconds of chunks on a stage from a few probes: a surrogate for choosing chunks.

Equation E2 of docs/elastic.md. `evaluate` prices every chunk from its exact pieces; here a chunk is
its tokens, pairs and context, and a stage is what `layer_works` says of two probes. Never a price:
plans are priced by `evaluate`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from hexisolve.cost.flop import query_pairs
from hexisolve.formulation.chunk_load import ChunkLoads, FloatArray, IntArray, Window, prefix_pairs
from hexisolve.plan.layer_price import LayerWork
from hexisolve.plan.plan import Policy, Stage
from hexisolve.plan.price_book import PriceBook
from hexisolve.plan.stage_price import layer_works, stage_price
from hexisolve.plan.tokens import ChunkShape

# From cheap to dear: each policy keeps less than the one before it and repeats more.
LADDER: tuple[Policy, ...] = ("none", "mlp", "layer", "full")
_PROBE_TOKENS = 16_384


@dataclass(frozen=True)
class Line:
    """``fixed + slope x amount`` seconds."""

    slope: float
    fixed: float

    def at(self, amount: FloatArray | IntArray) -> FloatArray:
        """Seconds of each amount."""
        return np.asarray(self.fixed + self.slope * amount, dtype=np.float64)


@dataclass(frozen=True, eq=False)
class KindSeconds:
    """One layer kind on a stage.

    Parameters
    ----------
    count
        Layers of this kind.
    window
        Its attention window.
    dense_s
        Forward seconds per token of the chunk, per head group.
    attention_forward_s, attention_backward_s
        Seconds per pair of the chunk, per head group.
    exchange_forward, exchange_backward
        Both all-to-alls by tokens.
    ring_forward, ring_backward
        A ring pass, by context (K and V travel) or by tokens (Q travels).
    post_share
        Part of the dense work after attention.
    launches_s
        Seconds of launches of a forward per chunk, and the part of it that every policy adds.
    """

    count: int
    window: Window
    dense_s: FloatArray
    attention_forward_s: FloatArray
    attention_backward_s: FloatArray
    exchange_forward: Line
    exchange_backward: Line
    ring_forward: Line
    ring_backward: Line
    post_share: float
    launches_s: float
    repeated_launches_s: Mapping[Policy, float]


@dataclass(frozen=True, eq=False)
class StageSeconds:
    """A stage, ready to say what chunks take on it.

    Parameters
    ----------
    kinds
        Its layer kinds.
    head_s
        Output projection forward, seconds per token (last stage, else 0).
    least_forward_s, least_backward_s
        What one token takes: gathers of ZeRO-3 that nothing hides.
    queries_travel
        The ring kind.
    """

    kinds: tuple[KindSeconds, ...]
    head_s: float
    least_forward_s: float
    least_backward_s: float
    queries_travel: bool

    @property
    def num_layers(self) -> int:
        """l: layers of the stage."""
        return sum(kind.count for kind in self.kinds)

    def forward_s(self, loads: ChunkLoads) -> FloatArray:
        """F of every chunk."""
        total = self.head_s * loads.tokens
        for kind in self.kinds:
            ring = kind.ring_forward.at(self._travelling(loads))
            layer = _layer_s(kind, loads, 1.0, kind.attention_forward_s, ring)
            layer = layer + kind.exchange_forward.at(loads.tokens) + kind.launches_s
            total = total + kind.count * layer
        return np.asarray(np.maximum(total, self.least_forward_s))

    def backward_s(self, loads: ChunkLoads) -> dict[Policy, FloatArray]:
        """B of every chunk when all layers have the policy."""
        result: dict[Policy, FloatArray] = {}
        for policy in LADDER:
            total = 2.0 * self.head_s * loads.tokens
            for kind in self.kinds:
                total = total + kind.count * self._layer_backward_s(kind, loads, policy)
            result[policy] = np.maximum(total, self.least_backward_s)
        return result

    def _layer_backward_s(self, kind: KindSeconds, loads: ChunkLoads, policy: Policy) -> FloatArray:
        repeats = {"none": 0.0, "mlp": kind.post_share, "layer": 1.0, "full": 1.0}[policy]
        attention, ring = kind.attention_backward_s, kind.ring_backward.at(self._travelling(loads))
        if policy == "full":
            attention = attention + kind.attention_forward_s
            ring = ring + kind.ring_forward.at(self._travelling(loads))
        seconds = _layer_s(kind, loads, 2.0 + repeats, attention, ring)
        seconds = seconds + kind.exchange_backward.at(loads.tokens)
        if policy in ("layer", "full"):
            seconds = seconds + kind.exchange_forward.at(loads.tokens)
        return seconds + kind.launches_s + kind.repeated_launches_s[policy]

    def _travelling(self, loads: ChunkLoads) -> IntArray:
        return loads.tokens if self.queries_travel else loads.context

    def group_curves(self, positions: IntArray, is_causal: bool) -> list[tuple[FloatArray, bool]]:
        """Cumulated F + B of the first ``x`` tokens of a sequence, one curve per head group.

        The second entry of a pair says whether the curve is that of the ring, whose seconds count
        the whole context again in every slice.
        """
        num_groups = len(self.kinds[0].dense_s)
        curves: list[tuple[FloatArray, bool]] = []
        linear = np.asarray(3.0 * self.head_s * positions, dtype=np.float64)
        for kind in self.kinds:
            slope = kind.exchange_forward.slope + kind.exchange_backward.slope
            linear = linear + kind.count * slope * positions
        for group in range(num_groups):
            curve = linear.copy()
            for kind in self.kinds:
                pairs = prefix_pairs(positions, kind.window, is_causal)
                both = kind.attention_forward_s[group] + kind.attention_backward_s[group]
                curve += kind.count * (3.0 * kind.dense_s[group] * positions + both * pairs)
            curves.append((curve, False))
        if num_groups > 1:
            curve = linear.copy()
            for kind in self.kinds:
                curve += kind.count * 3.0 * float(kind.dense_s.max()) * positions
            curves.append((curve, True))
        return curves

    @property
    def ring_s(self) -> float:
        """Seconds of all ring passes of F and B, per travelling token."""
        return sum(k.count * (k.ring_forward.slope + k.ring_backward.slope) for k in self.kinds)


def _layer_s(
    kind: KindSeconds, loads: ChunkLoads, times: float, attention: FloatArray, ring: FloatArray
) -> FloatArray:
    """Equation 6 without its exchanges, for every chunk."""
    dense = times * kind.dense_s[:, None] * loads.tokens[None]
    own = (dense + attention[:, None] * loads.pairs[kind.window][None]).max(axis=0)
    if len(kind.dense_s) > 1:
        own = np.maximum(own, dense.max(axis=0) + ring)
    return np.asarray(own, dtype=np.float64)


def stage_seconds(book: PriceBook, stage: Stage, stage_idx: int, num_stages: int) -> StageSeconds:
    """Probe a stage, or take it from the book."""
    ends = (stage_idx == 0, stage_idx == num_stages - 1)
    key = ("chunk seconds", book.stage_key(stage), ends)
    known: StageSeconds | None = book.entries.get(key)
    if known is None:
        known = book.entries[key] = _probe(book, stage, stage_idx, num_stages)
    return known


def _probe(book: PriceBook, stage: Stage, stage_idx: int, num_stages: int) -> StageSeconds:
    small, large = _whole(_PROBE_TOKENS), _whole(2 * _PROBE_TOKENS)
    kinds = [book.layer_kinds[idx] for idx in range(*stage.layers)]
    once = dict(zip(kinds, layer_works(book, stage, stage_idx, small), strict=True))
    twice = dict(zip(kinds, layer_works(book, stage, stage_idx, large), strict=True))
    result = []
    for kind in dict.fromkeys(kinds):
        window = book.kind_layers[kind].attention.window_tokens
        result.append(_kind(book, once[kind], twice[kind], kinds.count(kind), window))
    least = stage_price(book, stage, stage_idx, num_stages, _whole(1), {"none": stage.num_layers})
    full = stage_price(book, stage, stage_idx, num_stages, small, {"none": stage.num_layers})
    return StageSeconds(
        kinds=tuple(result),
        head_s=full.head_forward_s / _PROBE_TOKENS,
        least_forward_s=least.forward_s,
        least_backward_s=least.backward_s,
        queries_travel=stage.ring_kind == "q",
    )


def _whole(num_tokens: int) -> ChunkShape:
    return ((0, num_tokens),), None


def _kind(
    book: PriceBook, once: LayerWork, twice: LayerWork, count: int, window: Window
) -> KindSeconds:
    tokens = _PROBE_TOKENS
    pairs = query_pairs(0, tokens, tokens, window, book.is_causal)

    def line(one: float, two: float) -> Line:
        return Line((two - one) / tokens, max(2.0 * one - two, 0.0))

    def groups(values: tuple[float, ...], amount: int) -> FloatArray:
        firsts = np.concatenate([[0], np.cumsum(once.sizes)[:-1]]).astype(np.int64)
        return np.maximum.reduceat(np.array(values), firsts) / amount

    cost = book.instance.cost
    launches = cost.launch_overhead_s * (cost.launches_per_layer + once.num_hops)
    bare = once.backward("none").overhead_s
    return KindSeconds(
        count=count,
        window=window,
        dense_s=groups(once.dense_s, tokens),
        attention_forward_s=groups(once.attention_forward_s, pairs),
        attention_backward_s=groups(once.attention_backward_s, pairs),
        exchange_forward=line(
            once.before.seconds + once.after.seconds, twice.before.seconds + twice.after.seconds
        ),
        exchange_backward=line(
            once.before_back.seconds + once.after_back.seconds,
            twice.before_back.seconds + twice.after_back.seconds,
        ),
        ring_forward=line(once.ring_forward.seconds, twice.ring_forward.seconds),
        ring_backward=line(once.ring_backward.seconds, twice.ring_backward.seconds),
        post_share=once.post_share,
        launches_s=launches,
        repeated_launches_s={p: once.backward(p).overhead_s - bare for p in LADDER},
    )
