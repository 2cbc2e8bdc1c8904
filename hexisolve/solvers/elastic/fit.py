"""Recompute that fits: steps down the ladder none, mlp, layer, full, for a fixed order.

First the same number of steps for every chunk of a stage, the fewest that fit; then chunk by chunk
as many steps back as the memory at every backward allows (section 5 of docs/elastic.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hexisolve.formulation.chunk_bytes import ChunkBytes, StageBytes, num_steps
from hexisolve.formulation.chunk_load import IntArray
from hexisolve.solvers.elastic.order import Order


@dataclass(frozen=True, eq=False)
class LiveChunks:
    """Which chunks are alive at every backward of a stage, in order.

    Parameters
    ----------
    forwards
        Forwards done before each backward.
    backward
        Chunks in the order of their backwards.
    block_first
        For each chunk, the first chunk of its block.
    position
        For each chunk, the number of its backward.
    """

    forwards: IntArray
    backward: IntArray
    block_first: IntArray
    position: IntArray

    def summed(self, held: IntArray) -> IntArray:
        """``[backward, rank]``: the bytes of all chunks that are alive at its start."""
        made = _running(held)[self.forwards]
        freed = _running(held[self.backward])[:-1]
        total: IntArray = made - freed
        return total

    def gradients(self, of_chunk: IntArray) -> IntArray:
        """``[backward, rank]``: dK, dV of the slices before it in its block, and its own."""
        running = _running(of_chunk)
        total: IntArray = running[self.backward + 1] - running[self.block_first[self.backward]]
        return total


def _running(values: IntArray) -> IntArray:
    """Sums of the first 0, 1, 2, ... rows."""
    result = np.zeros((len(values) + 1, values.shape[1]), dtype=np.int64)
    np.cumsum(values, axis=0, out=result[1:])
    return result


def live_chunks(order: Order, blocks: Sequence[int], stage_idx: int, num_stages: int) -> LiveChunks:
    """Read the live sets of a stage from the order."""
    sizes = np.array(blocks)
    firsts = np.repeat(np.cumsum(sizes) - sizes, sizes)
    position = np.empty_like(order.backward)
    position[order.backward] = np.arange(order.num_chunks)
    forwards = order.forwards_before(stage_idx, num_stages)
    return LiveChunks(forwards, order.backward, firsts, position)


def peak_excess(stage: StageBytes, chunks: ChunkBytes, live: LiveChunks, step: int) -> int:
    """Bytes over the budget at the worst backward and rank, all chunks at one step."""
    needed = live.summed(stage.held(chunks, step))
    needed = needed + live.gradients(stage.gradients(chunks))
    needed = needed + stage.transient(chunks, step)[live.backward]
    return int((needed - stage.budget).max())


def fewest_steps(stage: StageBytes, chunks: ChunkBytes, live: LiveChunks) -> int | None:
    """The fewest steps with which every backward fits; None when no number does.

    Bytes fall with every step but the first of a policy, which brings its larger transient: the
    whole rungs are tried in turn, and the steps before the first that fits by halving.
    """
    most = num_steps(stage.num_layers)
    for rung in range(0, most + 1, stage.num_layers):
        if peak_excess(stage, chunks, live, rung) <= 0:
            break
    else:
        return None
    low, high = max(rung - stage.num_layers, 0), rung
    while high - low > 1:
        middle = (low + high) // 2
        if peak_excess(stage, chunks, live, middle) <= 0:
            high = middle
        else:
            low = middle
    return high


def relaxed_steps(stage: StageBytes, chunks: ChunkBytes, live: LiveChunks, step: int) -> IntArray:
    """From `step` for all, take back steps of single chunks while everything still fits.

    Chunk after chunk in the order of their backwards takes the fewest steps that the room at all
    backwards of its life allows.
    """
    num_chunks = len(chunks.tokens)
    steps = np.full(num_chunks, step, dtype=np.int64)
    if not step:
        return steps
    needed = live.summed(stage.held(chunks, step)) + live.gradients(stage.gradients(chunks))
    room = stage.budget - needed - stage.transient(chunks, step)[live.backward]
    # The backward before which a chunk's forward is done; it is alive from there to its own.
    born = np.searchsorted(live.forwards, np.arange(num_chunks), side="right")
    tables = (stage.kept_tokens, stage.kept_group, stage.kv_group)
    dearer = [table[: step + 1] - table[step] for table in tables]
    transients = np.stack([stage.transient(chunks, s) for s in range(step + 1)])
    one_back = stage.held(chunks, step - 1) - stage.held(chunks, step)
    life = zip(live.backward.tolist(), born[live.backward].tolist(), strict=True)
    for last, (chunk, first) in enumerate(life):
        least = room[first : last + 1].min(axis=0)
        if (one_back[chunk] > least).any():
            continue
        more = (
            dearer[0] * chunks.tokens[chunk]
            + dearer[1] * chunks.group_tokens[chunk]
            + dearer[2] * chunks.read_later[chunk]
        )
        fits = (more <= least).all(axis=1)
        change = transients[:, chunk] - transients[step, chunk]
        fits &= (more + change <= room[last]).all(axis=1)
        fewest = int(np.argmax(fits))
        if fewest < step:
            steps[chunk] = fewest
            room[first : last + 1] -= more[fewest]
            room[last] -= change[fewest]
    return steps
