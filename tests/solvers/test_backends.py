"""Every backend against enumeration, the dynamic program, and each other."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from hexisolve.errors import BackendError, BackendUnavailableError, InstanceError
from hexisolve.formulation.configuration_program import (
    ConfigurationProgram,
    build_configuration_program,
)
from hexisolve.formulation.linear_model import LinearModel
from hexisolve.solvers import solve as solve_module
from hexisolve.solvers.backends import BACKENDS, available_backends, require_backend, solve_linear
from hexisolve.solvers.dynamic_program import solve_relaxed
from hexisolve.solvers.linear_solution import LinearSolution, Termination
from hexisolve.solvers.model_documents import solution_from_document
from tests.solvers.random_models import least_objective, random_model
from tests.solvers.random_tables import random_table

REPOSITORY = Path(__file__).resolve().parents[2]

# What a plain installation brings: a test of these never skips.
REQUIRED = ("cp-sat", "cbc", "highs", "mathopt-gscip", "mathopt-cp-sat", "mathopt-highs")
EVERY = [*REQUIRED, *(name for name in available_backends() if name not in REQUIRED)]
COUNTING = ("cp-sat", "mathopt-cp-sat")
FLOATING = [name for name in EVERY if name not in COUNTING]
NUM_MODELS = 150
CUTOFF_S = 100.0


def one_row(lower: float, upper: float, least: float) -> LinearModel:
    """Minimise -x for an integer and a real x that are together at least `least`."""
    model = LinearModel("one-row")
    count = model.add_variable("count", 0, 5)
    amount = model.add_variable("amount", lower, upper, is_integer=False)
    model.add_row("least", [(count, 1.0), (amount, 1.0)], ">=", least)
    model.minimise([(amount, -1.0), (count, -1.0)])
    return model


def test_required_backends_are_installed() -> None:
    assert set(REQUIRED) <= set(available_backends())


def test_solve_takes_every_backend_by_name() -> None:
    assert set(solve_module.BACKENDS) == {*BACKENDS, "dp"}


@pytest.mark.dist
@pytest.mark.parametrize("name", EVERY)
def test_agrees_with_enumeration(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.solvers.random_models", name, "0", str(NUM_MODELS)],
        capture_output=True, text=True, timeout=240, cwd=REPOSITORY,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(answers) == NUM_MODELS
    # The HiGHS inside OR-Tools gives up on one model in some hundreds, and says so.
    errors = [answer for answer in answers if "error" in answer]
    assert len(errors) <= (1 if name == "mathopt-highs" else 0), errors
    num_infeasible = 0
    for seed, answer in enumerate(answers):
        if answer in errors:
            continue
        found = solution_from_document(answer)
        model = random_model(seed)
        least = least_objective(model)
        if least is None:
            assert found == LinearSolution(Termination.INFEASIBLE, None, None), seed
            num_infeasible += 1
            continue
        assert found.termination is Termination.OPTIMAL, seed
        assert found.values is not None
        assert model.broken_rows(found.values) == []
        assert model.objective_value(found.values) == pytest.approx(least, rel=1e-6, abs=1e-9)
        assert found.bound is not None
        assert found.bound <= least + 1e-12 * abs(least)
        assert found.bound == pytest.approx(least, rel=1e-4, abs=1e-4)
    assert 20 < num_infeasible < NUM_MODELS - 20


@pytest.mark.dist
@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("seed", [3, 11])
def test_agrees_with_the_dynamic_program(name: str, seed: int) -> None:
    table = random_table(seed, (3, 2), 6)
    expected = solve_relaxed(table, cutoff_s=CUTOFF_S)
    program = build_configuration_program(table, CUTOFF_S)
    found = solve_linear(program.model, name, time_limit_s=60)
    assert found.termination is Termination.OPTIMAL
    assert found.values is not None
    value_s = table.value_s(program.configuration(found.values))
    assert value_s == pytest.approx(expected.value_s, rel=1e-6)
    assert found.bound is not None
    assert found.bound <= expected.value_s
    assert found.bound == pytest.approx(expected.value_s, rel=1e-4)


@pytest.mark.dist
@pytest.mark.parametrize("name", EVERY)
def test_a_program_without_a_configuration_is_infeasible(name: str) -> None:
    program = build_configuration_program(random_table(3), 1.0)
    found = solve_linear(program.model, name, time_limit_s=60)
    assert found == LinearSolution(Termination.INFEASIBLE, None, None)


@pytest.fixture(scope="module")
def hard() -> tuple[ConfigurationProgram, float]:
    """A program that takes every backend seconds, and its optimum."""
    table = random_table(5, (3, 2, 2), 24)
    best = solve_relaxed(table, cutoff_s=CUTOFF_S)
    return build_configuration_program(table, 1.3 * best.value_s), best.value_s


@pytest.mark.dist
@pytest.mark.parametrize("name", EVERY)
def test_a_time_limit_is_neither_optimal_nor_infeasible(
    name: str, hard: tuple[ConfigurationProgram, float]
) -> None:
    # Case 43.
    program, least_s = hard
    begun = time.monotonic()
    found = solve_linear(program.model, name, time_limit_s=1.2)
    assert time.monotonic() - begun < 1.2 + 5.0 + 2.0
    assert found.termination in (Termination.UNKNOWN, Termination.FEASIBLE)
    assert (found.values is None) == (found.termination is Termination.UNKNOWN)
    if found.values is not None:
        value_s = program.table.value_s(program.configuration(found.values))
        assert value_s >= least_s * (1 - 1e-6)
    if found.bound is not None:
        assert math.isfinite(found.bound)
        assert found.bound <= least_s


@pytest.mark.dist
@pytest.mark.parametrize("name", EVERY)
def test_a_start_is_kept_when_there_is_no_time(name: str) -> None:
    table = random_table(3, (3, 2), 6)
    best = solve_relaxed(table, cutoff_s=CUTOFF_S)
    assert best.configuration is not None
    program = build_configuration_program(table, 1.3 * best.value_s)
    start = program.values(best.configuration)
    found = solve_linear(program.model, name, time_limit_s=0.0, start=start)
    assert found.termination is not Termination.UNKNOWN
    assert found.values is not None
    assert program.model.objective_value(found.values) == pytest.approx(best.value_s, rel=1e-6)


@pytest.mark.dist
@pytest.mark.parametrize("name", FLOATING)
def test_unbounded_is_not_infeasible(name: str) -> None:
    found = solve_linear(one_row(0.0, math.inf, 3.0), name, time_limit_s=30)
    assert found == LinearSolution(Termination.UNBOUNDED, None, None)


@pytest.mark.dist
@pytest.mark.parametrize("name", FLOATING)
def test_infeasible_is_not_unbounded(name: str) -> None:
    model = one_row(0.0, math.inf, 3.0)
    model.add_row("most", [(model.variables[0], 1.0), (model.variables[1], 1.0)], "<=", 2.0)
    found = solve_linear(model, name, time_limit_s=30)
    assert found == LinearSolution(Termination.INFEASIBLE, None, None)


@pytest.mark.dist
@pytest.mark.parametrize("name", COUNTING)
def test_counting_backends_name_a_variable_without_bounds(name: str) -> None:
    with pytest.raises(BackendError, match="amount"):
        solve_linear(one_row(0.0, math.inf, 3.0), name, time_limit_s=30)


@pytest.mark.dist
@pytest.mark.parametrize("name", EVERY)
def test_bounds_near_1e14_are_solved_or_named(name: str) -> None:
    # Case 40.
    model = LinearModel("wide")
    memory = model.add_variable("memory_of_stage_2", 0, 1e14)
    model.add_row("least", [(memory, 1.0)], ">=", 80e9)
    model.minimise([(memory, 1.0)])
    if name in COUNTING:
        with pytest.raises(BackendError, match="memory_of_stage_2"):
            solve_linear(model, name, time_limit_s=30)
        return
    found = solve_linear(model, name, time_limit_s=30)
    assert found.values == (80e9,)


@pytest.mark.dist
@pytest.mark.parametrize("name", EVERY)
def test_memory_in_bytes(name: str) -> None:
    # Case 39: coefficients near 3e9.
    model = LinearModel("bytes")
    weights = [3e9 + 7e7 * idx for idx in range(8)]
    picks = [model.add_variable(f"pick[{idx}]", 0, 1) for idx in range(8)]
    model.add_row("pick_three", [(pick, 1.0) for pick in picks], ">=", 3)
    # The fewest bytes, then a limit some hundred bytes below them.
    least = sum(weights[:3])
    model.add_row("memory", list(zip(picks, weights, strict=True)), "<=", least)
    model.minimise([(pick, 8.0 - idx) for idx, pick in enumerate(picks)])
    found = solve_linear(model, name, time_limit_s=30)
    assert found.termination is Termination.OPTIMAL
    assert found.values == (1, 1, 1, 0, 0, 0, 0, 0)
    model.add_row("less", list(zip(picks, weights, strict=True)), "<=", least * (1 - 1e-7))
    found = solve_linear(model, name, time_limit_s=30)
    assert found.termination is Termination.INFEASIBLE


@pytest.mark.dist
@pytest.mark.parametrize("name", EVERY)
def test_folders_with_a_space_and_an_accent_and_nothing_printed(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    # Case 44, and what libraries print does not reach us.
    folder = tmp_path / "plan é x"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr("tempfile.tempdir", None)
    assert solve_linear(random_model(2), name, time_limit_s=30).values is not None
    assert list(folder.iterdir()) == []
    assert capfd.readouterr() == ("", "")


@pytest.mark.dist
def test_two_copies_of_highs_never_meet() -> None:
    for name in ("highs", "mathopt-highs", "highs"):
        assert solve_linear(random_model(2), name, time_limit_s=30).values is not None


@pytest.mark.dist
@pytest.mark.parametrize("name", ["cbc", "highs", "mathopt-gscip"])
def test_the_same_seed_gives_the_same_solution(name: str) -> None:
    program = build_configuration_program(random_table(4, (3, 2), 6), CUTOFF_S)
    first, second = (solve_linear(program.model, name, time_limit_s=60, seed=7) for _ in range(2))
    assert first == second


@pytest.mark.parametrize("says", [Termination.INFEASIBLE, Termination.UNKNOWN])
def test_infeasible_from_cbc_is_confirmed(
    says: Termination, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # Case 41: whatever is said of a model that has a solution.
    def wrong(*_: object, **__: object) -> LinearSolution:
        return LinearSolution(says, None, None)

    monkeypatch.setitem(BACKENDS, "cbc", replace(BACKENDS["cbc"], solve_here=wrong, most_here=10))
    found = solve_linear(random_model(2), "cbc", time_limit_s=30)
    if says is Termination.UNKNOWN:
        assert found.termination is Termination.UNKNOWN
        return
    assert found.termination is Termination.OPTIMAL
    assert "cbc calls a model infeasible that highs solves" in caplog.text
    in_no_time = solve_linear(random_model(2), "cbc", time_limit_s=0.0)
    assert in_no_time == LinearSolution(Termination.UNKNOWN, None, None)


def test_unbounded_with_bounds_everywhere_is_a_contradiction(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def wrong(model: LinearModel, **_: object) -> LinearSolution:
        if model.objective:
            return LinearSolution(Termination.UNBOUNDED, None, None)
        return LinearSolution(Termination.OPTIMAL, (5.0, 0.0), None)

    monkeypatch.setitem(
        BACKENDS, "highs", replace(BACKENDS["highs"], solve_here=wrong, most_here=10)
    )
    with pytest.raises(BackendError, match="all have bounds"):
        solve_linear(one_row(0.0, 9.0, 3.0), "highs", time_limit_s=30)


def test_a_row_without_terms_that_is_false_is_infeasible() -> None:
    model = one_row(0.0, 9.0, 3.0)
    model.add_row("nothing", [], ">=", 1.0)
    assert solve_linear(model, time_limit_s=30).termination is Termination.INFEASIBLE


def test_an_unknown_name_lists_the_known() -> None:
    with pytest.raises(InstanceError, match="mathopt-gscip"):
        solve_linear(random_model(0), "abacus", time_limit_s=1)


@pytest.mark.parametrize(
    ("name", "words"),
    [("gurobi", "gurobipy"), ("cplex", "CPLEX"), ("xpress", "Xpress"), ("highs", "highspy")],
)
def test_a_missing_backend_says_what_to_install(
    name: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hexisolve.solvers.backends.find_spec", lambda module: None)
    monkeypatch.setattr("hexisolve.solvers.backends.shutil.which", lambda program: None)
    assert available_backends() == ()
    with pytest.raises(BackendUnavailableError, match=words):
        require_backend(name)


@pytest.mark.parametrize(("name", "program"), [("gurobi", "gurobi_cl"), ("cplex", "cplex")])
def test_a_commercial_solver_is_found_when_installed(
    name: str, program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / program
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert name in available_backends()
