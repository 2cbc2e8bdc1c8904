"""Seconds and bytes of Megatron's parallelism, from the cost functions that `evaluate` uses.

A tensor-parallel group looks like a head group that also splits the weights: sequence parallelism
is on, so activations outside attention are sharded over the group.

Source: Korthikanti et al. 2022 (arXiv 2205.05198) for the collectives of sequence parallelism.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hexisolve.cost.communication import Flow, edge_bytes, edge_seconds, exchange_time_s
from hexisolve.cost.exchange import (
    boundary_bytes,
    kv_width,
    ring_kv_backward_bytes,
    ring_kv_forward_bytes,
    visiting_tokens,
)
from hexisolve.cost.flop import (
    attention_backward_flop,
    attention_forward_flop,
    dense_forward_flop,
    head_forward_flop,
    query_pairs,
)
from hexisolve.cost.layer_time import layer_s
from hexisolve.cost.memory import (
    Policy,
    RankShare,
    backward_transient_bytes,
    boundary_buffer_bytes,
    exchange_buffer_bytes,
    kept_bytes,
    logits_bytes,
    ring_buffer_bytes,
    usable_bytes,
)
from hexisolve.data.cluster import Device, Edge
from hexisolve.data.instance import Instance
from hexisolve.data.model_spec import LayerSpec

_VOCAB_MULTIPLE = 128
# All-gather before attention and MLP, reduce-scatter after them; as many in backward.
NUM_COLLECTIVES = 4


@dataclass(frozen=True)
class MegatronDegrees:
    """Degrees of tensor, context, pipeline and data parallelism."""

    tensor: int
    context: int
    pipeline: int
    data: int

    def __str__(self) -> str:
        return f"TP {self.tensor} x CP {self.context} x PP {self.pipeline} x DP {self.data}"


@dataclass(frozen=True)
class Grid4D:
    """One choice of degrees on a list of devices: rank (p, r, c, t) sits on a fixed device.

    p pipeline stage, r data-parallel index, c context index, t tensor index.
    """

    instance: Instance
    devices: tuple[Device, ...]
    degrees: MegatronDegrees

    def device(self, p: int, r: int, c: int, t: int) -> Device:
        """The device of a rank, in the order tp-cp-dp-pp."""
        d = self.degrees
        return self.devices[((p * d.data + r) * d.context + c) * d.tensor + t]

    @property
    def element_bytes(self) -> int:
        """e: bytes per element."""
        return self.instance.workload.element_bytes

    def padded_vocab(self) -> int:
        """Vocabulary padded to a multiple of 128 x TP, as Megatron does."""
        multiple = _VOCAB_MULTIPLE * self.degrees.tensor
        return -(-self.instance.model.vocab_size // multiple) * multiple

    def stage_layers(self, p: int) -> tuple[LayerSpec, ...]:
        """Layers of stage p."""
        per_stage = self.instance.model.num_layers // self.degrees.pipeline
        return self.instance.model.layers[p * per_stage : (p + 1) * per_stage]

    def rank_parameters(self, p: int) -> float:
        """Parameters a rank of stage p holds: a tensor-parallel share of its stage's."""
        model = self.instance.model
        total = sum(layer.parameters for layer in self.stage_layers(p))
        if p == 0:
            total += model.embedding_parameters
        if p == self.degrees.pipeline - 1:
            total += model.final_norm_parameters + model.head_parameters
            if model.tied_embeddings and p > 0:
                total += model.embedding_parameters
        return total / self.degrees.tensor

    def seconds(self, flows: Iterable[Flow]) -> float:
        """Time of simultaneous flows."""
        return exchange_time_s(self.instance.cluster, flows, self.instance.cost.link_efficiency)

    def busiest_s(self, moves: Iterable[tuple[int, Sequence[Flow]]]) -> float:
        """Seconds that the edge with the most work needs for (times, flows)."""
        cluster = self.instance.cluster
        total: dict[Edge, float] = {}
        for times, flows in moves:
            for edge, num_bytes in edge_bytes(cluster, flows).items():
                total[edge] = total.get(edge, 0.0) + times * num_bytes
        efficiency = self.instance.cost.link_efficiency
        return max(edge_seconds(cluster, total, efficiency).values(), default=0.0)

    def ring_flows(self, groups: Iterable[Sequence[Device]], received: float) -> list[Flow]:
        """Every device receives from the one before it, in all groups at once."""
        return [
            Flow(group[idx - 1].id, device.id, received)
            for group in groups
            if len(group) > 1
            for idx, device in enumerate(group)
        ]

    def tensor_groups(self, p: int, r: int) -> list[list[Device]]:
        """The tensor-parallel groups of one pipeline stage."""
        d = self.degrees
        return [[self.device(p, r, c, t) for t in range(d.tensor)] for c in range(d.context)]

    def context_rings(self, p: int, r: int) -> list[list[Device]]:
        """The context-parallel rings of one pipeline stage."""
        d = self.degrees
        return [[self.device(p, r, c, t) for c in range(d.context)] for t in range(d.tensor)]

    def reduction_rings(self, p: int) -> list[list[Device]]:
        """Ranks that hold the same weights of stage p: data x context, per tensor index."""
        d = self.degrees
        return [
            [self.device(p, r, c, t) for r in range(d.data) for c in range(d.context)]
            for t in range(d.tensor)
        ]


