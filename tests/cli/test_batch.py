"""`batch`: one batch of sequences on the layout of a plan."""

from __future__ import annotations

from pathlib import Path

import pytest

from hexisolve.plan.check import check_plan
from hexisolve.plan.io import read_plan, write_plan
from tests.plans import two_stages


@pytest.fixture
def lengths_path(tmp_path: Path) -> Path:
    path = tmp_path / "lengths.txt"
    path.write_text("900 # the long one\n40\n7\n1\n300\n12\n")
    return path


def test_the_answer_has_bounds_and_a_plan_that_other_commands_read(
    shell, plan_path: Path, lengths_path: Path, tmp_path: Path
) -> None:
    output = tmp_path / "batch plan.json"
    outcome = shell("batch", plan_path, "--lengths", lengths_path, "-o", output, "--json")
    assert outcome.code == 0
    document = outcome.json
    assert document["num_sequences"] == 6
    assert document["num_tokens"] == 1260
    assert document["bound_s"] <= document["step_time_s"]
    assert document["fixed_bound_s"] <= document["step_time_s"] * (1 + 1e-9)
    assert document["gap"] < 1.0
    file = read_plan(output)
    assert file.instance.workload.lengths == (900, 40, 7, 1, 300, 12)
    assert check_plan(file.instance, file.plan) == []
    assert shell("simulate", output).code == 0
    assert shell("check", output).code == 0


def test_people_read_chunks_and_recompute(shell, plan_path: Path, lengths_path: Path) -> None:
    text = shell("batch", plan_path, "--lengths", lengths_path).out
    assert "6 sequences of 1260 tokens" in text
    assert "layers by policy" in text
    assert "chunks, in order of their forwards" in text


def test_context_cuts_sequences_off(shell, plan_path: Path, lengths_path: Path) -> None:
    arguments = ("batch", plan_path, "--lengths", lengths_path, "--context", 100, "--json")
    assert shell(*arguments).json["num_tokens"] == 100 + 40 + 7 + 1 + 100 + 12


@pytest.mark.parametrize("text", ["", "0\n", "-5\n", "12\nmany\n"])
def test_lengths_that_are_none_are_refused(
    shell, plan_path: Path, tmp_path: Path, text: str
) -> None:
    path = tmp_path / "bad.txt"
    path.write_text(text)
    outcome = shell("batch", plan_path, "--lengths", path)
    assert outcome.code == 2
    assert "bad.txt" in outcome.err


def test_a_sequence_that_cannot_fit_is_named(shell, plan_path: Path, tmp_path: Path) -> None:
    path = tmp_path / "long.txt"
    path.write_text("5\n999000000\n")
    outcome = shell("batch", plan_path, "--lengths", path)
    assert outcome.code == 1
    assert "sequence 1 of 999000000 tokens does not fit" in outcome.err


def test_a_plan_of_another_instance_is_refused(shell, tmp_path: Path, lengths_path: Path) -> None:
    instance, plan = two_stages()
    path = tmp_path / "plan.json"
    write_plan(path, instance, plan)
    outcome = shell("batch", "demo", path, "--lengths", lengths_path)
    assert outcome.code == 2
    assert "another instance" in outcome.err


def test_many_sequences_are_planned_and_said(shell, plan_path: Path, tmp_path: Path) -> None:
    path = tmp_path / "many.txt"
    path.write_text("\n".join(str(1 + idx % 60) for idx in range(3_000)))
    outcome = shell("batch", plan_path, "--lengths", path, "--json")
    assert outcome.code == 0
    assert outcome.json["num_sequences"] == 3_000
