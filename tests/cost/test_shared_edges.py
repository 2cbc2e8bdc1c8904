"""Pipelines on shared edges: the longest path when nothing meets, what divides an edge else."""

from __future__ import annotations

import random

import pytest

from hexisolve.cost.pipeline import step_length_s
from hexisolve.cost.shared_edges import SharedPipeline, Wants, Work, shared_times_s
from hexisolve.data.cluster import Edge

WIRE: Edge = ("left", "right")
BACK: Edge = ("right", "left")


def work(seconds: float, **moved_s: float) -> Work:
    """Computes while its bytes move: ``max(seconds, bytes / what is left)``."""
    edges = {"wire": WIRE, "back": BACK}
    busy_s = {edges[name]: own_s for name, own_s in moved_s.items()}
    alone_s = max([seconds, *busy_s.values()])

    def seconds_with(left: Wants) -> float:
        return max([alone_s, *(own_s / left.get(edge, 1.0) for edge, own_s in busy_s.items())])

    return Work(alone_s, {e: own_s / alone_s for e, own_s in busy_s.items()}, seconds_with)


def one_stage(works: list[Work]) -> SharedPipeline:
    """Forward passes only, one after the other."""
    row = [("F", idx) for idx in range(len(works))]
    return SharedPipeline([row], [works], [works], [], [])


def makespans(*pipelines: SharedPipeline) -> list[float]:
    return [times.makespan_s for times in shared_times_s(pipelines)]


def test_two_that_want_all_of_an_edge_take_turns() -> None:
    """Both at half speed until the short one has ended, after 2 x 3 s."""
    short, long = one_stage([work(3.0, wire=3.0)]), one_stage([work(5.0, wire=5.0)])
    assert makespans(short, long) == pytest.approx([6.0, 8.0], rel=1e-4)


def test_what_leaves_room_for_the_other_is_not_held_up() -> None:
    """70% of the wire are left by one that uses 30%: enough for one that wants 60%."""
    light, heavy = one_stage([work(10.0, wire=3.0)]), one_stage([work(10.0, wire=6.0)])
    assert makespans(light, heavy) == pytest.approx([10.0, 10.0], rel=1e-4)


def test_one_that_wants_more_than_is_left_waits() -> None:
    """80% are left for 9 s of bytes until the light one has ended at 10."""
    light, heavy = one_stage([work(10.0, wire=2.0)]), one_stage([work(9.0, wire=9.0)])
    assert makespans(light, heavy) == pytest.approx([10.0, 11.0], rel=1e-4)


def test_directions_are_edges_of_their_own() -> None:
    there, back = one_stage([work(3.0, wire=3.0)]), one_stage([work(5.0, back=5.0)])
    assert makespans(there, back) == [3.0, 5.0]


def test_three_share_evenly() -> None:
    three = [one_stage([work(2.0, wire=2.0)]) for _ in range(3)]
    assert makespans(*three) == pytest.approx([6.0] * 3, rel=1e-4)


def test_a_transfer_waits_for_the_ring_of_another_stage() -> None:
    """The transfer has half of the wire while the ring of the other replica runs."""
    moving = SharedPipeline(
        [[("F", 0), ("B", 0)], [("F", 0), ("B", 0)]],
        [[work(1.0)], [work(1.0)]],
        [[work(1.0)], [work(1.0)]],
        [[work(0.0, wire=2.0)]],
        [[work(2.0)]],
    )
    ring = one_stage([work(9.0, wire=9.0)])
    alone, beside = shared_times_s([moving])[0], shared_times_s([moving, ring])[0]
    assert alone.makespan_s == 1 + 2 + 1 + 1 + 2 + 1
    first, last = beside.start_s
    assert first == pytest.approx((0.0, 9.0), rel=1e-4)
    assert last == pytest.approx((5.0, 6.0), rel=1e-4)
    assert beside.makespan_s == pytest.approx(10.0, rel=1e-4)
    assert beside.busy_s == pytest.approx((2.0, 2.0), rel=1e-4)


def drawn(draw: random.Random, *, with_edges: bool) -> SharedPipeline:
    """A random 1F1B pipeline of unequal stages and chunks."""
    num_stages, num_chunks = draw.randint(1, 4), draw.randint(1, 6)

    def one(most_s: float) -> Work:
        seconds = draw.uniform(0.1, 1.0) * most_s
        moved_s = draw.choice([0.0, 0.3, 1.0, 1.4]) * seconds
        return work(seconds, wire=moved_s) if with_edges and moved_s else work(seconds)

    schedule = []
    for p in range(num_stages):
        ahead = min(num_stages - p, num_chunks)
        row = [("F", k) for k in range(ahead)]
        for k in range(num_chunks):
            row.append(("B", k))
            row += [("F", k + ahead)] if k + ahead < num_chunks else []
        schedule.append(row)
    rows = [[[one(s) for _ in range(num_chunks)] for _ in range(num_stages)] for s in (1.0, 2.0)]
    moves = [
        [[one(0.2) for _ in range(num_chunks)] for _ in range(num_stages - 1)] for _ in range(2)
    ]
    return SharedPipeline(schedule, *rows, *moves)


def seconds(rows):  # type: ignore[no-untyped-def]
    return [[own.seconds for own in row] for row in rows]


def longest_path(own: SharedPipeline):  # type: ignore[no-untyped-def]
    return step_length_s(
        own.schedule,
        seconds(own.forward),
        seconds(own.backward),
        seconds(own.transfer_forward),
        seconds(own.transfer_backward),
    )


@pytest.mark.parametrize("seed", range(20))
def test_without_shared_edges_times_are_those_of_the_longest_path(seed: int) -> None:
    pipeline = drawn(random.Random(seed), with_edges=False)
    found, expected = shared_times_s([pipeline])[0], longest_path(pipeline)
    assert found.makespan_s == pytest.approx(expected.makespan_s, rel=1e-9)
    for ours, theirs in zip(found.start_s, expected.start_s, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-9)
    assert found.busy_s == pytest.approx(expected.busy_s, rel=1e-9)


@pytest.mark.parametrize("seed", range(40))
def test_sharing_is_never_faster_than_alone_nor_than_the_edge(seed: int) -> None:
    draw = random.Random(seed)
    pipelines = [drawn(draw, with_edges=True) for _ in range(draw.randint(1, 3))]
    found = shared_times_s(pipelines)
    for times, own in zip(found, pipelines, strict=True):
        assert times.makespan_s >= longest_path(own).makespan_s * (1 - 1e-9)
    busy_s = sum(
        piece.wants.get(WIRE, 0.0) * piece.seconds
        for own in pipelines
        for part in (own.forward, own.backward, own.transfer_forward, own.transfer_backward)
        for row in part
        for piece in row
    )
    assert max(times.makespan_s for times in found) >= busy_s * (1 - 1e-4)