class LayerFlows(NamedTuple):
    """What moves in one layer: one collective of the tensor groups, the ring, the ring back."""

    collective: list[Flow]
    ring: list[Flow]
    ring_back: list[Flow]


def layer_flows(grid: Grid4D, p: int, r: int, layer: LayerSpec, num_tokens: int) -> LayerFlows:
    """Flows of one layer on stage p of data-parallel index r."""
    d, attention, e = grid.degrees, layer.attention, grid.element_bytes
    group_tokens = num_tokens // d.context
    received = (d.tensor - 1) / d.tensor * group_tokens * grid.instance.model.hidden_size * e
    visiting = visiting_tokens(num_tokens, 0, group_tokens)
    width = kv_width(attention.num_kv_heads / d.tensor, attention)
    back = ring_kv_backward_bytes(
        visiting, visiting, width, e, grid.instance.cost.accumulator_bytes
    )
    rings = grid.context_rings(p, r)
    return LayerFlows(
        grid.ring_flows(grid.tensor_groups(p, r), received),
        grid.ring_flows(rings, ring_kv_forward_bytes(visiting, width, e)),
        grid.ring_flows(rings, back),
    )


def pipeline_flows(
    grid: Grid4D, r: int, lengths: Sequence[int], recompute: Sequence[int]
) -> Iterator[tuple[int, list[Flow]]]:
    """Everything one data-parallel pipeline moves in a step, as (times, flows)."""
    for num_tokens in set(lengths):
        num_chunks = lengths.count(num_tokens)
        for p in range(grid.degrees.pipeline):
            layers = grid.stage_layers(p)
            for layer in dict.fromkeys(layers):
                flows = layer_flows(grid, p, r, layer, num_tokens)
                once = num_chunks * layers.count(layer)
                again = num_chunks * layers[: recompute[p]].count(layer)
                yield NUM_COLLECTIVES * (2 * once + again), flows.collective
                yield once + again, flows.ring
                yield once, flows.ring_back
            if p < grid.degrees.pipeline - 1:
                yield num_chunks, boundary_flows(grid, p, r, num_tokens, backward=False)
                yield num_chunks, boundary_flows(grid, p, r, num_tokens, backward=True)


class _Layer(NamedTuple):
    """Seconds of one layer on one stage for one sequence."""

    forward_s: float
    backward_s: float


