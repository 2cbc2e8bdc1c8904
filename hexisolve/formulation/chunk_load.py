"""What a list of chunks asks for: tokens, query-key pairs, context, as arrays over the chunks.

Equation E1 of docs/elastic.md: pairs of the slices of a sequence add up to those of the sequence,
however it is cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hexisolve.data.instance import Instance

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
Window = int | None
# (sequence, start, stop): a slice in the making.
Span = tuple[int, int, int]


@dataclass(frozen=True, eq=False)
class ChunkLoads:
    """Chunks as arrays, one entry per chunk.

    Parameters
    ----------
    tokens
        Tokens of the chunk.
    pairs
        Attention window of a layer kind (None without one) -> query-key pairs.
    context
        The largest ``prefix + tokens`` of its slices.
    is_followed
        Whether a later chunk holds a later slice of the same sequence.
    """

    tokens: IntArray
    pairs: dict[Window, FloatArray]
    context: IntArray
    is_followed: BoolArray

    def __len__(self) -> int:
        return len(self.tokens)


def windows_of(instance: Instance) -> tuple[Window, ...]:
    """The attention windows of the model's layers, each once."""
    return tuple({layer.attention.window_tokens: None for layer in instance.model.layers})


def prefix_pairs(stops: IntArray, window: Window, is_causal: bool) -> FloatArray:
    """Pairs of the first ``stop`` queries of a sequence: ``x (x + 1) / 2``, ``min`` with a window.

    Full attention pairs a whole sequence with itself: ``x^2``.
    """
    x = stops.astype(np.float64)
    if not is_causal:
        return x * x
    growing = x if window is None else np.minimum(x, float(window))
    total: FloatArray = growing * (growing + 1.0) / 2.0
    if window is not None:
        total = total + (x - growing) * float(window)
    return total


def chunk_loads(
    instance: Instance, chunks: Sequence[Sequence[Span]], windows: Sequence[Window]
) -> ChunkLoads:
    """Sum the slices of every chunk; all chunks of the pipeline are given."""
    is_causal = instance.workload.attention == "causal"
    flat = np.array([span for spans in chunks for span in spans], dtype=np.int64).reshape(-1, 3)
    sizes = [len(spans) for spans in chunks]
    heads = np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int64)
    sequence, start, stop = flat.T
    last = np.zeros(len(instance.workload.sequence_lengths), dtype=np.int64)
    np.maximum.at(last, sequence, start)
    pairs = {
        window: np.add.reduceat(
            prefix_pairs(stop, window, is_causal) - prefix_pairs(start, window, is_causal), heads
        )
        for window in windows
    }
    return ChunkLoads(
        tokens=np.add.reduceat(stop - start, heads),
        pairs=pairs,
        context=np.maximum.reduceat(stop, heads),
        is_followed=np.logical_or.reduceat(start < last[sequence], heads),
    )
