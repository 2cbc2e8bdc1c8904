"""Chunks for one batch by rule: cut the long, pack the short, recompute what does not fit.

Source: InfiniPipe (arXiv 2509.21275), algorithm 1, for stages that differ: see docs/elastic.md.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from hexisolve.data.instance import Instance
from hexisolve.errors import NoPlanError
from hexisolve.formulation.chunk_load import FloatArray, IntArray, Span
from hexisolve.plan.plan import BatchPlan, Layout, Plan, ReplicaBatch
from hexisolve.plan.price_book import price_book
from hexisolve.solvers.elastic.mesh import Ruler, cut, equal_cuts, make_ruler
from hexisolve.solvers.elastic.order import PACES, Pace
from hexisolve.solvers.elastic.packing import best_fit
from hexisolve.solvers.elastic.pipeline import (
    Draft,
    Misfit,
    PricedChunks,
    ReplicaModel,
    draft_pipeline,
    price_chunks,
    replica_model,
    to_pipeline,
)
from hexisolve.units import format_bytes

logger = logging.getLogger(__name__)

# Slices of the longest sequence that are tried; with 1, chunks may also be several times as heavy
# as the longest sequence.
_SLICES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
_HEAVIER = (2, 4, 8, 16)
_TOKEN_FACTORS = (1.0, 1.5, 2.5)
_PATIENCE = 2  # finer grains that are worse, one after another, before the sweep ends


class Grain(NamedTuple):
    """How coarse the chunks are.

    Parameters
    ----------
    num_slices
        m: slices of the longest sequence.
    heavier
        Cap of a chunk as a multiple of the heaviest slice.
    token_factor
        Cap of its tokens as a multiple of those of the slice with most tokens.
    """

    num_slices: int
    heavier: int = 1
    token_factor: float = 1.5


@dataclass(frozen=True, eq=False)
class _Sequences:
    """The sequences of one replica, longest first, and what cutting them needs."""

    numbers: tuple[int, ...]
    lengths: IntArray
    ruler: Ruler
    whole_s: FloatArray


def heuristic_batch(
    instance: Instance, layout: Layout, *, num_slices: Sequence[int] | None = None
) -> Plan:
    """A plan for the workload's sequences on a given layout, by rule.

    Parameters
    ----------
    layout
        The static part of the plan.
    num_slices
        Numbers of slices of the longest sequence to try; a range up to 64 by default.

    Raises
    ------
    NoPlanError
        When some sequence does not fit however it is cut and recomputed, naming the stage and
        what is missing; or when there are fewer sequences than replicas.
    """
    book = price_book(instance)
    models = [replica_model(book, layout, idx) for idx in range(len(layout.replicas))]
    shares = _assign(instance, models)
    batches = []
    for idx, (model, numbers) in enumerate(zip(models, shares, strict=True)):
        sequences = _measured(instance, model, numbers)
        draft = _search(model, sequences, num_slices)
        if isinstance(draft, Misfit):
            raise NoPlanError(_diagnosis(layout, idx, sequences, draft))
        batches.append(ReplicaBatch((to_pipeline(model, draft),)))
    return Plan(layout, BatchPlan(tuple(batches)))


def _assign(instance: Instance, models: Sequence[ReplicaModel]) -> list[tuple[int, ...]]:
    """Sequences of every replica: longest first, each to where it ends earliest."""
    lengths = instance.workload.sequence_lengths
    order = sorted(range(len(lengths)), key=lambda idx: (-lengths[idx], idx))
    if len(models) == 1:
        return [tuple(order)]
    if len(order) < len(models):
        raise NoPlanError(
            f"{len(models)} replicas and only {len(order)} sequences: a sequence is never cut "
            "between replicas; use a layout with fewer replicas"
        )
    weights = [_measured(instance, model, tuple(order)).whole_s.tolist() for model in models]
    ends = [0.0] * len(models)
    shares: list[list[int]] = [[] for _ in models]
    for rank, number in enumerate(order):
        empty = [idx for idx, own in enumerate(shares) if not own]
        is_last_chance = len(order) - rank <= len(empty)
        choices = empty if is_last_chance else range(len(models))
        best = min(choices, key=lambda idx: (ends[idx] + weights[idx][rank], idx))
        ends[best] += weights[best][rank]
        shares[best].append(number)
    return [tuple(own) for own in shares]


def _measured(instance: Instance, model: ReplicaModel, numbers: tuple[int, ...]) -> _Sequences:
    all_lengths = instance.workload.sequence_lengths
    lengths = np.array([all_lengths[number] for number in numbers], dtype=np.int64)
    is_causal = instance.workload.attention == "causal"
    ruler = make_ruler(model.seconds, int(lengths[0]), is_causal)
    return _Sequences(numbers, lengths, ruler, _slice_s(ruler, lengths * 0, lengths))


def _slice_s(ruler: Ruler, starts: IntArray, stops: IntArray) -> FloatArray:
    """The largest seconds of slices on any group of any stage, between the ruler's positions."""
    at = ruler.positions
    result: FloatArray = np.max(
        [np.interp(stops, at, b) - np.interp(starts, at, a) for a, b in ruler.curves], axis=0
    )
    return result


