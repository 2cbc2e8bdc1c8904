"""Answers of libraries held against the model."""

from __future__ import annotations

import math

import pytest

from hexisolve.errors import BackendError
from hexisolve.formulation.linear_model import LinearModel
from hexisolve.solvers.linear_solution import (
    LinearSolution,
    Termination,
    checked_solution,
    checked_values,
)

OPTIMAL, FEASIBLE, UNKNOWN = Termination.OPTIMAL, Termination.FEASIBLE, Termination.UNKNOWN


def model() -> LinearModel:
    """Minimise time; time is at least 0.1 a + 0.2 b, a + b is at least 3."""
    made = LinearModel("small")
    first, second = made.add_variable("a", 0, 3), made.add_variable("b", 0, 3)
    time_s = made.add_variable("time_s", 0.0, 10.0, is_integer=False)
    made.add_row("enough", [(first, 1.0), (second, 1.0)], ">=", 3)
    made.add_row("time", [(first, 0.1), (second, 0.2), (time_s, -1.0)], "<=", 0)
    made.minimise([(time_s, 1.0)])
    return made


def test_integers_become_whole_and_reals_stay() -> None:
    kept, broken = checked_values(model(), (2.999999, 1e-7, 0.3000001))
    assert kept == (3.0, 0.0, 0.3000001)
    assert broken == ""


@pytest.mark.parametrize(
    ("values", "broken"),
    [
        ((2.5, 0.5, 1.0), "a"),
        ((2.0, 0.0, 1.0), "enough"),
        ((3.0, 0.0, 0.29), "time"),
        ((4.0, 0.0, 1.0), "a"),
        ((3.0, 0.0, -0.1), "time_s"),
        ((3.0, math.nan, 1.0), "b"),
        ((3.0, 0.0), "2 values for 3 variables"),
    ],
)
def test_what_is_broken_is_named(values: tuple[float, ...], broken: str) -> None:
    assert checked_values(model(), values)[1] == broken


def test_sums_are_exact() -> None:
    # In floating point 2^53 + 1 is 2^53, and the row seems to hold.
    made = LinearModel("large")
    large, one = made.add_variable("large", 0, 2.0**53), made.add_variable("one", 0, 1)
    made.add_row("most", [(large, 1.0), (one, 1e8)], "<=", 2.0**53)
    assert made.rows[0].violation((2.0**53, 1.0)) > 0
    assert checked_values(made, (2.0**53 - 1e8, 1.0))[1] == ""
    assert checked_values(made, (2.0**53, 1.0))[1] == "most"


def test_decimal_rows_of_integers_hold_up_to_their_own_rounding() -> None:
    made = LinearModel("decimal")
    first, second = made.add_variable("a", 0, 1), made.add_variable("b", 0, 1)
    made.add_row("sum", [(first, 0.1), (second, 0.2)], "<=", 0.3)
    assert 0.1 + 0.2 > 0.3
    assert checked_values(made, (1.0, 1.0))[1] == ""


def test_an_optimum_that_breaks_a_row_is_an_error_and_a_solution_is_dropped() -> None:
    with pytest.raises(BackendError, match="'enough'"):
        checked_solution(model(), LinearSolution(OPTIMAL, (2.0, 0.0, 1.0), 0.1), "x")
    found = checked_solution(model(), LinearSolution(FEASIBLE, (2.0, 0.0, 1.0), 0.1), "x")
    assert found == LinearSolution(UNKNOWN, None, 0.1)


def test_a_bound_above_a_solution_is_an_error() -> None:
    with pytest.raises(BackendError, match="bound"):
        checked_solution(model(), LinearSolution(FEASIBLE, (3.0, 0.0, 0.3), 0.31), "x")


def test_an_optimum_without_values_is_an_error() -> None:
    with pytest.raises(BackendError, match="no values"):
        checked_solution(model(), LinearSolution(OPTIMAL, None, 0.1), "x")


def test_a_bound_is_at_least_what_the_bounds_of_variables_give() -> None:
    found = checked_solution(model(), LinearSolution(UNKNOWN, None, -7.0), "x")
    assert found == LinearSolution(UNKNOWN, None, 0.0)
    found = checked_solution(model(), LinearSolution(UNKNOWN, None, None), "x")
    assert found == LinearSolution(UNKNOWN, None, None)


def test_a_better_start_takes_the_place_of_a_solution() -> None:
    start = (3.0, 0.0, 0.3)
    worse = LinearSolution(FEASIBLE, (0.0, 3.0, 0.6), 0.2)
    assert checked_solution(model(), worse, "x", start) == LinearSolution(FEASIBLE, start, 0.2)
    assert checked_solution(model(), LinearSolution(UNKNOWN, None, None), "x", start) == (
        LinearSolution(FEASIBLE, start, None)
    )


def test_a_model_with_a_start_is_not_infeasible() -> None:
    nothing = LinearSolution(Termination.INFEASIBLE, None, None)
    with pytest.raises(BackendError, match="infeasible that has a solution"):
        checked_solution(model(), nothing, "x", (3.0, 0.0, 0.3))
    with pytest.raises(BackendError, match="start breaks 'time'"):
        checked_solution(model(), nothing, "x", (3.0, 0.0, 0.0))
