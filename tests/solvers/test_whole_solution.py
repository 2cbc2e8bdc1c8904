from __future__ import annotations

import pytest

from hexisolve.formulation.linear_model import LinearModel
from hexisolve.solvers.linear_solution import LinearSolution, Termination
from hexisolve.solvers.whole_model import whole_model
from hexisolve.solvers.whole_solution import best_reals, exact_solution


def model(upper: float = 10.0) -> LinearModel:
    made = LinearModel("times")
    count = made.add_variable("count", 0, 3)
    first = made.add_variable("first_s", 0.0, upper, is_integer=False)
    second = made.add_variable("second_s", 0.0, upper, is_integer=False)
    made.add_row("first", [(count, 1 / 3), (first, -1.0)], "<=", 0.0)
    made.add_row("second", [(first, 1.0), (count, 1 / 7), (second, -1.0)], "<=", 0.0)
    made.minimise([(second, 1.0)])
    return made


def test_reals_are_the_best_for_the_integers() -> None:
    values = best_reals(model(), (3.0, 9.0, 9.0))
    assert values == pytest.approx((3.0, 1.0, 1.0 + 3 / 7), rel=1e-9)


def test_no_reals_for_integers_that_only_rounding_allows() -> None:
    assert best_reals(model(upper=1.4), (3.0, 1.0, 1.0)) is None
    whole = whole_model(model(upper=1.4))
    native = whole.native_values((3.0, 1.0, 1.4))
    found = exact_solution(whole, Termination.OPTIMAL, native, 0.0, 0.0)
    assert found == LinearSolution(Termination.UNKNOWN, None, 0.0)


def test_optimal_needs_a_bound_within_the_resolution() -> None:
    whole = whole_model(model())
    value = 1.0 + 3 / 7
    native = whole.native_values((3.0, 1.0, value))
    for share, termination in ((1e-5, Termination.OPTIMAL), (1e-3, Termination.FEASIBLE)):
        bound = (1 - share) * value / whole.objective_unit
        found = exact_solution(whole, Termination.OPTIMAL, native, bound, 0.0)
        assert found.termination is termination
        assert found.bound == pytest.approx((1 - share) * value, rel=1e-6)