def _search(
    model: ReplicaModel, sequences: _Sequences, num_slices: Sequence[int] | None
) -> Draft | Misfit:
    """Coordinate search: grain first, then token cap, pace, and neighbours of the best grain."""
    best: tuple[Draft, Grain, PricedChunks, Pace] | None = None
    worst: Misfit | None = None
    tried: set[Grain] = set()

    def attempt(grain: Grain, pace: Pace = "ahead") -> bool:
        """Whether the grain is the best so far."""
        nonlocal best, worst
        if grain in tried:
            return False
        tried.add(grain)
        priced = price_chunks(model, *_chunks(sequences, grain))
        draft = draft_pipeline(model, priced, pace)
        if isinstance(draft, Misfit):
            if worst is None or draft.missing_bytes < worst.missing_bytes:
                worst = draft
            return False
        if best is not None and best[0].makespan_s <= draft.makespan_s:
            return False
        best = (draft, grain, priced, pace)
        return True

    is_causal = model.instance.workload.attention == "causal"
    counts = tuple(num_slices) if num_slices is not None else _SLICES
    num_worse = 0
    for count in counts if is_causal else (1,):
        is_better = attempt(Grain(count))
        num_worse = 0 if is_better or best is None else num_worse + 1
        if num_worse == _PATIENCE and num_slices is None:
            break
    if num_slices is None:
        for heavier in _HEAVIER:
            if best is not None and best[1].num_slices > 2:
                break
            attempt(Grain(1, heavier))
    if best is None:
        for grain in list(tried):
            tried.discard(grain)
            attempt(grain, "late")
    if best is None:
        assert worst is not None
        return worst
    grain = best[1]
    for factor in _TOKEN_FACTORS:
        attempt(grain._replace(token_factor=factor))
    if num_slices is None and is_causal:
        for count in _neighbours(grain.num_slices):
            attempt(best[1]._replace(num_slices=count))
    # Fewer slices in flight pay only once single chunks take their recompute back.
    _, grain, priced, _ = best
    drafts = [draft_pipeline(model, priced, pace, relax=True) for pace in PACES]
    fitting = [draft for draft in drafts if isinstance(draft, Draft)]
    draft = min(fitting, key=lambda draft: draft.makespan_s)
    logger.debug("grain %s: %d chunks, %.3f s", grain, len(draft.chunks), draft.makespan_s)
    return draft


def _neighbours(num_slices: int) -> tuple[int, ...]:
    """Numbers of slices between the best one tried and those beside it."""
    index = _SLICES.index(num_slices) if num_slices in _SLICES else 0
    beside = _SLICES[max(index - 1, 0)], _SLICES[min(index + 1, len(_SLICES) - 1)]
    return tuple({(num_slices + other) // 2 for other in beside} - {num_slices})


def _chunks(sequences: _Sequences, grain: Grain) -> tuple[list[list[Span]], list[int]]:
    """Slices of every chunk, and the sizes of the blocks: cut sequences first, longest first."""
    numbers, lengths = sequences.numbers, sequences.lengths.tolist()
    mesh = equal_cuts(sequences.ruler, grain.num_slices)
    first_cut = mesh[0] if mesh else lengths[0]
    bounds = [0, *mesh, lengths[0]]
    edges = np.array(bounds, dtype=np.int64)
    cap = grain.heavier * float(_slice_s(sequences.ruler, edges[:-1], edges[1:]).max())
    most_tokens = grain.heavier * max(int(n * grain.token_factor) for n in np.diff(edges))
    parts: list[list[Span]] = []
    blocks: list[int] = []
    num_long = sum(length > first_cut for length in lengths)
    for number, length in zip(numbers[:num_long], lengths, strict=False):
        spans = [(number, start, stop) for start, stop in cut(length, mesh)]
        parts += [[span] for span in spans]
        blocks.append(len(spans))
    tails = [parts[end - 1][0] for end in np.cumsum(blocks).tolist()]
    starts, stops = (np.array([tail[k] for tail in tails], dtype=np.int64) for k in (1, 2))
    tail_s = _slice_s(sequences.ruler, starts, stops).tolist() if tails else []
    buckets = best_fit(
        sequences.whole_s[num_long:].tolist(),
        lengths[num_long:],
        [(load, tail[2] - tail[1]) for load, tail in zip(tail_s, tails, strict=True)],
        cap,
        most_tokens,
    )
    end = 0
    for size, bucket in zip(blocks, buckets, strict=False):
        end += size
        parts[end - 1] += [_whole(sequences, num_long + item) for item in bucket]
    for bucket in buckets[len(tails) :]:
        parts.append([_whole(sequences, num_long + item) for item in bucket])
        blocks.append(1)
    return parts, blocks


def _whole(sequences: _Sequences, rank: int) -> Span:
    return sequences.numbers[rank], 0, int(sequences.lengths[rank])


def _diagnosis(layout: Layout, replica_idx: int, sequences: _Sequences, misfit: Misfit) -> str:
    """Which sequence does not fit where, and what would make it fit."""
    stage = layout.replicas[replica_idx].stages[misfit.stage_idx]
    return (
        f"sequence {sequences.numbers[0]} of {int(sequences.lengths[0])} tokens does not fit "
        f"replica {replica_idx}, stage {misfit.stage_idx} ({stage.ranks[0].device} and "
        f"{len(stage.ranks) - 1} more), however it is cut and recomputed: "
        f"{format_bytes(misfit.missing_bytes)} are missing on one of its devices; give the stage "
        "fewer layers or more devices, or shorten the sequence"
    )
