"""A plan: the layout (static) and the batch plan (one iteration), as a tree of frozen objects.

Replicas, stages, head groups and ranks are named by position. Numbers of ranks are counted
through the layout in order: replica, stage, head group, rank. See docs/plan.md for the file form.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

SCHEMA_VERSION = 1

RingKind = Literal["kv", "q"]
ZeroMode = Literal[0, 1, 3]
Policy = Literal["none", "mlp", "layer", "full"]
# Layers of a stage take their policy in this order: the earliest layers recompute most.
POLICY_ORDER: tuple[Policy, ...] = ("full", "layer", "mlp", "none")


@dataclass(frozen=True)
class Rank:
    """One torch process, bound to a device.

    Parameters
    ----------
    device
        Id of the device in the cluster.
    tokens
        Weight of this rank's token share: it gets ``tokens / sum over the stage``. At the
        context length of the workload the weights are the token counts themselves.
    q_heads
        Half-open range of the query heads it computes; empty is legal.
    state_share
        Weight of its share of the stage's model states (ZeRO-1 and 3; unused in ZeRO-0).
    """

    device: str
    tokens: int
    q_heads: tuple[int, int]
    state_share: int = 1

    @property
    def num_q_heads(self) -> int:
        """h_r: query heads of this rank."""
        return self.q_heads[1] - self.q_heads[0]


@dataclass(frozen=True)
class HeadGroup:
    """Ranks that pool their tokens and split the attention heads by all-to-all."""

    ranks: tuple[Rank, ...]

    @property
    def tokens(self) -> int:
        """Weight of the group's token share: the sum over its ranks."""
        return sum(rank.tokens for rank in self.ranks)


@dataclass(frozen=True)
class Stage:
    """Contiguous layers run by one ring of head groups.

    Parameters
    ----------
    layers
        Half-open range of the model's layers.
    ring
        Head groups in ring order.
    ring_kind
        What travels around the ring: ``kv`` or ``q``.
    zero
        ZeRO mode over the ranks of the stage.
    zero3_gradients
        In ZeRO-3: gradients reduced once a ``step`` (kept whole until then) or per ``chunk``.
    """

    layers: tuple[int, int]
    ring: tuple[HeadGroup, ...]
    ring_kind: RingKind = "kv"
    zero: ZeroMode = 0
    zero3_gradients: Literal["step", "chunk"] = "step"

    @property
    def num_layers(self) -> int:
        """l: layers of this stage."""
        return self.layers[1] - self.layers[0]

    @cached_property
    def ranks(self) -> tuple[Rank, ...]:
        """Ranks in ring order, group by group."""
        return tuple(rank for group in self.ring for rank in group.ranks)

    @property
    def tokens(self) -> int:
        """Sum of the token weights."""
        return sum(rank.tokens for rank in self.ranks)


@dataclass(frozen=True)
class Replica:
    """One data-parallel pipeline."""

    stages: tuple[Stage, ...]


@dataclass(frozen=True)
class Layout:
    """The static part of a plan."""

    replicas: tuple[Replica, ...]

    @cached_property
    def ranks(self) -> tuple[Rank, ...]:
        """All ranks, in the order of their numbers."""
        return tuple(rank for _, _, stage in self.stages() for rank in stage.ranks)

    def stages(self) -> Iterator[tuple[int, int, Stage]]:
        """(replica index, stage index, stage) in order."""
        for replica_idx, replica in enumerate(self.replicas):
            for stage_idx, stage in enumerate(replica.stages):
                yield replica_idx, stage_idx, stage


@dataclass(frozen=True)
class Slice:
    """Tokens ``start..stop`` of sequence number `sequence` of the global batch."""

    sequence: int
    start: int
    stop: int

    @property
    def num_tokens(self) -> int:
        """Tokens in the slice."""
        return self.stop - self.start


@dataclass(frozen=True)
class Chunk:
    """What flows through the pipeline as one unit.

    Parameters
    ----------
    slices
        Slices and whole sequences, in layout order.
    pieces
        Token pieces given explicitly, ``[stage][rank] -> slices``; None for the published rule
        of `hexisolve.plan.pieces`.
    """

    slices: tuple[Slice, ...]
    pieces: tuple[tuple[tuple[Slice, ...], ...], ...] | None = None

    @property
    def num_tokens(self) -> int:
        """Tokens in the chunk."""
        return sum(part.num_tokens for part in self.slices)


@dataclass(frozen=True)
class Pipeline:
    """Chunks that are in flight together, and what every stage does with them.

    Parameters
    ----------
    chunks
        The chunks, numbered in order.
    schedule
        Per stage, the operations in order: ``F3`` and ``B3`` are forward and backward of chunk 3.
    recompute
        ``[stage][chunk] -> {policy: layers}``; the counts sum to the layers of the stage.
    offload
        ``[stage][chunk] -> layers`` whose kept activations wait in host memory.
    """

    chunks: tuple[Chunk, ...]
    schedule: tuple[tuple[str, ...], ...]
    recompute: tuple[tuple[Mapping[Policy, int], ...], ...]
    offload: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True)
class ReplicaBatch:
    """The pipelines one replica runs one after another in a step."""

    pipelines: tuple[Pipeline, ...]


@dataclass(frozen=True)
class BatchPlan:
    """The per-iteration part of a plan, replica by replica."""

    replicas: tuple[ReplicaBatch, ...]


@dataclass(frozen=True)
class Plan:
    """Layout and batch plan together; `print` shows a small tree."""

    layout: Layout
    batch: BatchPlan
    schema_version: int = field(default=SCHEMA_VERSION)

    def __str__(self) -> str:
        from hexisolve.plan.render import render_plan

        return render_plan(self)


def layer_policies(recompute: Mapping[Policy, int]) -> tuple[Policy, ...]:
    """Policy of every layer of a stage, in layer order (`POLICY_ORDER` from the first layer)."""
    return tuple(policy for policy in POLICY_ORDER for _ in range(recompute.get(policy, 0)))
