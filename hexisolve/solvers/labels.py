"""Labels of the dynamic program: what the stages placed so far cost, and which of them can go.

Stages are placed from the last one. With S the seconds of the stages placed and their transfers,
M the most that a row of one of them adds to the sum over *all* stages (F1 and F2 less S), and f the
largest finish, the step takes at least ``S + M + f`` once all layers are placed. Each of the three
only grows, and rows of later stages grow with S, so a label that another one of the same place does
not exceed in any of the three can go.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hexisolve.formulation.pipeline_table import FloatArray, IntArray

_NUM_FINISHES = 6  # levels of f that are told apart when labels are compared


@dataclass(frozen=True, eq=False)
class Labels:
    """Labels after one number of stages, arrays over the labels.

    Parameters
    ----------
    state
        Number of the units used.
    covered
        Layers placed.
    seconds, worst, finish
        S, M and f.
    parent
        Position among the labels of one stage less.
    column, layers
        The stage placed last.
    """

    state: IntArray
    covered: IntArray
    seconds: FloatArray
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
        total: FloatArray = self.seconds + self.worst + self.finish
        return total

    def take(self, rows: IntArray) -> Labels:
        """These labels only, in this order."""
        return Labels(*(values[rows] for values in self._arrays()))

    def _arrays(self) -> tuple[np.ndarray, ...]:
        return (self.state, self.covered, self.seconds, self.worst, self.finish, self.parent,
                self.column, self.layers)  # fmt: skip


def first_label() -> Labels:
    """Nothing placed."""
    zero, none = np.zeros(1, dtype=np.int64), np.zeros(1)
    return Labels(zero, zero, none, none, none, zero - 1, zero - 1, zero)


def joined(parts: list[Labels]) -> Labels:
    """Labels one after the other."""
    if not parts:
        return first_label().take(np.zeros(0, dtype=np.int64))
    columns = zip(*(part._arrays() for part in parts), strict=True)
    return Labels(*(np.concatenate(values) for values in columns))


def undominated(labels: Labels, num_layers: int) -> Labels:
    """Labels that no other of their place matches in S, M and f.

    f is compared in a few levels, so some that could go stay.
    """
    if len(labels) < 2:
        return labels
    place = labels.state * (num_layers + 1) + labels.covered
    edges = np.quantile(labels.finish, np.linspace(0, 1, _NUM_FINISHES + 1)[1:])
    level = np.searchsorted(edges, labels.finish)
    order = np.lexsort((labels.finish, labels.worst, labels.seconds, place))
    labels, place, level = labels.take(order), place[order], level[order]
    stays = np.ones(len(labels), dtype=bool)
    # Values of a later place are below all of the place before: a running minimum starts anew.
    shift = place * (2.0 * float(labels.worst.max()) + 1.0)
    for number, edge in enumerate(edges.tolist()):
        lower = edges[number - 1] if number else -np.inf
        # Whoever finishes no later than this level begins may push out labels of the level.
        rivals = np.flatnonzero(stays & (labels.finish <= lower))
        members = np.flatnonzero(stays & (labels.finish > lower) & (labels.finish <= edge))
        if number == 0:
            members = np.flatnonzero(stays & (labels.finish <= edge))
            rivals = np.zeros(0, dtype=np.int64)
        _drop_inside(labels, shift, members, stays)
        _drop_by(labels, shift, rivals, members, stays)
    return labels.take(np.flatnonzero(stays))


def _drop_inside(
    labels: Labels, shift: FloatArray, members: IntArray, stays: np.ndarray
) -> None:
    """Compare labels of one level; the finish counts as well."""
    if len(members) < 2:
        return
    values = labels.worst[members] - shift[members]
    least = np.minimum.accumulate(values)
    # The label that set the running minimum before each.
    is_new = np.r_[True, values[1:] < least[:-1]]
    holder = np.maximum.accumulate(np.where(is_new, np.arange(len(members)), 0))
    before = np.r_[0, holder[:-1]]
    rival = members[before]
    loses = ~is_new & (labels.finish[rival] <= labels.finish[members])
    loses &= shift[rival] == shift[members]
    stays[members[loses]] = False


def _drop_by(
    labels: Labels, shift: FloatArray, rivals: IntArray, members: IntArray, stays: np.ndarray
) -> None:
    """Drop members that some rival of an earlier finish and no larger S, M pushes out."""
    if not len(rivals) or not len(members):
        return
    least = np.minimum.accumulate(labels.worst[rivals] - shift[rivals])
    # Labels are sorted by place and S: rivals that stand before a member have no larger S.
    place = np.searchsorted(rivals, members)
    has_rival = place > 0
    rival = np.maximum(place - 1, 0)
    loses = has_rival & (least[rival] <= labels.worst[members] - shift[members])
    stays[members[loses]] = False


def merged(labels: Labels, num_layers: int, most: int) -> tuple[Labels, bool]:
    """At most about `most` labels per place; also whether any were merged.

    Labels next to each other in S become one with the least S, M and f of them all: no plan gets
    dearer by it. The way back is that of the best one.
    """
    place = labels.state * (num_layers + 1) + labels.covered
    order = np.lexsort((labels.seconds, place))
    labels, place = labels.take(order), place[order]
    starts = np.flatnonzero(np.r_[True, place[1:] != place[:-1]])
    sizes = np.diff(np.r_[starts, len(place)])
    if not len(labels) or sizes.max() <= most:
        return labels, False
    rank = np.arange(len(place)) - np.repeat(starts, sizes)
    group = rank * np.minimum(most, np.repeat(sizes, sizes)) // np.repeat(sizes, sizes)
    heads = np.flatnonzero(np.r_[True, (place[1:] != place[:-1]) | (group[1:] != group[:-1])])
    # The best of each group stands for it.
    number = np.cumsum(np.isin(np.arange(len(place)), heads)) - 1
    best = np.lexsort((labels.step_s, number))
    stand_in = best[np.r_[True, number[best][1:] != number[best][:-1]]]
    own = labels.take(stand_in)
    return Labels(
        own.state,
        own.covered,
        np.minimum.reduceat(labels.seconds, heads),
        np.minimum.reduceat(labels.worst, heads),
        np.minimum.reduceat(labels.finish, heads),
        own.parent,
        own.column,
        own.layers,
    ), True
