"""The longest path through a pipeline, and the lower bounds on it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hexisolve.cost.pipeline import (
    DeadlockError,
    bound_1f1b_s,
    bound_any_order_s,
    step_length_s,
)
from hexisolve.plan.schedule import one_f_one_b, parse_operation


def schedule_of(num_stages, num_chunks):  # type: ignore[no-untyped-def]
    rows = one_f_one_b(num_stages, num_chunks)
    return [[parse_operation(operation) for operation in row] for row in rows]


def makespan_s(stages, num_chunks, transfer_s=0.0):  # type: ignore[no-untyped-def]
    forward = [[f] * num_chunks for f, _ in stages]
    backward = [[b] * num_chunks for _, b in stages]
    free = [[transfer_s] * num_chunks for _ in stages[1:]]
    times = step_length_s(schedule_of(len(stages), num_chunks), forward, backward, free, free)
    return times.makespan_s


@pytest.mark.parametrize(
    ("stages", "num_chunks", "step_s", "any_order_s", "in_turn_s"),
    [
        ([(1, 2), (1, 2), (1, 2)], 4, 18.0, 18.0, 18.0),
        ([(1.0, 2.0), (0.5, 1.0), (1.5, 3.0), (0.8, 1.6)], 6, 32.4, 31.5, 32.4),
    ],
)
def test_worked_examples(stages, num_chunks, step_s, any_order_s, in_turn_s):  # type: ignore[no-untyped-def]
    forward, backward = zip(*stages, strict=True)
    totals = [f + b for f, b in stages]
    assert makespan_s(stages, num_chunks) == pytest.approx(step_s, rel=1e-9)
    assert bound_any_order_s(totals, num_chunks) == pytest.approx(any_order_s, rel=1e-9)
    assert bound_1f1b_s(forward, backward, num_chunks) == pytest.approx(in_turn_s, rel=1e-9)


durations = st.lists(st.tuples(st.floats(0.01, 4.0), st.floats(0.01, 9.0)), min_size=1, max_size=6)


@given(durations, st.integers(1, 12))
def test_bounds_are_never_above_the_longest_path(stages, num_chunks):  # type: ignore[no-untyped-def]
    forward, backward = zip(*stages, strict=True)
    true_s = makespan_s(stages, num_chunks)
    any_order_s = bound_any_order_s([f + b for f, b in stages], num_chunks)
    in_turn_s = bound_1f1b_s(forward, backward, num_chunks)
    assert any_order_s <= in_turn_s <= true_s * (1 + 1e-9)


@given(st.integers(1, 8), st.integers(1, 20), st.floats(0.1, 3.0), st.floats(0.1, 6.0))
def test_equal_stages_take_the_closed_form(num_stages, num_chunks, forward, backward):  # type: ignore[no-untyped-def]
    expected = (num_chunks - 1 + num_stages) * (forward + backward)
    assert makespan_s([(forward, backward)] * num_stages, num_chunks) == pytest.approx(expected)


def test_transfers_are_exposed_both_ways():  # type: ignore[no-untyped-def]
    assert makespan_s([(1, 2), (1, 2)], 1, transfer_s=0.25) == pytest.approx(6.5)


def test_starts_follow_their_inputs():  # type: ignore[no-untyped-def]
    times = step_length_s(
        schedule_of(2, 2), [[1.0, 1.0]] * 2, [[2.0, 2.0]] * 2, [[0.5, 0.5]], [[0.25, 0.25]]
    )
    assert times.start_s[0][:2] == (0.0, 1.0)  # F0 F1
    assert times.start_s[1] == (1.5, 2.5, 4.5, 5.5)  # F0 B0 F1 B1
    assert times.start_s[0][2:] == (4.75, 7.75)  # B0 B1
    assert times.busy_s == (6.0, 6.0)


def test_a_backward_before_anything_deadlocks_by_name():  # type: ignore[no-untyped-def]
    rows = [[("F", 0), ("F", 1), ("B", 0), ("B", 1)], [("B", 0), ("F", 0), ("F", 1), ("B", 1)]]
    ones = [[1.0, 1.0]] * 2
    with pytest.raises(DeadlockError, match="stage 1 cannot start B0"):
        step_length_s(rows, ones, ones, ones[:1], ones[:1])


@pytest.mark.parametrize("num_stages", [1, 3, 5])
def test_chunks_in_flight_are_at_most_p_minus_s(num_stages):  # type: ignore[no-untyped-def]
    """Case 26: min(m, P - s) chunks are in flight on stage s."""
    for num_chunks in (1, num_stages - 1, num_stages, num_stages + 3):
        for stage_idx, row in enumerate(one_f_one_b(num_stages, num_chunks)):
            live = worst = 0
            for operation in row:
                live += 1 if operation[0] == "F" else -1
                worst = max(worst, live)
            assert worst == min(num_chunks, num_stages - stage_idx)
