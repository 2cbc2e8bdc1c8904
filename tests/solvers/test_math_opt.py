"""MathOpt's solvers. SCIP and CP-SAT in this process; its HiGHS only apart (test_backends)."""

from __future__ import annotations

import pytest

from hexisolve.errors import BackendError
from hexisolve.formulation.linear_model import LinearModel
from hexisolve.solvers.linear_solution import Termination
from hexisolve.solvers.math_opt import solve_with_math_opt
from tests.solvers.random_models import random_model


def test_counted_reals_beyond_ten_million_steps_are_not_cut_off() -> None:
    # By default MathOpt's CP-SAT cuts ranges at 1e7 and calls this infeasible.
    model = LinearModel("long")
    pick = model.add_variable("pick", 0, 1)
    step_s = model.add_variable("step_s", 0.0, 100.0, is_integer=False)
    model.add_row("one", [(pick, 1.0)], ">=", 1)
    model.add_row("time", [(pick, 60.0), (step_s, -1.0)], "<=", 0.0)
    model.minimise([(step_s, 1.0)])
    found = solve_with_math_opt(model, solver="mathopt-cp-sat", time_limit_s=10)
    assert found.termination is Termination.OPTIMAL
    assert found.values == pytest.approx((1.0, 60.0))


def test_a_gap_is_left_between_bound_and_optimum() -> None:
    model = random_model(2)
    exact = solve_with_math_opt(model, solver="mathopt-gscip", time_limit_s=10)
    loose = solve_with_math_opt(model, solver="mathopt-gscip", time_limit_s=10, relative_gap=0.5)
    assert exact.values is not None
    assert exact.bound is not None
    assert loose.bound is not None
    assert loose.bound <= model.objective_value(exact.values)


def test_a_failure_of_the_library_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    from ortools.math_opt.python import mathopt

    def fail(*_: object, **__: object) -> None:
        raise ValueError("refused")

    monkeypatch.setattr(mathopt, "solve", fail)
    with pytest.raises(BackendError, match="refused"):
        solve_with_math_opt(random_model(2), solver="mathopt-gscip", time_limit_s=1)
