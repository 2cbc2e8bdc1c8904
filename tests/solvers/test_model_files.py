"""MPS and LP files: nothing is lost on the way, and other readers find the same optimum."""

from __future__ import annotations

import math
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from hexisolve.errors import BackendError, InstanceError
from hexisolve.formulation.configuration_program import build_configuration_program
from hexisolve.formulation.linear_model import LinearModel
from hexisolve.solvers.backends import solve_linear
from hexisolve.solvers.dynamic_program import solve_relaxed
from hexisolve.solvers.model_documents import model_document, model_from_document
from hexisolve.solvers.model_files import read_model, write_model
from hexisolve.solvers.model_text import plain_names
from tests.solvers.random_models import least_objective, random_model
from tests.solvers.random_tables import random_table

pytestmark = pytest.mark.dist

SUFFIXES = (".mps", ".lp")


def by_name(model: LinearModel) -> Mapping[str, object]:
    """What a model says, whatever the order."""
    names = plain_names(variable.name for variable in model.variables)
    rows = zip(plain_names(row.name for row in model.rows), model.rows, strict=True)
    return {
        "objective": {names[i]: f for i, f in model.objective.items() if f},
        "variables": {
            name: (v.lower, v.upper, v.is_integer)
            for name, v in zip(names, model.variables, strict=True)
        },
        "rows": {
            name: ({names[i]: f for i, f in row.terms.items()}, row.sense, row.right)
            for name, row in rows
            if row.terms
        },
    }


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("seed", [0, 1, 5, 8])
def test_written_and_read_again_it_is_the_same(suffix: str, seed: int, tmp_path: Path) -> None:
    model = random_model(seed)
    path = tmp_path / f"some model é{suffix}"
    write_model(model, path)
    assert by_name(read_model(path)) == by_name(model)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_the_same_optimum_after_writing_and_reading(suffix: str, tmp_path: Path) -> None:
    table = random_table(3, (3, 2), 6)
    expected = solve_relaxed(table, cutoff_s=100.0)
    path = tmp_path / f"program{suffix}"
    write_model(build_configuration_program(table, 100.0).model, path)
    again = read_model(path)
    for name in ("highs", "cp-sat"):
        found = solve_linear(again, name, time_limit_s=60)
        assert found.values is not None
        assert again.objective_value(found.values) == pytest.approx(expected.value_s, rel=1e-6)


def value_by_cbc(path: Path) -> float | None:
    """The optimum that CBC finds when it reads the file itself; None when there is none."""
    import pulp

    done = subprocess.run(
        [pulp.PULP_CBC_CMD().path, path.name, "-preprocess", "off", "-solve"],
        cwd=path.parent, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    value = re.search(r"^Objective value:\s+(\S+)", done.stdout, re.MULTILINE)
    return float(value[1]) if value and "Optimal solution found" in done.stdout else None


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_cbc_reads_the_file_itself(suffix: str, tmp_path: Path) -> None:
    values = []
    for seed in (2, 5, 8, 9):
        model = random_model(seed)
        write_model(model, tmp_path / f"model{suffix}")
        values.append(value_by_cbc(tmp_path / f"model{suffix}"))
        least = least_objective(model)
        if least is None:
            assert values[-1] is None
        else:
            assert values[-1] == pytest.approx(least, rel=1e-6, abs=1e-6)
    assert sum(value is not None for value in values) >= 2


def test_names_that_the_formats_do_not_take(tmp_path: Path) -> None:
    model = LinearModel("names")
    odd = ["x[0,1]", "x(0 1)", "e7", "3d", "ü", "x_0_1", "free", "a" * 300]
    variables = [model.add_variable(name, 0, 1) for name in odd]
    model.add_row("all of [them]", [(variable, 1.0) for variable in variables], ">=", 3)
    model.minimise([(variable, idx + 1.0) for idx, variable in enumerate(variables)])
    for suffix in SUFFIXES:
        write_model(model, tmp_path / f"names{suffix}")
        again = read_model(tmp_path / f"names{suffix}")
        assert by_name(again) == by_name(model)
        found = solve_linear(again, "highs", time_limit_s=10)
        assert found.values is not None
        assert again.objective_value(found.values) == 6


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_bounds_of_every_kind(suffix: str, tmp_path: Path) -> None:
    # Readers differ in what they take for granted: integers up to 1, an upper bound below 0.
    model = LinearModel("bounds")
    pairs = [(-7.5, -2.5), (-math.inf, -3), (2, math.inf), (-math.inf, math.inf), (0, 1), (4, 4)]
    for number, (lower, upper) in enumerate(pairs):
        for kind in (True, False):
            one = model.add_variable(f"v{number}{kind}", lower, upper, kind)
            model.add_row(f"least{number}{kind}", [(one, 1.0)], ">=", -9.25)
    model.minimise([(variable, 1.0) for variable in model.variables])
    write_model(model, tmp_path / f"model{suffix}")
    again = read_model(tmp_path / f"model{suffix}")
    # HiGHS brings the bounds of integers to whole numbers.
    for ours, read in zip(model.variables, again.variables, strict=True):
        assert read.is_integer == ours.is_integer
        within = 1.0 if ours.is_integer else 0.0
        assert read.lower == ours.lower or 0 <= read.lower - ours.lower < within
        assert read.upper == ours.upper or 0 <= ours.upper - read.upper < within
    assert value_by_cbc(tmp_path / f"model{suffix}") == pytest.approx(
        2 * (2 + 4) + (-7 - 7.5) + 2 * (-9 - 9.25)
    )


def test_documents_keep_every_digit() -> None:
    model = build_configuration_program(random_table(3), 100.0).model
    assert model_from_document(model_document(model)) == model


def test_files_that_are_no_models(tmp_path: Path) -> None:
    with pytest.raises(InstanceError, match=r"\.mps or \.lp"):
        write_model(random_model(0), tmp_path / "model.txt")
    with pytest.raises(InstanceError, match="cannot be read"):
        read_model(tmp_path / "missing.mps")
    with pytest.raises(InstanceError, match="cannot be written"):
        write_model(random_model(0), tmp_path / "no" / "folder.lp")
    (tmp_path / "broken.mps").write_text("ROWS\n what\n")
    with pytest.raises(BackendError, match="does not read"):
        read_model(tmp_path / "broken.mps")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("max\n obj: x\nst\n c: x <= 2\nend\n", "minimum"),
        ("min\n obj: x + 3\nst\n c: x >= 2\nend\n", "constant"),
        ("min\n obj: x\nst\n c: x >= 2\nbounds\n x <= 9\nsemi\n x\nend\n", "neither"),
    ],
)
def test_what_our_models_cannot_say_is_refused(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "other.lp"
    path.write_text(text)
    with pytest.raises(BackendError, match=words):
        read_model(path)
