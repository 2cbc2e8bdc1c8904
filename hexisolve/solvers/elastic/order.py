"""Orders of forwards and backwards when sequences are cut into slices.

Chunks are numbered in the order of their forwards; the slices of a sequence follow one another, a
*block*. Backward goes block by block, inside a block in reverse. One non-decreasing table H gives
every stage its order (equation E4 of docs/elastic.md): before its j-th backward stage p of P
has done ``H[j + P - 1 - p]`` forwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

import numpy as np

from hexisolve.formulation.chunk_load import FloatArray, IntArray

Pace = Literal["ahead", "late"]
PACES: tuple[Pace, ...] = ("ahead", "late")


@dataclass(frozen=True, eq=False)
class Order:
    """What every stage of a pipeline does, in which order.

    Parameters
    ----------
    backward
        Chunks in the order of their backwards.
    done
        H: forwards done before backward j of the last stage, so before backward ``j - x`` of the
        stage that stands x before it.
    """

    backward: IntArray
    done: IntArray

    @property
    def num_chunks(self) -> int:
        """n: chunks of the pipeline."""
        return len(self.backward)

    def forwards_before(self, stage_idx: int, num_stages: int) -> IntArray:
        """Forwards that a stage has done before each of its backwards."""
        ahead = num_stages - 1 - stage_idx
        index = np.minimum(np.arange(self.num_chunks) + ahead, self.num_chunks - 1)
        result: IntArray = self.done[index]
        return result

    def schedule(self, num_stages: int) -> tuple[tuple[str, ...], ...]:
        """The rows of `Pipeline.schedule`."""
        backward = self.backward.tolist()
        rows = []
        for stage_idx in range(num_stages):
            row: list[str] = []
            num_done = 0
            counts = self.forwards_before(stage_idx, num_stages).tolist()
            for chunk_idx, count in zip(backward, counts, strict=True):
                row += [f"F{idx}" for idx in range(num_done, count)]
                row.append(f"B{chunk_idx}")
                num_done = count
            rows.append(tuple(row))
        return tuple(rows)


def block_order(blocks: Sequence[int], pace: Pace) -> Order:
    """The order for blocks of so many chunks each.

    Parameters
    ----------
    blocks
        Slices of each sequence that is cut, 1 for a chunk of whole sequences.
    pace
        ``ahead`` keeps as many slices in flight as the largest block still to come needs for a
        steady turn of one forward and one backward (InfiniPipe's warm-up, but shrinking with the
        blocks); ``late`` does a forward only when a backward needs it.

    >>> block_order([2, 1], "ahead").schedule(1)
    (('F0', 'F1', 'B1', 'F2', 'B0', 'B2'),)
    >>> block_order([1, 1, 1], "late").schedule(2)
    (('F0', 'F1', 'B0', 'F2', 'B1', 'B2'), ('F0', 'B0', 'F1', 'B1', 'F2', 'B2'))
    """
    backward: list[int] = []
    done: list[int] = []
    num_chunks = sum(blocks)
    for size in blocks:
        first = len(backward)
        backward += range(first + size - 1, first - 1, -1)
        if pace == "ahead":
            done += [min(num_chunks, position + size) for position in range(first, first + size)]
        else:
            done += [first + size] * size
    return Order(np.array(backward), np.array(list(accumulate(done, max)), dtype=np.int64))


def makespan_s(
    order: Order,
    forward_s: Sequence[Sequence[float]],
    backward_s: Sequence[Sequence[float]],
    there_s: Sequence[Sequence[float]],
    back_s: Sequence[Sequence[float]],
) -> float:
    """End of the last operation: `hexisolve.cost.pipeline.step_length_s` of this order, faster.

    Visited by positions of H: at position i every stage does the forwards up to H[i], the first
    stage first, and then stage p its backward ``i - (P - 1 - p)``, whose input the stage after it
    made at position ``i - 1``.

    Parameters
    ----------
    forward_s, backward_s, there_s, back_s
        ``[stage][chunk]`` seconds of F, B, transfer to the next stage, transfer of gradients back.
    """
    num_stages, num_chunks = len(forward_s), order.num_chunks
    last = num_stages - 1
    arrived = [[0.0] * num_chunks for _ in range(num_stages)]
    returned = [[0.0] * num_chunks for _ in range(num_stages)]
    clock = [0.0] * num_stages
    done, backward = order.done.tolist(), order.backward.tolist()
    num_done = 0
    for position in range(num_chunks + last):
        count = done[position] if position < num_chunks else num_chunks
        for p in range(num_stages):
            if count > num_done:
                now, inputs, seconds = clock[p], arrived[p], forward_s[p]
                for k in range(num_done, count):
                    start = inputs[k]
                    now = (start if start > now else now) + seconds[k]
                    if p < last:
                        arrived[p + 1][k] = now + there_s[p][k]
                clock[p] = now
            j = position - (last - p)
            if 0 <= j < num_chunks:
                k = backward[j]
                start = returned[p][k]
                now = (start if start > clock[p] else clock[p]) + backward_s[p][k]
                clock[p] = now
                if p:
                    returned[p - 1][k] = now + back_s[p - 1][k]
        num_done = count
    return max(clock, default=0.0)


def as_rows(values: Sequence[FloatArray]) -> list[list[float]]:
    """Arrays as lists, which plain loops read faster."""
    return [row.tolist() for row in values]
