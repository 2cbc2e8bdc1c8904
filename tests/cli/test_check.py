"""`check`: violations in words, exit 3; and plans that do not belong to the instance."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.plans import two_stages


@pytest.fixture
def edit(plan_path: Path) -> Callable[[Callable[[Any], None]], Path]:
    """Change the plan file's document in place."""

    def change(edit_document: Callable[[Any], None]) -> Path:
        document = json.loads(plan_path.read_text())
        edit_document(document)
        plan_path.write_text(json.dumps(document))
        return plan_path

    return change


def _rank(document: Any, stage: int = 0) -> Any:
    return document["plan"]["layout"]["replicas"][0]["stages"][stage]["ring"][0]["ranks"][0]


def test_a_legal_plan_is_0(shell, plan_path: Path) -> None:
    outcome = shell("check", plan_path, "--json")
    assert outcome.code == 0
    assert outcome.json == {"valid": True, "violations": []}


def test_a_device_the_cluster_does_not_have_breaks_a_rule(shell, edit) -> None:
    path = edit(lambda document: _rank(document).update(device="h900-7"))
    outcome = shell("check", path, "--json")
    assert outcome.code == 3
    assert outcome.json["valid"] is False
    assert [entry["rule"] for entry in outcome.json["violations"]] == ["devices"]
    assert "h900-7" in outcome.json["violations"][0]["message"]


def test_all_broken_rules_are_told_at_once(shell, edit) -> None:
    def break_two(document: Any) -> None:
        _rank(document).update(device="h900-7", q_heads=[0, 3])

    outcome = shell("check", edit(break_two))
    assert outcome.code == 3
    assert "h900-7" in outcome.out
    assert "heads" in outcome.out


@pytest.mark.parametrize("command", ["simulate", "verify", "run"])
def test_other_commands_refuse_a_plan_that_breaks_a_rule(shell, edit, command: str) -> None:
    path = edit(lambda document: _rank(document).update(device="h900-7"))
    outcome = shell(command, path)
    assert outcome.code == 3
    assert outcome.out == ""
    assert "h900-7" in outcome.err


def test_show_tells_what_a_broken_plan_breaks(shell, edit) -> None:
    path = edit(lambda document: _rank(document).update(device="h900-7"))
    outcome = shell("show", path, "--json")
    assert outcome.code == 0
    assert len(outcome.json["violations"]) == 1
    assert outcome.json["price"] is None


def _instance_file(folder: Path, **workload: Any) -> Path:
    instance, _ = two_stages()
    document = instance.to_dict()
    document["workload"] |= workload
    path = folder / "instance.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


def test_the_instance_of_the_plan_is_accepted(shell, plan_path: Path, tmp_path: Path) -> None:
    assert shell("check", _instance_file(tmp_path), plan_path).code == 0


def test_a_plan_for_another_instance_is_bad_input(shell, plan_path: Path, tmp_path: Path) -> None:
    other = _instance_file(tmp_path, dtype="fp32", block_tokens=7)
    for command in ("check", "simulate"):
        outcome = shell(command, other, plan_path)
        assert outcome.code == 2
        assert outcome.out == ""
        # Every difference, the file and the way out.
        for word in ("workload.dtype", "workload.block_tokens", str(plan_path), "solve"):
            assert word in outcome.err
