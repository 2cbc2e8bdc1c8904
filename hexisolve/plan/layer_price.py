"""The price of one layer on one stage for one chunk (equations 1-6 of docs/cost-model.md)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from hexisolve.cost.flop import (
    attention_backward_flop,
    attention_forward_flop,
    dense_forward_flop,
    post_matmul_parameters,
)
from hexisolve.cost.layer_time import layer_s
from hexisolve.data.constants import CostConstants
from hexisolve.data.model_spec import LayerSpec
from hexisolve.plan.attention_traffic import all_to_all, ring, transposed
from hexisolve.plan.plan import Policy, Stage
from hexisolve.plan.price_book import Exchange, PriceBook
from hexisolve.plan.tokens import StageTokens

PerRank = tuple[float, ...]

# Instructions of a layer's forward that a policy runs again in backward, as a share of them all:
# PRE, exchange and POST of `layer` are about half; `mlp` repeats POST, one of eight.
_REPEATED_LAUNCHES: dict[Policy, float] = {"none": 0.0, "mlp": 0.125, "layer": 0.5, "full": 1.0}


class Phase(NamedTuple):
    """Seconds of one pass through a layer; the parts add up to the total.

    Parameters
    ----------
    dense_s, attention_s
        Of the head group that takes longest.
    all_to_all_s
        Both exchanges.
    ring_s
        The part of the ring that attention does not hide.
    overhead_s
        Kernel launches and START groups.
    gather_s
        Exposed gathers of weights (ZeRO-3); filled in by the stage.
    """

    dense_s: float
    attention_s: float
    all_to_all_s: float
    ring_s: float
    overhead_s: float
    gather_s: float = 0.0

    @property
    def total_s(self) -> float:
        """Seconds of the pass."""
        return sum(self)


class LayerPass(NamedTuple):
    """One pass through a layer, before its parts are added up.

    Parameters
    ----------
    dense_s, attention_s
        Of every head group: the slowest of its ranks.
    exchanges
        All-to-alls, one after the other.
    rings
        Exchanges around the ring, one after the other.
    overhead_s
        Kernel launches and START groups.
    """

    dense_s: PerRank
    exchanges: tuple[Exchange, ...]
    attention_s: PerRank
    rings: tuple[Exchange, ...]
    overhead_s: float

    @property
    def moves(self) -> tuple[Exchange, ...]:
        """Everything that moves."""
        return self.exchanges + self.rings

    @property
    def phase(self) -> Phase:
        """Equation 6, with its total spread over the parts that cause it."""
        all_to_all_s = sum(exchange.seconds for exchange in self.exchanges)
        ring_s = sum(exchange.seconds for exchange in self.rings)
        dense_s, attention_s = self.dense_s, self.attention_s
        total_s = layer_s(dense_s, all_to_all_s, attention_s, ring_s)
        slowest = max(range(len(dense_s)), key=lambda g: dense_s[g] + attention_s[g])
        exposed_s = max(total_s - all_to_all_s - dense_s[slowest] - attention_s[slowest], 0.0)
        return Phase(
            dense_s[slowest], attention_s[slowest], all_to_all_s, exposed_s, self.overhead_s
        )


class LayerPrice(NamedTuple):
    """One layer under one recompute policy."""

    forward: Phase
    backward: Phase


@dataclass(frozen=True, eq=False)
class LayerWork:
    """What one layer asks of a stage for one chunk, before any recompute.

    Parameters
    ----------
    sizes
        Ranks of every head group.
    dense_s
        Dense forward seconds of every rank, in rank order; backward takes twice that.
    post_share
        Part of the dense work that runs after attention.
    attention_forward_s, attention_backward_s
        Of every rank.
    before, after
        Exchanges tokens to heads and heads to tokens, forward.
    before_back, after_back
        Their transposes, backward.
    ring_forward, ring_backward
        Exchanges around the ring.
    num_hops
        Hops of the ring.
    cost
        Overheads.
    """

    sizes: tuple[int, ...]
    dense_s: PerRank
    post_share: float
    attention_forward_s: PerRank
    attention_backward_s: PerRank
    before: Exchange
    after: Exchange
    before_back: Exchange
    after_back: Exchange
    ring_forward: Exchange
    ring_backward: Exchange
    num_hops: int
    cost: CostConstants

    @cached_property
    def _dense_groups_s(self) -> tuple[float, ...]:
        return _group_max(self.dense_s, self.sizes)

    @cached_property
    def _attention_forward_groups_s(self) -> tuple[float, ...]:
        return _group_max(self.attention_forward_s, self.sizes)

    @cached_property
    def _launches_s(self) -> float:
        return self.cost.launch_overhead_s * (self.cost.launches_per_layer + self.num_hops)

    @cached_property
    def forward_pass(self) -> LayerPass:
        """What the forward pass does."""
        return LayerPass(
            self._dense_groups_s,
            (self.before, self.after),
            self._attention_forward_groups_s,
            (self.ring_forward,),
            self._launches_s,
        )

    def backward_pass(self, policy: Policy) -> LayerPass:
        """What the backward pass does, with what `policy` runs again."""
        attention_s = self.attention_backward_s
        exchanges: tuple[Exchange, ...] = (self.before_back, self.after_back)
        rings: tuple[Exchange, ...] = (self.ring_backward,)
        launches_s = self._launches_s
        if policy in ("layer", "full"):
            # `layer` keeps the attention output by head; POST needs it by token once more.
            exchanges += (self.before, self.after)
        if policy == "full":
            again_s = self.attention_forward_s
            attention_s = tuple(b + f for b, f in zip(attention_s, again_s, strict=True))
            rings += (self.ring_forward,)
            launches_s += self._launches_s
        elif policy != "none":
            launches = self.cost.launches_per_layer * _REPEATED_LAUNCHES[policy]
            launches_s += self.cost.launch_overhead_s * launches
        times = 2.0 + self.dense_repeats(policy)
        dense_s = tuple(times * seconds for seconds in self._dense_groups_s)
        return LayerPass(dense_s, exchanges, _group_max(attention_s, self.sizes), rings, launches_s)

    @cached_property
    def forward(self) -> Phase:
        """Seconds of the forward pass."""
        return self.forward_pass.phase

    def backward(self, policy: Policy) -> Phase:
        """Seconds of the backward pass with what `policy` runs again; equation 6 on the sums."""
        return self.backward_pass(policy).phase

    def dense_repeats(self, policy: Policy) -> float:
        """Dense forward work that a policy runs again, in forwards."""
        if policy == "none":
            return 0.0
        return self.post_share if policy == "mlp" else 1.0

    @property
    def forward_exchanges(self) -> tuple[Exchange, ...]:
        """Every exchange of a forward pass."""
        return self.forward_pass.moves

    def backward_exchanges(self, policy: Policy) -> tuple[Exchange, ...]:
        """Every exchange of a backward pass, repeated ones included."""
        return self.backward_pass(policy).moves

    def compute_s(self, policy: Policy) -> PerRank:
        """Seconds every rank computes in a forward and a backward pass."""
        dense = 3.0 + self.dense_repeats(policy)
        attention = 2.0 if policy == "full" else 1.0
        return tuple(
            dense * d + attention * f + b
            for d, f, b in zip(
                self.dense_s, self.attention_forward_s, self.attention_backward_s, strict=True
            )
        )


def layer_work(
    book: PriceBook, stage: Stage, tokens: StageTokens, layer: LayerSpec, rates: Sequence[Rates]
) -> LayerWork:
    """Price the parts of one layer; `rates` are those of the stage's ranks, in order."""
    instance = book.instance
    attention = layer.attention
    a_qk, a_v = attention.qk_head_dim, attention.v_head_dim
    pairs = tokens.pairs(attention.window_tokens, book.is_causal)
    dense, forward, backward = [], [], []
    index = 0
    for group, counts, group_pairs in zip(stage.ring, tokens.rank_tokens, pairs, strict=True):
        for rank, num_tokens in zip(group.ranks, counts, strict=True):
            rate = rates[index]
            index += 1
            heads = rank.num_q_heads
            dense.append(dense_forward_flop(layer.matmul_parameters, num_tokens) / rate.dense)
            forward.append(
                attention_forward_flop(a_qk, a_v, heads, group_pairs) / rate.attention_forward
            )
            backward.append(
                attention_backward_flop(a_qk, a_v, heads, group_pairs) / rate.attention_backward
            )
    swap = all_to_all(stage, tokens, attention, book.e)
    around = ring(stage, tokens, attention, book.e, instance.cost.accumulator_bytes)
    post = post_matmul_parameters(
        instance.model.hidden_size, attention.num_q_heads, a_v, layer.mlp.matmul_parameters
    )
    return LayerWork(
        sizes=tuple(len(group.ranks) for group in stage.ring),
        dense_s=tuple(dense),
        post_share=min(post / layer.matmul_parameters, 1.0),
        attention_forward_s=tuple(forward),
        attention_backward_s=tuple(backward),
        before=book.exchange(swap.tokens_to_heads),
        after=book.exchange(swap.heads_to_tokens),
        before_back=book.exchange(transposed(swap.tokens_to_heads)),
        after_back=book.exchange(transposed(swap.heads_to_tokens)),
        ring_forward=book.exchange(around.forward),
        ring_backward=book.exchange(around.backward),
        num_hops=around.num_hops,
        cost=instance.cost,
    )


class Rates(NamedTuple):
    """FLOP/s of a device: peak x efficiency."""

    dense: float
    attention_forward: float
    attention_backward: float


def _group_max(values: Sequence[float], sizes: Sequence[int]) -> tuple[float, ...]:
    """The largest value of every group's ranks."""
    result, first = [], 0
    for size in sizes:
        result.append(max(values[first : first + size]))
        first += size
    return tuple(result)
