"""Seconds of a pipeline: the longest path through its operations, and bounds on it.

Equations 8 and 12 of docs/cost-model.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

Schedule = Sequence[Sequence[tuple[str, int]]]
PerStageChunk = Sequence[Sequence[float]]


class DeadlockError(ValueError):
    """A schedule in which every stage waits for another; `waiting` says who waits for what."""

    def __init__(self, waiting: Sequence[tuple[int, str, int]]) -> None:
        self.waiting = tuple(waiting)
        words = ", ".join(f"stage {stage} cannot start {k}{n}" for stage, k, n in self.waiting)
        super().__init__(f"the schedule deadlocks: {words}")


@dataclass(frozen=True)
class PipelineTimes:
    """When every operation of a schedule runs.

    Parameters
    ----------
    start_s
        Start of every operation, ``[stage][position in the stage's schedule]``.
    makespan_s
        End of the last operation.
    busy_s
        Per stage, the seconds in which it runs an operation.
    """

    start_s: tuple[tuple[float, ...], ...]
    makespan_s: float
    busy_s: tuple[float, ...]


def step_length_s(
    schedule: Schedule,
    forward_s: PerStageChunk,
    backward_s: PerStageChunk,
    transfer_forward_s: PerStageChunk,
    transfer_backward_s: PerStageChunk,
) -> PipelineTimes:
    """Earliest times of all operations: the longest path through the schedule.

    An operation starts when the one before it on its stage has ended and its input is there: F of
    a chunk follows F on the stage before plus a transfer, B follows B on the stage after plus a
    transfer, and on the last stage its own F.

    Parameters
    ----------
    schedule
        Per stage, ``("F" | "B", chunk)`` in order.
    forward_s, backward_s
        ``[stage][chunk]`` seconds of an operation.
    transfer_forward_s
        ``[p][chunk]``: hidden states from stage p to p + 1.
    transfer_backward_s
        ``[p][chunk]``: gradients from stage p + 1 to p.

    Raises
    ------
    DeadlockError
        When no order of events satisfies the schedule.
    """
    num_stages = len(schedule)
    last = num_stages - 1
    forward_end: list[dict[int, float]] = [{} for _ in schedule]
    backward_end: list[dict[int, float]] = [{} for _ in schedule]
    starts: list[list[float]] = [[] for _ in schedule]
    clock = [0.0] * num_stages
    missing = sum(len(row) for row in schedule)
    while missing:
        missing_before = missing
        for p, row in enumerate(schedule):
            done = starts[p]
            while len(done) < len(row):
                kind, k = row[len(done)]
                if kind == "F":
                    ready: float | None = 0.0
                    if p:
                        ready = forward_end[p - 1].get(k)
                        if ready is not None:
                            ready += transfer_forward_s[p - 1][k]
                    seconds, ends = forward_s[p][k], forward_end[p]
                else:
                    ready = forward_end[p].get(k)
                    if ready is not None and p < last:
                        ready = backward_end[p + 1].get(k)
                        if ready is not None:
                            ready += transfer_backward_s[p][k]
                    seconds, ends = backward_s[p][k], backward_end[p]
                if ready is None:
                    break
                start = ready if ready > clock[p] else clock[p]
                done.append(start)
                clock[p] = ends[k] = start + seconds
                missing -= 1
        if missing == missing_before:
            raise DeadlockError(
                [(p, *row[len(starts[p])]) for p, row in enumerate(schedule)
                 if len(starts[p]) < len(row)]
            )  # fmt: skip
    busy = tuple(
        sum(forward_s[p][k] if kind == "F" else backward_s[p][k] for kind, k in row)
        for p, row in enumerate(schedule)
    )
    return PipelineTimes(tuple(map(tuple, starts)), max(clock, default=0.0), busy)


def bound_any_order_s(stage_s: Sequence[float], num_chunks: int) -> float:
    """``max_p ( sum_{q<p} t_q + n t_p )``: no order of equal chunks is faster.

    Parameters
    ----------
    stage_s
        t_p: forward and backward seconds of a chunk on each stage.
    num_chunks
        n.
    """
    before, best = 0.0, 0.0
    for seconds in stage_s:
        best = max(best, before + num_chunks * seconds)
        before += seconds
    return best


def bound_1f1b_s(forward_s: Sequence[float], backward_s: Sequence[float], num_chunks: int) -> float:
    """Lower bound on 1F1B with equal chunks; within 1.1% of the truth in 99% of draws.

    ``max_p ( sum_{q<p} t_q + n t_p + max(0, X_p - w_p F_p) + [n >= P - p] max(0, X_p - w_p B_p) )``
    with ``X_p = sum_{q>p} t_q`` and ``w_p = min(P - p, n) - 1``.

    Parameters
    ----------
    forward_s, backward_s
        F_p and B_p: seconds of a chunk on each stage.
    num_chunks
        n.
    """
    num_stages = len(forward_s)
    stage_s = [f + b for f, b in zip(forward_s, backward_s, strict=True)]
    before, after, best = 0.0, sum(stage_s), 0.0
    for p, seconds in enumerate(stage_s):
        after -= seconds
        in_flight = min(num_stages - p, num_chunks) - 1
        bound = before + num_chunks * seconds + max(0.0, after - in_flight * forward_s[p])
        if num_chunks >= num_stages - p:
            bound += max(0.0, after - in_flight * backward_s[p])
        best = max(best, bound)
        before += seconds
    return best
