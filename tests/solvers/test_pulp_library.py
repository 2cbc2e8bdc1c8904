"""PuLP's words and what they mean; in this process, with CBC's files in a folder of the test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hexisolve.errors import BackendError, BackendUnavailableError
from hexisolve.formulation.linear_model import LinearModel
from hexisolve.solvers import pulp_library
from hexisolve.solvers.linear_solution import Termination
from hexisolve.solvers.pulp_library import solve_with_pulp
from tests.solvers.random_models import least_objective, random_model

CRASHING = (210, 223)  # CBC without preprocessing crashes on these


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def knapsack() -> LinearModel:
    """A model that CBC does not finish in a hundredth of a second."""
    model = LinearModel("knapsack")
    picks = [model.add_variable(f"pick[{idx}]", 0, 3) for idx in range(60)]
    for number in range(20):
        terms = [(x, float(5 + (idx * 7 + number * 13) % 46)) for idx, x in enumerate(picks)]
        model.add_row(f"row[{number}]", terms, ">=", 0.83 * sum(f for _, f in terms))
    model.minimise([(x, 5.0 + (idx * 31) % 47) for idx, x in enumerate(picks)])
    return model


def test_the_model_cbc_calls_infeasible() -> None:
    # Case 41.
    model = LinearModel("cbc")
    x0, x1, x2, c0, c1 = (model.add_variable(name, 0, 1) for name in ("x0", "x1", "x2", "c0", "c1"))
    model.add_row("a", [(x0, 1), (c1, 1)], "==", 1)
    model.add_row("b", [(x0, 1), (c0, 1)], ">=", 1)
    model.add_row("c", [(x1, 1), (c1, 1)], "<=", 1)
    model.add_row("d", [(c0, 1), (c1, 1)], "<=", 1)
    model.add_row("e", [(x2, 1)], "==", 1)
    model.add_row("f", [(x1, 9000), (x2, 7200), (c1, 10800)], ">=", 16200)
    model.minimise([(c0, 1.0), (c1, 1.0)])
    for solver in ("cbc", "highs"):
        found = solve_with_pulp(model, solver=solver, time_limit_s=10)
        assert found.termination is Termination.OPTIMAL
        assert found.values == (1, 1, 1, 0, 0)


def test_the_model_of_which_cbc_calls_a_worse_solution_optimal() -> None:
    # With preprocessing CBC 2.10.3 says 2100.
    model = LinearModel("worse")
    a, b, c, d, e, f = (model.add_variable(name, 0, 3 if name == "c" else 1) for name in "abcdef")
    model.add_row("one", [(b, 1), (c, 9), (d, 6), (e, -5)], "<=", 19)
    model.add_row("two", [(d, -2), (e, 1)], ">=", 0)
    model.add_row("three", [(a, 4), (c, 5), (f, -7)], ">=", 3)
    model.add_row("four", [(b, 9), (c, 4), (d, -3), (e, -5), (f, 1)], ">=", 5)
    model.minimise([(a, 2400), (b, -300), (c, 1500), (d, 1800), (e, 2100)])
    for solver in ("cbc", "highs"):
        found = solve_with_pulp(model, solver=solver, time_limit_s=10)
        assert found.values is not None
        assert model.objective_value(found.values) == 1200


def test_a_time_limit_is_no_optimum_and_the_bound_of_the_log_is_below(folder: Path) -> None:
    # Case 43; PuLP's own status is "Optimal" here.
    model = knapsack()
    best = solve_with_pulp(model, solver="highs", time_limit_s=60, relative_gap=1e-3)
    assert best.bound is not None
    assert best.values is not None
    found = solve_with_pulp(model, solver="cbc", time_limit_s=0.05)
    assert "Stopped on time limit" in (folder / "solver.log").read_text()
    assert found.termination is Termination.FEASIBLE
    assert found.bound is not None
    assert 0 < found.bound <= model.objective_value(best.values)


def test_a_gap_is_left_between_bound_and_optimum() -> None:
    model = knapsack()
    found = solve_with_pulp(model, solver="cbc", time_limit_s=60, relative_gap=0.2)
    assert found.values is not None
    assert found.bound is not None
    value = model.objective_value(found.values)
    assert value * 0.74 < found.bound <= value


@pytest.mark.parametrize("seed", CRASHING)
def test_infeasible_models_on_which_cbc_crashes(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert least_objective(random_model(seed)) is None
    asked = []
    call = pulp_library._call

    def remember(*arguments: Any, preprocess: str = "off") -> None:
        asked.append(preprocess)
        call(*arguments, preprocess=preprocess)

    monkeypatch.setattr(pulp_library, "_call", remember)
    found = solve_with_pulp(random_model(seed), solver="cbc", time_limit_s=10)
    assert asked == ["off", "on"]
    assert found.termination is Termination.INFEASIBLE


def test_a_variable_in_no_row_has_a_value_within_its_bounds() -> None:
    model = LinearModel("idle")
    used = model.add_variable("used", 1, 5)
    model.add_variable("idle", -4, -2)
    model.minimise([(used, 1.0)])
    for solver in ("cbc", "highs"):
        assert solve_with_pulp(model, solver=solver, time_limit_s=10).values == (1.0, -2.0)


def test_values_are_read_by_handle_not_by_order_of_names() -> None:
    # x10 sorts before x2.
    model = LinearModel("twelve")
    counts = [model.add_variable(f"x{idx}", 0, 20) for idx in range(12)]
    for idx, count in enumerate(counts):
        model.add_row(f"row{idx}", [(count, 1.0)], ">=", idx)
    model.minimise([(count, 1.0) for count in counts])
    for solver in ("cbc", "highs"):
        found = solve_with_pulp(model, solver=solver, time_limit_s=10)
        assert found.values == tuple(range(12))


def test_a_solver_that_pulp_does_not_find() -> None:
    with pytest.raises(BackendUnavailableError, match="xpress"):
        solve_with_pulp(random_model(2), solver="xpress", time_limit_s=1)


def test_a_solver_that_fails_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    import pulp

    def fail(*_: object) -> None:
        raise pulp.PulpSolverError("out of memory")

    monkeypatch.setattr(pulp.HiGHS, "actualSolve", fail)
    with pytest.raises(BackendError, match="out of memory"):
        solve_with_pulp(random_model(2), solver="highs", time_limit_s=1)
