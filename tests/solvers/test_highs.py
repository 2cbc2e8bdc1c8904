"""HiGHS reads linear models and tells the truth about them."""

from __future__ import annotations

from itertools import product
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hexisolve.formulation.linear_model import LinearModel
from hexisolve.solvers.highs import solve_with_highs
from hexisolve.solvers.linear_solution import Termination


def _random_model(rng: Random) -> LinearModel:
    model = LinearModel("random")
    variables = [
        model.add_variable(f"x{idx}", rng.randint(-2, 0), rng.randint(1, 3))
        for idx in range(rng.randint(1, 4))
    ]
    for idx in range(rng.randint(0, 4)):
        terms = [(variable, rng.randint(-3, 3)) for variable in variables]
        sense = rng.choice(["<=", ">=", "=="])
        model.add_row(f"row{idx}", terms, sense, rng.randint(-4, 4))  # type: ignore[arg-type]
    model.minimise([(variable, rng.randint(-5, 5)) for variable in variables])
    return model


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 10**9))
def test_small_models_equal_enumeration(seed: int) -> None:
    model = _random_model(Random(seed))
    ranges = [range(int(v.lower), int(v.upper) + 1) for v in model.variables]
    legal = [values for values in product(*ranges) if not model.broken_rows(values)]
    found = solve_with_highs(model, time_limit_s=10)
    if not legal:
        assert found.termination is Termination.INFEASIBLE
        assert found.values is None
        assert found.bound is None
        return
    best = min(model.objective_value(values) for values in legal)
    assert found.termination is Termination.OPTIMAL
    assert found.values is not None
    assert model.objective_value(found.values) == pytest.approx(best, abs=1e-6)
    assert found.bound == pytest.approx(best, abs=1e-6)


def test_a_model_without_integers_has_a_bound_too() -> None:
    model = LinearModel("real")
    x, y = (model.add_variable(name, 0, 10, is_integer=False) for name in "xy")
    model.add_row("sum", [(x, 1.0), (y, 2.0)], ">=", 3.0)
    model.minimise([(x, 1.0), (y, 1.0)])
    found = solve_with_highs(model, time_limit_s=10)
    assert found.termination is Termination.OPTIMAL
    assert found.bound == pytest.approx(1.5)


def test_a_known_solution_is_returned_when_there_is_no_time() -> None:
    rng = Random(1)
    model = LinearModel("knapsack")
    items = [model.add_variable(f"x{idx}", 0, 1) for idx in range(60)]
    weights = [[rng.randint(10, 99) for _ in items] for _ in range(5)]
    for idx, row in enumerate(weights):
        model.add_row(f"row{idx}", list(zip(items, row, strict=True)), "<=", sum(row) // 2)
    model.minimise([(item, -rng.randint(10, 99)) for item in items])
    found = solve_with_highs(model, time_limit_s=0.01, start=[0.0] * 60)
    assert found.termination is not Termination.INFEASIBLE
    assert found.bound is not None
    if found.values is not None:
        assert found.bound <= model.objective_value(found.values) + 1e-6


def test_nothing_reaches_stdout(capfd: pytest.CaptureFixture[str]) -> None:
    solve_with_highs(_random_model(Random(2)), time_limit_s=1)
    assert capfd.readouterr().out == ""
