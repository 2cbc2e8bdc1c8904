"""Orders of operations."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hexisolve.cost.pipeline import step_length_s
from hexisolve.plan.schedule import one_f_one_b, parse_operation


@given(st.integers(1, 8), st.integers(1, 16), st.integers(1, 4))
def test_1f1b_runs_everything_once_and_never_deadlocks(num_stages, num_chunks, num_split):  # type: ignore[no-untyped-def]
    rows = one_f_one_b(num_stages, num_chunks, num_split)
    for row in rows:
        assert sorted(row) == sorted(f"{kind}{k}" for kind in "FB" for k in range(num_chunks))
    parsed = [[parse_operation(operation) for operation in row] for row in rows]
    ones = [[1.0] * num_chunks] * num_stages
    step_length_s(parsed, ones, ones, ones, ones)


def test_slices_of_one_sequence_warm_up_longer():  # type: ignore[no-untyped-def]
    rows = one_f_one_b(2, 4, num_split=3)
    assert [row.index("B0") for row in rows] == [4, 3]


@pytest.mark.parametrize("text", ["", "F", "X1", "F-1", "B1.5", "F²"])
def test_what_is_no_operation_is_refused(text):  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match="no operation"):
        parse_operation(text)
