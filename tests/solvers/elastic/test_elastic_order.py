"""Orders of operations: legal, free of deadlock, and timed as the cost model times them."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hexisolve.cost.pipeline import step_length_s
from hexisolve.plan.schedule import one_f_one_b, parse_operation
from hexisolve.solvers.elastic.order import PACES, Order, Pace, block_order, makespan_s
from tests.solvers.elastic.elastic_cases import random_blocks


@given(st.integers(0, 10**9), st.sampled_from(PACES), st.integers(1, 5))
def test_every_operation_once_forward_first_and_slices_backward_in_reverse(
    seed: int, pace: Pace, num_stages: int
) -> None:
    blocks = random_blocks(Random(seed))
    for row in block_order(blocks, pace).schedule(num_stages):
        assert sorted(row) == sorted(f"{kind}{idx}" for kind in "FB" for idx in range(sum(blocks)))
        position = {name: idx for idx, name in enumerate(row)}
        first = 0
        for size in blocks:
            own = range(first, first + size)
            assert [position[f"F{idx}"] for idx in own] == sorted(position[f"F{i}"] for i in own)
            backward = [position[f"B{idx}"] for idx in own]
            assert backward == sorted(backward, reverse=True)
            assert position[f"F{own[-1]}"] < position[f"B{own[-1]}"]
            first += size


def test_whole_sequences_are_1f1b() -> None:
    for num_stages in range(1, 6):
        for num_chunks in range(1, 8):
            expected = one_f_one_b(num_stages, num_chunks)
            for pace in PACES:
                assert block_order([1] * num_chunks, pace).schedule(num_stages) == expected


def test_equal_blocks_ahead_warm_up_as_published() -> None:
    # P - p + N_split forwards precede the first backward of stage p (counted from 1).
    order = block_order([3, 3, 3, 3], "ahead")
    for stage_idx, row in enumerate(order.schedule(3)):
        before = next(idx for idx, name in enumerate(row) if name[0] == "B")
        assert before == 3 - (stage_idx + 1) + 3


def test_late_never_holds_more_chunks_than_ahead() -> None:
    rng = Random(5)
    for _ in range(200):
        blocks = random_blocks(rng)
        ahead, late = (block_order(blocks, pace) for pace in PACES)
        assert (late.done <= ahead.done).all()


def _times(order: Order, num_stages: int, rng: Random) -> tuple[float, float]:
    def table(rows: int) -> list[list[float]]:
        return [[rng.random() for _ in range(order.num_chunks)] for _ in range(rows)]

    forward, backward = table(num_stages), table(num_stages)
    there, back = table(num_stages - 1), table(num_stages - 1)
    rows = [[parse_operation(name) for name in row] for row in order.schedule(num_stages)]
    exact = step_length_s(rows, forward, backward, there, back).makespan_s
    return makespan_s(order, forward, backward, there, back), exact


@given(st.integers(0, 10**9), st.sampled_from(PACES), st.integers(1, 5))
def test_makespan_is_that_of_the_cost_model(seed: int, pace: Pace, num_stages: int) -> None:
    rng = Random(seed)
    ours, exact = _times(block_order(random_blocks(rng), pace), num_stages, rng)
    assert ours == pytest.approx(exact, rel=1e-12)
