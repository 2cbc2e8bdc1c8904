"""What the layers of a stage keep on the devices of each host, as shares of tokens and heads.

Bytes of a device are linear in its tokens and in its group's tokens times its heads, so the sum
over the devices of a host is linear in X_h and X_S eta_h (docs/formulation.md, section 3).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from hexisolve.cost.memory import (
    RankShare,
    backward_transient_bytes,
    boundary_buffer_bytes,
    exchange_buffer_bytes,
    kept_bytes,
    logits_bytes,
)
from hexisolve.data.instance import Instance
from hexisolve.formulation.bundled_work import HostMemory
from hexisolve.formulation.pipeline_table import FloatArray
from hexisolve.formulation.relaxed_layer import ColumnShape
from hexisolve.formulation.stage_memory_bound import (
    StateMode,
    gathered_bytes,
    state_bytes_per_device,
    usable_of,
)
from hexisolve.formulation.stage_sizes import StageSizes
from hexisolve.formulation.work import POLICIES
from hexisolve.plan.plan import Policy


class StagePlace(NamedTuple):
    """One stage of a column.

    Parameters
    ----------
    stages_after
        j.
    place
        1 for the first stage, else 0 (layers of one kind).
    num_layers
        l.
    """

    stages_after: int
    place: int
    num_layers: int


class LayerBytes(NamedTuple):
    """Bytes of one layer of a whole chunk, (per token share, per share of tokens and heads).

    Parameters
    ----------
    kept
        ``[policy, 2]`` between forward and backward.
    transient
        ``[policy, 2]`` during its backward, at least.
    exchange, boundary
        ``[2]`` buffers of an all-to-all, and of a stage boundary.
    """

    kept: FloatArray
    transient: FloatArray
    exchange: FloatArray
    boundary: FloatArray


def layer_bytes(instance: Instance, num_tokens: int) -> LayerBytes:
    """Bytes of a layer; K, V are held at least once for every query head that uses them."""
    layer, hidden = instance.model.layers[0], instance.model.hidden_size
    e, e_acc = instance.workload.element_bytes, instance.cost.accumulator_bytes
    attention = layer.attention
    heads = attention.num_q_heads, attention.num_kv_heads
    shares = RankShare(num_tokens, 0, 0, 0), RankShare(0, num_tokens, *heads)
    everything = RankShare(num_tokens, num_tokens, *heads)

    def working(policy: Policy, share: RankShare) -> float:
        return float(backward_transient_bytes(policy, share, layer, hidden, e, e_acc))

    kept = np.array(
        [[kept_bytes(policy, s, layer, hidden, e) for s in shares] for policy in POLICIES],
        dtype=float,
    )
    transient = []
    for policy, own in zip(POLICIES, kept, strict=True):
        # What is made again is linear; beside it max(m t, o t + a w) of tokens t and pairs w, of
        # which the part counts that is larger for even shares.
        again = kept[0] - own
        tokens, pairs = np.array([working(policy, share) for share in shares]) - again
        whole = working(policy, everything) - again.sum()
        transient.append(again + ([whole - pairs, pairs] if whole > tokens else [tokens, 0.0]))
    return LayerBytes(
        kept,
        np.array(transient),
        np.array([exchange_buffer_bytes(s, layer, e) for s in shares], dtype=float),
        np.array([boundary_buffer_bytes(s, hidden, e) for s in shares], dtype=float),
    )


def host_memory(
    instance: Instance,
    column: ColumnShape,
    mode: StateMode,
    sizes: StageSizes,
    stage: StagePlace,
    live_tokens: float,
    counts: Sequence[int],
    smallest_stage: int = 1,
) -> HostMemory:
    """What a stage with these numbers of layers of each policy needs on every host.

    Parameters
    ----------
    sizes
        Of stages with a head, or without one, as `stage` says.
    live_tokens
        Tokens of the chunks in flight; the longest chunk is one of them.
    smallest_stage
        Devices of a neighbour at least.
    """
    longest = max(instance.workload.sequence_lengths)
    item = layer_bytes(instance, longest)
    num_devices = len(column.devices)
    place = stage.place, stage.num_layers
    states = state_bytes_per_device(instance, mode, sizes.parameters[place], num_devices)
    states = states + gathered_bytes(
        instance, mode, sizes.pair[place], sizes.largest[place], num_devices
    )
    neighbours = (stage.place == 0) + (stage.stages_after > 0)
    usable = usable_of(instance, column.devices, neighbours * smallest_stage)
    room = np.array([float(usable[list(host)].sum()) for host in column.hosts])
    room = room - np.array([len(host) for host in column.hosts]) * float(states)
    needs = np.array(counts, dtype=float) @ item.kept * (live_tokens / longest)
    # The policy that makes most again has the largest backward.
    needs = needs + item.transient[max(k for k, count in enumerate(counts) if count)]
    if neighbours:
        needs = needs + item.boundary
    width, tile = 0, instance.cost.logits_tile_tokens
    if not stage.stages_after:
        width = logits_bytes(
            longest, instance.model.vocab_size, instance.workload.element_bytes, longest
        )
    return HostMemory(
        tuple(needs.tolist()), tuple(item.exchange.tolist()), room, float(width), tile / longest
    )
