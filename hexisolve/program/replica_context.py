"""What the programs of one replica share: shapes, boundaries, process groups, weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate

from hexisolve.data.instance import Instance
from hexisolve.data.model_spec import AttentionSpec
from hexisolve.plan.pieces import StagePieces, stage_pieces
from hexisolve.plan.plan import Chunk, Pipeline, Slice, Stage
from hexisolve.program.boundary import RowMap, overlaps
from hexisolve.program.layer_programs import StageShape, stage_shape
from hexisolve.program.rank_program import Channel
from hexisolve.program.weights import Holding, stage_holdings


@dataclass
class ReplicaContext:
    """One replica while it is compiled; everything is computed once and shared by its ranks.

    Parameters
    ----------
    first_rank
        Global number of its first rank.
    ring_blocks
        Blocks of KV aimed at per ring.
    """

    instance: Instance
    replica_idx: int
    stages: Sequence[Stage]
    pipelines: Sequence[Pipeline]
    first_rank: int
    ring_blocks: int
    _shapes: dict[tuple[int, int, AttentionSpec], StageShape] = field(default_factory=dict)
    _rows: dict[tuple[int, int], RowMap] = field(default_factory=dict)

    @cached_property
    def stage_first_ranks(self) -> tuple[int, ...]:
        """Number of every stage's first rank."""
        sizes = [len(stage.ranks) for stage in self.stages]
        return tuple(accumulate(sizes[:-1], initial=self.first_rank))

    def members(self, stage_idx: int) -> tuple[int, ...]:
        """Numbers of the ranks of a stage."""
        first = self.stage_first_ranks[stage_idx]
        return tuple(range(first, first + len(self.stages[stage_idx].ranks)))

    def prefix(self, stage_idx: int) -> str:
        """What names of a stage's process groups and templates begin with."""
        return f"r{self.replica_idx}.s{stage_idx}"

    @cached_property
    def holdings(self) -> tuple[tuple[Holding, ...], ...]:
        """Units of weights of every stage."""
        return tuple(
            stage_holdings(
                self.instance.model, stage, self.members(idx), f"{self.prefix(idx)}.states"
            )
            for idx, stage in enumerate(self.stages)
        )

    @cached_property
    def chunks(self) -> tuple[Chunk, ...]:
        """Chunks of all pipelines, in order."""
        return tuple(chunk for pipeline in self.pipelines for chunk in pipeline.chunks)

    @cached_property
    def chunk_shapes(self) -> tuple[int, ...]:
        """Number of the shape of every chunk."""
        numbers: dict[Chunk, int] = {}
        return tuple(numbers.setdefault(canonical(chunk), len(numbers)) for chunk in self.chunks)

    def channels(self) -> Iterator[Channel]:
        """Process groups of the replica, in creation order."""
        for idx, stage in enumerate(self.stages):
            first = self.stage_first_ranks[idx]
            for group_idx, group in enumerate(stage.ring):
                if len(group.ranks) > 1:
                    members = tuple(range(first, first + len(group.ranks)))
                    yield Channel(f"{self.prefix(idx)}.group{group_idx}", members)
                first += len(group.ranks)
            if len(stage.ring) > 1:
                yield Channel(f"{self.prefix(idx)}.ring", self.members(idx))
            if len(stage.ranks) > 1:
                yield Channel(f"{self.prefix(idx)}.states", self.members(idx))
        for idx, names in enumerate(self.boundary_channels):
            members = self.members(idx) + self.members(idx + 1)
            yield from (Channel(name, members) for name in names)

    @cached_property
    def boundary_channels(self) -> tuple[tuple[str, str], ...]:
        """``[boundary] -> (forward, backward)``."""
        return tuple(
            (
                f"r{self.replica_idx}.boundary{idx}.forward",
                f"r{self.replica_idx}.boundary{idx}.backward",
            )
            for idx in range(len(self.stages) - 1)
        )

    @cached_property
    def layer_kinds(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Number of every layer's kind: by attention alone, and by attention and size."""
        layers = self.instance.model.layers
        by_attention: dict[AttentionSpec, int] = {}
        by_size: dict[tuple[AttentionSpec, int], int] = {}
        return (
            tuple(by_attention.setdefault(la.attention, len(by_attention)) for la in layers),
            tuple(by_size.setdefault((la.attention, la.parameters), len(by_size)) for la in layers),
        )

    def pieces(self, stage_idx: int, chunk_idx: int) -> StagePieces:
        """Pieces of a chunk in its canonical shape: sequences numbered from 0."""
        return stage_pieces(self.stages[stage_idx], canonical(self.chunks[chunk_idx]), stage_idx)

    def shape(self, stage_idx: int, chunk_idx: int, attention: AttentionSpec) -> StageShape:
        """Lay out a stage for a chunk, once per shape and kind of attention."""
        key = (stage_idx, self.chunk_shapes[chunk_idx], attention)
        if key not in self._shapes:
            self._shapes[key] = stage_shape(
                self.stages[stage_idx],
                self.stage_first_ranks[stage_idx],
                self.pieces(stage_idx, chunk_idx),
                attention,
                self.prefix(stage_idx),
                causal=self.instance.workload.attention == "causal",
                ring_blocks=self.ring_blocks,
            )
        return self._shapes[key]

    def boundary_rows(self, chunk_idx: int, boundary: int) -> RowMap:
        """Find who shares which tokens of a chunk across a boundary, once per shape."""
        key = (self.chunk_shapes[chunk_idx], boundary)
        if key not in self._rows:
            self._rows[key] = overlaps(
                self.pieces(boundary, chunk_idx),
                self.stage_first_ranks[boundary],
                self.pieces(boundary + 1, chunk_idx),
                self.stage_first_ranks[boundary + 1],
            )
        return self._rows[key]


def canonical(chunk: Chunk) -> Chunk:
    """Renumber the sequences of a chunk in order of appearance."""
    numbers: dict[int, int] = {}

    def renumber(parts: Sequence[Slice]) -> tuple[Slice, ...]:
        return tuple(
            Slice(numbers.setdefault(part.sequence, len(numbers)), part.start, part.stop)
            for part in parts
        )

    slices = renumber(chunk.slices)
    if chunk.pieces is None:
        return Chunk(slices)
    return Chunk(slices, tuple(tuple(renumber(own) for own in ranks) for ranks in chunk.pieces))
