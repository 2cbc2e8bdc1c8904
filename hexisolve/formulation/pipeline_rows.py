"""Paths through a 1F1B pipeline: what a stage adds to the sum over all stages.

Stages are counted from the end. With t_j = F_j + B_j, x_j both transfers into stage j,
``X_j = sum_{i<j} (t_i + x_i)``, ``V_i = X_j - X_i`` the way from stage j down to stage i and back,
and S the sum over all stages, these are lengths of paths (docs/formulation.md, section 1):

    F1   S - X_j - t_j + sum of t over the chunks
    F2   S - X_j + (n - 1 - j) t_j + start + end + middle                     for n >= j + 2
         start   max_i V_i + i max F of stages i..j      to the first backward of stage j
         end     max_i V_i + i max B of stages i..j      from its last forward
         middle  loops down to a stage i and back: V_i instead of (j - i) t_j, each j - i + 1 chunks
    F3   S + (n - 1) max(F_j, B_j)                                            for n < j + 2

F and B may be known from below only; as ``start + end >= max_i 2 V_i + i max t`` whatever the
split, t alone is enough for most of it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
_MAX_EXACT_CHUNKS = 64  # beyond, the middle takes loops of one kind only


@dataclass(frozen=True, eq=False)
class Behind:
    """What is behind a stage, for many pipelines at once: arrays ``[pipeline, i]``.

    Parameters
    ----------
    since
        V_i for every stage i behind, and 0 for the stage itself; V_0 = X.
    longest, forward, backward
        The largest t, F and B of stages i and later ones behind; 0 for the stage itself.
    """

    since: FloatArray
    longest: FloatArray
    forward: FloatArray
    backward: FloatArray

    @property
    def seconds(self) -> FloatArray:
        """X_j."""
        return self.since[:, 0]

    def take(self, rows: npt.NDArray[np.int64]) -> Behind:
        """These pipelines only."""
        return Behind(*(values[rows] for values in self.arrays()))

    def arrays(self) -> tuple[FloatArray, ...]:
        """All of them."""
        return self.since, self.longest, self.forward, self.backward

    def with_stage(
        self, own_s: FloatArray, forward_s: FloatArray, backward_s: FloatArray, entry_s: FloatArray
    ) -> Behind:
        """One stage more, and the transfers into it."""
        added = zip(self.arrays()[1:], (own_s, forward_s, backward_s), strict=True)
        largest = [np.maximum(values, own[:, None]) for values, own in added]
        since = self.since + (own_s + entry_s)[:, None]
        none = np.zeros((len(since), 1))
        return Behind(*(np.concatenate([values, none], axis=1) for values in (since, *largest)))


def nothing_behind(count: int = 1) -> Behind:
    """The last stage."""
    return Behind(*(np.zeros((count, 1)) for _ in range(4)))


def extra_s(
    num_chunks: int,
    behind: Behind,
    own_s: FloatArray,
    total_s: FloatArray,
    forward_s: FloatArray,
    backward_s: FloatArray,
) -> FloatArray:
    """The most that a row of a stage adds to S, at least 0.

    Parameters
    ----------
    num_chunks
        n.
    behind
        Stages behind, of every pipeline.
    own_s, total_s, forward_s, backward_s
        ``[pipeline]`` t of the shortest chunk, sum over all chunks, least F and least B.
    """
    n, j = num_chunks, behind.since.shape[1] - 1
    extra: FloatArray = np.maximum(total_s - own_s - behind.seconds, 0.0)
    if not j:
        return extra
    if n < j + 2:
        extra = np.maximum(extra, (n - 1) * np.maximum(forward_s, backward_s))
        return extra
    places = np.arange(j + 1)
    longest, forward, backward = (
        places * np.maximum(values, own[:, None])
        for values, own in zip(behind.arrays()[1:], (own_s, forward_s, backward_s), strict=True)
    )
    ends = (behind.since + forward).max(axis=1) + (behind.since + backward).max(axis=1)
    ends = np.maximum(ends, (2.0 * behind.since + longest).max(axis=1))
    stays: FloatArray = (n - 1 - j) * own_s - behind.seconds + ends
    extra = np.maximum(extra, stays + _middle_s(n - 2 - j, behind, own_s))
    return extra


def _middle_s(num_steps: int, behind: Behind, own_s: FloatArray) -> FloatArray:
    """The most that loops gain over staying at the stage while it takes `num_steps` chunks."""
    j = behind.since.shape[1] - 1
    gains = [behind.since[:, i] - (j - i) * own_s for i in range(j)]
    lengths = [j - i + 1 for i in range(j)]
    if num_steps > _MAX_EXACT_CHUNKS:
        rows = [(num_steps // length) * gain for gain, length in zip(gains, lengths, strict=True)]
        most: FloatArray = np.maximum(np.max(rows, axis=0), 0.0)
        return most
    best = [np.zeros_like(own_s)]
    for step in range(1, num_steps + 1):
        value = best[-1]
        for gain, length in zip(gains, lengths, strict=True):
            if length <= step:
                value = np.maximum(value, best[step - length] + gain)
        best.append(value)
    return best[-1]
