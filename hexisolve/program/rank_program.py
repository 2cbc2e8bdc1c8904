"""The compiled form of a plan: one nested program per rank, and the channels they share."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeAlias

from hexisolve.data.instance import Instance
from hexisolve.plan.pieces import Pieces
from hexisolve.plan.plan import Plan, Policy
from hexisolve.program.instructions import Instruction, Interval

Phase: TypeAlias = Literal["forward", "backward"]
STEP_END = -1
"""Chunk number of instructions that belong to no chunk."""


@dataclass(frozen=True)
class Channel:
    """A process group: global rank numbers in order. Created on all ranks, in tuple order."""

    name: str
    members: tuple[int, ...]


@dataclass(frozen=True)
class Template:
    """The instructions of one layer for one chunk shape, layer kind and recompute policy.

    All transfers of a template start and finish inside it. Templates of the same name on the
    ranks of a stage belong together.

    Parameters
    ----------
    name
        Unique in the whole plan for (replica, stage, shape, kind, policy, phase).
    policy
        Recompute policy.
    num_q_heads, num_kv_heads, qk_head_dim, v_head_dim
        H, K, a_qk, a_v of the layers it is for.
    """

    name: str
    phase: Phase
    policy: Policy
    instructions: tuple[Instruction, ...]
    num_q_heads: int
    num_kv_heads: int
    qk_head_dim: int
    v_head_dim: int


@dataclass(frozen=True, slots=True)
class Call:
    """Run a template for layers ``layers[0]..layers[1]`` (global numbers).

    Forward in ascending order, backward in descending order.
    """

    template: str
    chunk: int
    layers: Interval
    phase: Phase


@dataclass(frozen=True, slots=True)
class Do:
    """Run one instruction for a chunk (`STEP_END`: for none)."""

    chunk: int
    instruction: Instruction


@dataclass(frozen=True)
class Shard:
    """What a rank holds of one chunk.

    Parameters
    ----------
    pieces
        Its tokens, as slices of sequences, in storage order.
    group_rows
        Its row interval in the group order.
    num_group_rows
        S.
    """

    pieces: Pieces
    group_rows: Interval
    num_group_rows: int

    @property
    def num_rows(self) -> int:
        """T."""
        return self.group_rows[1] - self.group_rows[0]


@dataclass(frozen=True)
class Unit:
    """Weights that are reduced, stepped and gathered together, as one flat vector.

    Names: ``embedding``, ``layer:<number>``, ``final_norm``, ``head``. With tied embeddings the
    stage of the head holds a second ``embedding`` instead of ``head``.

    Parameters
    ----------
    size
        Parameters.
    share
        Element interval this rank updates and stores the optimizer state of.
    """

    name: str
    size: int
    share: Interval


@dataclass(frozen=True)
class RankProgram:
    """Everything one rank does in one optimizer step.

    Parameters
    ----------
    rank, device
        Global rank number and its device.
    replica, stage, num_stages
        Where it stands; `num_stages` of its replica.
    group_idx, member_idx
        Head group in the ring; position in the group.
    layers
        Layer range of the stage.
    zero
        ZeRO mode of the stage.
    units
        The weights of the stage, in flat order.
    shards
        What it holds of every chunk of its replica (chunks counted through the pipelines).
    templates
        By name.
    body
        The step.
    """

    rank: int
    device: str
    replica: int
    stage: int
    num_stages: int
    group_idx: int
    member_idx: int
    layers: Interval
    zero: Literal[0, 1, 3]
    units: tuple[Unit, ...]
    shards: tuple[Shard, ...]
    templates: Mapping[str, Template]
    body: tuple[Do | Call, ...]

    def layers_of(self, call: Call) -> range:
        """Layers of a call in the order they run."""
        first, stop = call.layers
        return range(first, stop) if call.phase == "forward" else range(stop - 1, first - 1, -1)


@dataclass(frozen=True)
class Programs:
    """The programs of all ranks of a plan.

    Parameters
    ----------
    ranks
        In the order of rank numbers.
    channels
        Every process group, in creation order.
    sequence_lengths
        Tokens of each sequence of the global batch.
    supervised_tokens
        Targets in the global batch: the sum over sequences of (length - 1).
    ring_blocks
        Blocks aimed at per ring.
    """

    instance: Instance
    plan: Plan
    ranks: tuple[RankProgram, ...]
    channels: tuple[Channel, ...]
    sequence_lengths: tuple[int, ...]
    supervised_tokens: int
    ring_blocks: int

    @cached_property
    def digest(self) -> str:
        """SHA-256 over instance, programs and channels: equal on all ranks or nothing starts."""
        digest = hashlib.sha256(self.instance.digest.encode())
        digest.update(repr((self.channels, self.sequence_lengths, self.ring_blocks)).encode())
        for program in self.ranks:
            digest.update(repr(program).encode())
        return digest.hexdigest()


def expand(program: RankProgram) -> Iterator[tuple[Instruction, int, int]]:
    """Give the flat stream ``(instruction, chunk, layer)``; layer -1 outside of layers."""
    for item in program.body:
        if isinstance(item, Do):
            yield item.instruction, item.chunk, -1
        else:
            instructions = program.templates[item.template].instructions
            for layer in program.layers_of(item):
                for instruction in instructions:
                    yield instruction, item.chunk, layer
