"""Sizes of every possible stage of a model, and the lengths of its chunks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hexisolve.data.instance import Instance
from hexisolve.data.model_spec import LayerSpec
from hexisolve.formulation.pipeline_table import FloatArray, IntArray

_MAX_LENGTHS = 6


class Lengths(NamedTuple):
    """Chunks of an instance, one sequence each, longest first, in classes of about equal length.

    A class counts with its shortest length, so that prices stay lower bounds.
    """

    tokens: tuple[int, ...]
    counts: tuple[int, ...]
    live_tokens: tuple[int, ...]

    @property
    def num_chunks(self) -> int:
        """N."""
        return sum(self.counts)


def chunk_lengths(instance: Instance) -> Lengths:
    """Sort the sequences and merge their lengths into a few classes."""
    ordered = sorted(instance.workload.sequence_lengths, reverse=True)
    live = tuple(np.cumsum(ordered).tolist())
    distinct = sorted(set(ordered), reverse=True)
    if len(distinct) > _MAX_LENGTHS:
        places = np.linspace(0, len(ordered) - 1, _MAX_LENGTHS).round().astype(int)
        distinct = sorted({ordered[place] for place in places}, reverse=True)
    counts = [0] * len(distinct)
    for length in ordered:
        # The longest class that is not above it.
        counts[next(idx for idx, own in enumerate(distinct) if own <= length)] += 1
    return Lengths(tuple(distinct), tuple(counts), live)


@dataclass(frozen=True, eq=False)
class StageSizes:
    """Sizes of every possible stage as arrays ``[place, layers]``.

    With equal layers the places are "not the first stage" and "the first stage"; otherwise the
    numbers of layers after the stage.

    Parameters
    ----------
    kind_counts
        Per kind of layer, how many of them.
    num_layers
        Layers.
    parameters, pair, largest
        Parameters of the stage, of its largest two neighbouring blocks, of its largest block.
    first_block, last_block
        Parameters of the first and the last block.
    exists
        Whether there is such a stage.
    is_first
        Whether it is the first.
    """

    kind_counts: tuple[IntArray, ...]
    num_layers: IntArray
    parameters: FloatArray
    pair: FloatArray
    largest: FloatArray
    first_block: FloatArray
    last_block: FloatArray
    exists: npt.NDArray[np.bool_]
    is_first: npt.NDArray[np.bool_]


def stage_sizes(instance: Instance, is_last: bool) -> StageSizes:
    """Sizes of the stages that are, or are not, the last of a pipeline."""
    model = instance.model
    num_layers = model.num_layers
    kinds = tuple(dict.fromkeys(model.layers))
    are_equal = len(kinds) == 1
    places = 2 if are_equal else num_layers + 1
    shape = (places, num_layers + 1)
    counts = [np.zeros(shape, dtype=np.int64) for _ in kinds]
    layers = np.broadcast_to(np.arange(num_layers + 1), shape)
    parameters, pair, largest, first_block, last_block = np.zeros((5, *shape))
    exists, is_first = np.zeros(shape, dtype=bool), np.zeros(shape, dtype=bool)
    for place in range(places):
        for size in range(1, num_layers + 1):
            if are_equal:
                first, starts = 0, place == 1
                if starts and is_last != (size == num_layers):
                    continue
                if not starts and size == num_layers:
                    continue
            else:
                first = num_layers - place - size
                starts = first == 0
                if first < 0 or is_last != (place == 0):
                    continue
            own = model.layers[first : first + size]
            exists[place, size], is_first[place, size] = True, starts
            for idx, kind in enumerate(kinds):
                counts[idx][place, size] = own.count(kind)
            blocks = _blocks(instance, own, starts, is_last)
            parameters[place, size] = sum(blocks)
            neighbours = [a + b for a, b in pairwise(blocks)]
            pair[place, size] = max(neighbours, default=blocks[0])
            largest[place, size] = max(blocks)
            first_block[place, size], last_block[place, size] = blocks[0], blocks[-1]
    return StageSizes(
        tuple(counts), layers, parameters, pair, largest, first_block, last_block, exists, is_first
    )


def _blocks(
    instance: Instance, layers: Sequence[LayerSpec], is_first: bool, is_last: bool
) -> list[int]:
    """Parameters of the blocks of a stage, in order of forward."""
    model = instance.model
    blocks = [model.embedding_parameters] * is_first + [layer.parameters for layer in layers]
    if is_last:
        head = model.head_parameters + model.final_norm_parameters
        if model.tied_embeddings and not is_first:
            head += model.hidden_size * model.vocab_size
        blocks.append(head)
    return blocks
