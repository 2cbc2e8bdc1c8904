"""How the tokens of a chunk lie on a stage: counts and query-key pairs, from exact pieces."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from hexisolve.cost.flop import query_pairs
from hexisolve.plan.pieces import StagePieces, stage_pieces
from hexisolve.plan.plan import Chunk, Slice, Stage

Interval = tuple[int, int, int]
# The part of a chunk that its price depends on: (start, stop) of every slice, explicit pieces.
ChunkShape = tuple[tuple[tuple[int, int], ...], tuple[tuple[tuple[Interval, ...], ...], ...] | None]


def chunk_shape(chunk: Chunk) -> ChunkShape:
    """The chunk without the numbers of its sequences: equal shapes cost the same."""
    spans = tuple((part.start, part.stop) for part in chunk.slices)
    if chunk.pieces is None:
        return spans, None
    index = {part.sequence: idx for idx, part in enumerate(chunk.slices)}
    pieces = tuple(
        tuple(tuple((index.get(p.sequence, -1), p.start, p.stop) for p in own) for own in stage)
        for stage in chunk.pieces
    )
    return spans, pieces


def shaped_chunk(shape: ChunkShape) -> Chunk:
    """A chunk of that shape; its sequences are numbered by position."""
    spans, pieces = shape
    slices = tuple(Slice(idx, start, stop) for idx, (start, stop) in enumerate(spans))
    if pieces is None:
        return Chunk(slices)
    return Chunk(
        slices,
        tuple(tuple(tuple(Slice(*piece) for piece in own) for own in stage) for stage in pieces),
    )


@dataclass(frozen=True, eq=False)
class StageTokens:
    """The tokens of one chunk on one stage.

    Parameters
    ----------
    slices
        The chunk's slices, numbered by position (`Slice.sequence` is that number).
    pieces
        ``[group][rank] -> slices``.
    """

    slices: tuple[Slice, ...]
    pieces: StagePieces

    @cached_property
    def rank_tokens(self) -> tuple[tuple[int, ...], ...]:
        """s_r of every rank, ``[group][rank]``."""
        return tuple(
            tuple(sum(part.num_tokens for part in own) for own in group) for group in self.pieces
        )

    @cached_property
    def group_tokens(self) -> tuple[int, ...]:
        """S_g of every head group."""
        return tuple(sum(group) for group in self.rank_tokens)

    @cached_property
    def owned(self) -> tuple[tuple[int, ...], ...]:
        """Tokens of every slice in every group, ``[slice][group]``."""
        counts = [[0] * len(self.pieces) for _ in self.slices]
        for group_idx, group in enumerate(self.pieces):
            for own in group:
                for part in own:
                    counts[part.sequence][group_idx] += part.num_tokens
        return tuple(map(tuple, counts))

    def pairs(self, window_tokens: int | None, is_causal: bool) -> tuple[int, ...]:
        """Query-key pairs of every group."""
        stops = [part.stop for part in self.slices]
        return tuple(
            sum(
                query_pairs(p.start, p.stop, stops[p.sequence], window_tokens, is_causal)
                for own in group
                for p in own
            )
            for group in self.pieces
        )


def stage_tokens(stage: Stage, shape: ChunkShape, stage_idx: int) -> StageTokens:
    """Lay a chunk out on a stage by the published rule, or by its explicit pieces."""
    chunk = shaped_chunk(shape)
    return StageTokens(chunk.slices, stage_pieces(stage, chunk, stage_idx))
