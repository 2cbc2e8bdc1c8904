"""Labels of the dynamic program: what the stages placed so far cost, and which of them can go.

Stages are placed from the last one. With S the seconds of the stages placed and their transfers,
M the most that a row of one of them adds to the sum over *all* stages, and f the largest finish,
the step takes at least ``S + M + f`` once all layers are placed. Rows of later stages grow with
everything that `Behind` holds, so a label that another one of the same place does not exceed in
anything can go.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hexisolve.formulation.pipeline_rows import Behind, nothing_behind
from hexisolve.formulation.pipeline_table import FloatArray, IntArray

_NUM_RIVALS = 24  # labels of a place that the others are compared with


@dataclass(frozen=True, eq=False)
class Labels:
    """Labels after one number of stages, arrays over the labels.

    Parameters
    ----------
    state
        Number of the units used.
    covered
        Layers placed.
    behind
        The stages placed.
    worst, finish
        M and f.
    parent
        Position among the labels of one stage less.
    column, layers
        The stage placed last.
    """

    state: IntArray
    covered: IntArray
    behind: Behind
    worst: FloatArray
    finish: FloatArray
    parent: IntArray
    column: IntArray
    layers: IntArray

    def __len__(self) -> int:
        return len(self.state)

    @property
    def step_s(self) -> FloatArray:
        """S + M + f."""
        total: FloatArray = self.behind.seconds + self.worst + self.finish
        return total

    def take(self, rows: IntArray) -> Labels:
        """These labels only, in this order."""
        return Labels(
            self.state[rows], self.covered[rows], self.behind.take(rows), self.worst[rows],
            self.finish[rows], self.parent[rows], self.column[rows], self.layers[rows],
        )  # fmt: skip


def first_label() -> Labels:
    """Nothing placed."""
    zero, none = np.zeros(1, dtype=np.int64), np.zeros(1)
    return Labels(zero, zero, nothing_behind(), none, none, zero - 1, zero - 1, zero)


def joined(parts: list[Labels]) -> Labels:
    """Labels one after the other."""
    if not parts:
        return first_label().take(np.zeros(0, dtype=np.int64))
    behind = zip(*(part.behind.arrays() for part in parts), strict=True)
    return Labels(
        np.concatenate([part.state for part in parts]),
        np.concatenate([part.covered for part in parts]),
        Behind(*(np.concatenate(values) for values in behind)),
        np.concatenate([part.worst for part in parts]),
        np.concatenate([part.finish for part in parts]),
        np.concatenate([part.parent for part in parts]),
        np.concatenate([part.column for part in parts]),
        np.concatenate([part.layers for part in parts]),
    )


def undominated(labels: Labels, num_layers: int) -> Labels:
    """Labels without those that one of the best of their place does not exceed in anything."""
    labels, starts = _by_place(labels, labels.step_s, num_layers)
    values = np.concatenate(
        [*labels.behind.arrays(), labels.worst[:, None], labels.finish[:, None]], axis=1
    )
    start = np.repeat(starts, np.diff(np.r_[starts, len(labels)]))
    rank = np.arange(len(labels)) - start
    stays = np.ones(len(labels), dtype=bool)
    for number in range(_NUM_RIVALS):
        others = np.flatnonzero(stays & (rank > number))
        if not len(others):
            break
        rivals = start[others] + number
        stays[others] = (values[rivals] > values[others]).any(axis=1)
    return labels.take(np.flatnonzero(stays))


def merged(labels: Labels, num_layers: int, most: int) -> tuple[Labels, bool]:
    """At most about `most` labels per place; also whether any were merged.

    Labels next to each other in S become one with the least of everything: no plan gets dearer by
    it. The way back is that of the best one.
    """
    labels, starts = _by_place(labels, labels.behind.seconds, num_layers)
    sizes = np.diff(np.r_[starts, len(labels)])
    if not len(labels) or sizes.max() <= most:
        return labels, False
    size = np.repeat(sizes, sizes)
    rank = np.arange(len(labels)) - np.repeat(starts, sizes)
    group = np.repeat(np.arange(len(starts)), sizes) * most
    group = group + rank * np.minimum(most, size) // size
    heads = np.flatnonzero(np.r_[True, group[1:] != group[:-1]])
    best = np.lexsort((labels.step_s, group))
    own = labels.take(best[np.r_[True, group[best][1:] != group[best][:-1]]])
    return Labels(
        own.state,
        own.covered,
        Behind(*(np.minimum.reduceat(values, heads) for values in labels.behind.arrays())),
        np.minimum.reduceat(labels.worst, heads),
        np.minimum.reduceat(labels.finish, heads),
        own.parent,
        own.column,
        own.layers,
    ), True


def _by_place(labels: Labels, key: FloatArray, num_layers: int) -> tuple[Labels, IntArray]:
    """Labels sorted by place and key, and where each place starts."""
    place = labels.state * (num_layers + 1) + labels.covered
    order = np.lexsort((key, place))
    place = place[order]
    starts = np.flatnonzero(np.r_[True, place[1:] != place[:-1]]) if len(place) else order
    return labels.take(order), starts
