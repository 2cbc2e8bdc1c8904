"""One replica seen by the chunk search: its stages, and the price of a list of chunks on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hexisolve.data.instance import Instance
from hexisolve.formulation.chunk_bytes import ChunkBytes, StageBytes, stage_bytes, step_counts
from hexisolve.formulation.chunk_load import (
    ChunkLoads,
    FloatArray,
    IntArray,
    Span,
    chunk_loads,
    windows_of,
)
from hexisolve.formulation.chunk_seconds import LADDER, Line, StageSeconds, stage_seconds
from hexisolve.plan.boundary import boundary
from hexisolve.plan.plan import Chunk, Layout, Pipeline, Policy, Slice
from hexisolve.plan.price_book import PriceBook
from hexisolve.plan.tokens import ChunkShape
from hexisolve.solvers.elastic.fit import (
    LiveChunks,
    fewest_steps,
    live_chunks,
    peak_excess,
    relaxed_steps,
)
from hexisolve.solvers.elastic.order import Order, Pace, as_rows, block_order, makespan_s

_PROBE_TOKENS = 16_384


@dataclass(frozen=True, eq=False)
class ReplicaModel:
    """Everything about one replica that does not depend on the batch.

    Parameters
    ----------
    seconds, bytes
        Per stage, its surrogate seconds and its bytes.
    there, back
        Per boundary, seconds by tokens of a chunk.
    """

    instance: Instance
    seconds: tuple[StageSeconds, ...]
    bytes: tuple[StageBytes, ...]
    there: tuple[Line, ...]
    back: tuple[Line, ...]

    @property
    def num_stages(self) -> int:
        """P: stages of the pipeline."""
        return len(self.seconds)


@dataclass(frozen=True, eq=False)
class Draft:
    """A pipeline in the making and its estimated seconds.

    Parameters
    ----------
    chunks
        Slices of every chunk.
    blocks
        Chunks of every block, in order.
    order
        Order of operations.
    steps
        ``[stage][chunk]`` steps of recompute.
    makespan_s
        Estimated; `evaluate` has the last word.
    """

    chunks: Sequence[Sequence[Span]]
    blocks: Sequence[int]
    order: Order
    steps: tuple[IntArray, ...]
    makespan_s: float


@dataclass(frozen=True)
class Misfit:
    """Why no recompute lets some chunks fit: bytes missing on a stage when all layers recompute."""

    stage_idx: int
    missing_bytes: int


def replica_model(book: PriceBook, layout: Layout, replica_idx: int) -> ReplicaModel:
    """Probe the stages and boundaries of a replica."""
    stages = layout.replicas[replica_idx].stages
    lines = [_boundary_lines(book, layout, replica_idx, p) for p in range(len(stages) - 1)]
    return ReplicaModel(
        instance=book.instance,
        seconds=tuple(stage_seconds(book, stage, p, len(stages)) for p, stage in enumerate(stages)),
        bytes=tuple(stage_bytes(book, layout, replica_idx, p) for p in range(len(stages))),
        there=tuple(there for there, _ in lines),
        back=tuple(back for _, back in lines),
    )


def _boundary_lines(book: PriceBook, layout: Layout, replica_idx: int, p: int) -> tuple[Line, Line]:
    sender, receiver = layout.replicas[replica_idx].stages[p : p + 2]
    shapes: list[ChunkShape] = [(((0, k * _PROBE_TOKENS),), None) for k in (1, 2)]
    once, twice = (boundary(book, sender, receiver, p, shape) for shape in shapes)
    lines = []
    for one, two in ((once.forward, twice.forward), (once.backward, twice.backward)):
        slope = (two.seconds - one.seconds) / _PROBE_TOKENS
        lines.append(Line(slope, max(2.0 * one.seconds - two.seconds, 0.0)))
    return lines[0], lines[1]


@dataclass(frozen=True, eq=False)
class PricedChunks:
    """Chunks with what every stage takes for them; orders and recompute come on top.

    Parameters
    ----------
    forward_s
        ``[stage]`` F of every chunk.
    backward_s
        ``[stage]`` policy -> B of every chunk when all layers have it.
    """

    chunks: Sequence[Sequence[Span]]
    blocks: Sequence[int]
    loads: ChunkLoads
    laid: tuple[ChunkBytes, ...]
    forward_s: tuple[FloatArray, ...]
    backward_s: tuple[dict[Policy, FloatArray], ...]


def price_chunks(
    model: ReplicaModel, chunks: Sequence[Sequence[Span]], blocks: Sequence[int]
) -> PricedChunks:
    """Estimate all chunks on all stages."""
    loads = chunk_loads(model.instance, chunks, windows_of(model.instance))
    return PricedChunks(
        chunks, blocks, loads,
        tuple(stage.lay(loads) for stage in model.bytes),
        tuple(stage.forward_s(loads) for stage in model.seconds),
        tuple(stage.backward_s(loads) for stage in model.seconds),
    )  # fmt: skip


def draft_pipeline(
    model: ReplicaModel, priced: PricedChunks, pace: Pace, *, relax: bool = False
) -> Draft | Misfit:
    """Order the chunks and give each stage the fewest steps of recompute that fit.

    Parameters
    ----------
    relax
        Take back the recompute of single chunks afterwards.
    """
    order = block_order(priced.blocks, pace)
    steps = []
    for p, (stage, laid) in enumerate(zip(model.bytes, priced.laid, strict=True)):
        live = live_chunks(order, priced.blocks, p, model.num_stages)
        fewest = fewest_steps(stage, laid, live)
        if fewest is None:
            return Misfit(p, _missing_bytes(stage, laid, live))
        if relax:
            steps.append(relaxed_steps(stage, laid, live, fewest))
        else:
            steps.append(np.full(order.num_chunks, fewest))
    backward = [
        _backward_s(row, own, stage.num_layers)
        for row, own, stage in zip(priced.backward_s, steps, model.bytes, strict=True)
    ]
    tokens = priced.loads.tokens
    seconds = makespan_s(
        order,
        as_rows(priced.forward_s),
        as_rows(backward),
        as_rows([line.at(tokens) for line in model.there]),
        as_rows([line.at(tokens) for line in model.back]),
    )
    return Draft(priced.chunks, priced.blocks, order, tuple(steps), seconds)


def _backward_s(
    by_policy: dict[Policy, FloatArray], steps: IntArray, num_layers: int
) -> FloatArray:
    """B after some steps: layers of two neighbouring policies."""
    rung = steps // num_layers
    further = (steps - rung * num_layers) / num_layers
    table = np.stack([by_policy[policy] for policy in (*LADDER, LADDER[-1])])
    chunk = np.arange(len(steps))
    total: FloatArray = (1.0 - further) * table[rung, chunk] + further * table[rung + 1, chunk]
    return total


def _missing_bytes(stage: StageBytes, laid: ChunkBytes, live: LiveChunks) -> int:
    """The least excess over whole rungs."""
    rungs = range(0, len(LADDER) * stage.num_layers, stage.num_layers)
    return min(peak_excess(stage, laid, live, step) for step in rungs)


def to_pipeline(model: ReplicaModel, draft: Draft) -> Pipeline:
    """The draft as a part of a plan."""
    counts = [
        [step_counts(stage.num_layers, step) for step in range(int(own.max()) + 1)]
        for stage, own in zip(model.bytes, draft.steps, strict=True)
    ]
    return Pipeline(
        chunks=tuple(Chunk(tuple(Slice(*span) for span in spans)) for spans in draft.chunks),
        schedule=draft.order.schedule(model.num_stages),
        recompute=tuple(
            tuple(table[step] for step in own.tolist())
            for table, own in zip(counts, draft.steps, strict=True)
        ),
    )