def _layer_seconds(grid: Grid4D, p: int, r: int, layer: LayerSpec, num_tokens: int) -> _Layer:
    """Equation 6 with tensor-parallel collectives in the place of the all-to-all."""
    d, attention = grid.degrees, layer.attention
    instance = grid.instance
    cost = instance.cost
    group_tokens = num_tokens // d.context
    groups = grid.tensor_groups(p, r)
    dense = dense_forward_flop(layer.matmul_parameters, group_tokens) / d.tensor
    dense_s = [dense / min(device.dense_flop_per_s for device in group) for group in groups]
    heads = attention.num_q_heads // d.tensor
    widths = attention.qk_head_dim, attention.v_head_dim
    forward_s, backward_s = [], []
    for c, group in enumerate(groups):
        pairs = _zigzag_pairs(instance, layer, c, d.context, num_tokens)
        forward = attention_forward_flop(*widths, heads, pairs)
        backward = attention_backward_flop(*widths, heads, pairs)
        forward_s.append(forward / min(g.attention_forward_flop_per_s for g in group))
        backward_s.append(backward / min(g.attention_backward_flop_per_s for g in group))
    flows = layer_flows(grid, p, r, layer, num_tokens)
    collectives_s = NUM_COLLECTIVES * grid.seconds(flows.collective)
    ring_s, ring_back_s = grid.seconds(flows.ring), grid.seconds(flows.ring_back)
    launches_s = (cost.launches_per_layer + d.context - 1) * cost.launch_overhead_s
    return _Layer(
        layer_s(dense_s, collectives_s, forward_s, ring_s) + launches_s,
        layer_s([2 * s for s in dense_s], collectives_s, backward_s, ring_back_s) + launches_s,
    )


def _zigzag_pairs(
    instance: Instance, layer: LayerSpec, c: int, context: int, num_tokens: int
) -> int:
    """Query-key pairs of context index c: a piece of the front half and its mirror."""
    half = num_tokens // context // 2
    is_causal = instance.workload.attention == "causal"
    window = layer.attention.window_tokens
    pieces = ((c * half, (c + 1) * half), (num_tokens - (c + 1) * half, num_tokens - c * half))
    return sum(query_pairs(*piece, num_tokens, window, is_causal) for piece in pieces)


class StageTimes(NamedTuple):
    """Seconds of one pipeline stage, per sequence."""

    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]


def stage_times(
    grid: Grid4D, p: int, r: int, lengths: Sequence[int], num_recomputed: int
) -> StageTimes:
    """Seconds of stage p for every sequence of data-parallel index r.

    Its first `num_recomputed` layers run their whole forward again in backward.
    """
    model, d = grid.instance.model, grid.degrees
    slowest = min(device.dense_flop_per_s for group in grid.tensor_groups(p, r) for device in group)
    per_length: dict[int, tuple[float, float]] = {}
    for num_tokens in set(lengths):
        layers = grid.stage_layers(p)
        prices = {
            layer: _layer_seconds(grid, p, r, layer, num_tokens) for layer in dict.fromkeys(layers)
        }
        forward = sum(prices[layer].forward_s for layer in layers)
        backward = sum(prices[layer].backward_s for layer in layers)
        backward += sum(prices[layer].forward_s for layer in layers[:num_recomputed])
        if p == d.pipeline - 1:
            flop = head_forward_flop(model.hidden_size, grid.padded_vocab(), num_tokens)
            head_s = flop / d.context / d.tensor / slowest
            forward, backward = forward + head_s, backward + 2 * head_s
        per_length[num_tokens] = forward, backward
    return StageTimes(*zip(*(per_length[num_tokens] for num_tokens in lengths), strict=True))


def boundary_flows(grid: Grid4D, p: int, r: int, num_tokens: int, *, backward: bool) -> list[Flow]:
    """Hidden states from stage p to p + 1 (or gradients back): every rank to its counterpart."""
    d = grid.degrees
    own_tokens = num_tokens // d.context // d.tensor
    num_bytes = boundary_bytes(own_tokens, grid.instance.model.hidden_size, grid.element_bytes)
    pairs = [
        (grid.device(p, r, c, t).id, grid.device(p + 1, r, c, t).id)
        for c in range(d.context)
        for t in range(d.tensor)
    ]
    return [Flow(*(pair[::-1] if backward else pair), num_bytes) for pair in pairs]


def least_recompute(grid: Grid4D, p: int, num_tokens: int, num_chunks: int) -> int | None:
    """Fewest layers of stage p that must be recomputed in full; None when all are not enough.

    The first layers of the stage take ``full``, the rest ``none``.
    """
    d, e = grid.degrees, grid.element_bytes
    hidden, e_acc = grid.instance.model.hidden_size, grid.instance.cost.accumulator_bytes
    in_flight = min(num_chunks, d.pipeline - p)
    layers = grid.stage_layers(p)
    shares = {layer: _rank_share(layer, num_tokens // d.context, d.tensor) for layer in set(layers)}
    whole = {layer: kept_bytes("none", shares[layer], layer, hidden, e) for layer in shares}
    inputs = {layer: kept_bytes("full", shares[layer], layer, hidden, e) for layer in shares}
    policies: tuple[Policy, ...] = ("none", "full")
    transient = [
        max(backward_transient_bytes(policy, shares[layer], layer, hidden, e, e_acc)
            for layer in shares)
        for policy in policies
    ]  # fmt: skip
    free = _usable_bytes(grid, p) - _fixed_bytes(grid, p, num_tokens)
    kept = sum(whole[layer] for layer in layers)
    if in_flight * kept + transient[0] <= free:
        return 0
    for num_full, layer in enumerate(layers, 1):
        kept -= whole[layer] - inputs[layer]
        if in_flight * kept + transient[1] <= free:
            return num_full
    return None


def _fixed_bytes(grid: Grid4D, p: int, num_tokens: int) -> float:
    """States, buffers and logits of a rank of stage p: what recompute does not change."""
    d, e, cost = grid.degrees, grid.element_bytes, grid.instance.cost
    states = e + cost.gradient_bytes + cost.optimizer_bytes / (d.data * d.context)
    total = grid.rank_parameters(p) * states
    group_tokens = num_tokens // d.context
    buffers = [0]
    for layer in set(grid.stage_layers(p)):
        own = _rank_share(layer, group_tokens, d.tensor)
        exchange = exchange_buffer_bytes(own, layer, e) if d.tensor > 1 else 0
        if d.context > 1:
            exchange += ring_buffer_bytes(num_tokens, own, layer, e, cost.accumulator_bytes)
        buffers.append(exchange)
    total += max(buffers)
    if d.pipeline > 1:
        share = RankShare(group_tokens // d.tensor, group_tokens, 0, 0)
        total += boundary_buffer_bytes(share, grid.instance.model.hidden_size, e)
    if p == d.pipeline - 1:
        vocab = grid.padded_vocab() // d.tensor
        total += logits_bytes(group_tokens, vocab, e, cost.logits_tile_tokens)
    return total


def _usable_bytes(grid: Grid4D, p: int) -> int:
    """Usable memory of the smallest device of stage p."""
    d = grid.degrees
    # Peers of a rank's process groups: tensor, data x context (context inside it), neighbours.
    num_peers = (d.tensor - 1) + (d.data * d.context - 1) + min(d.pipeline - 1, 2)
    per_stage = len(grid.devices) // d.pipeline
    own = grid.devices[p * per_stage : (p + 1) * per_stage]
    return min(usable_bytes(d.memory_bytes, num_peers, grid.instance.cost) for d in own)


def _rank_share(layer: LayerSpec, group_tokens: int, tensor: int) -> RankShare:
    attention = layer.attention
    return RankShare(
        group_tokens // tensor, group_tokens, attention.num_q_heads // tensor,
        attention.num_kv_heads // tensor,
    )  # fmt: skip
