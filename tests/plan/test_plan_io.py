"""Plan files: write-read-write is identical, and nothing broken is taken."""

from __future__ import annotations

import json
import os
from dataclasses import replace

import pytest
from plan_examples import four_device_instance, two_stage_plan

from hexisolve.errors import InstanceError, PlanError
from hexisolve.plan.evaluate import evaluate
from hexisolve.plan.io import plan_from_dict, plan_to_dict, read_plan, write_plan
from hexisolve.plan.plan import Slice


@pytest.fixture
def plan_file(tmp_path):  # type: ignore[no-untyped-def]
    path = tmp_path / "plan.json"
    write_plan(path, four_device_instance(), two_stage_plan())
    return path


def test_write_read_write_is_identical(plan_file):  # type: ignore[no-untyped-def]
    read = read_plan(plan_file)
    assert read.plan == two_stage_plan()
    assert read.instance.digest == four_device_instance().digest == read.digest
    assert read.price_s == evaluate(four_device_instance(), two_stage_plan()).step_time_s
    assert read.warnings == ()
    again = plan_file.with_name("again.json")
    write_plan(again, read.instance, read.plan)
    assert again.read_bytes() == plan_file.read_bytes()


def test_explicit_pieces_and_offload_survive():  # type: ignore[no-untyped-def]
    plan = two_stage_plan()
    pipeline = plan.batch.replicas[0].pipelines[0]
    pieces = (((Slice(0, 0, 700),), (Slice(0, 700, 1000),)), ((Slice(0, 0, 1000),), ()))
    chunks = (replace(pipeline.chunks[0], pieces=pieces), *pipeline.chunks[1:])
    pipeline = replace(pipeline, chunks=chunks, offload=((1, 0, 0, 0), (0, 0, 1, 0)))
    batch = replace(plan.batch.replicas[0], pipelines=(pipeline,))
    plan = replace(plan, batch=replace(plan.batch, replicas=(batch,)))
    assert plan_from_dict(json.loads(json.dumps(plan_to_dict(plan)))) == plan


def test_a_person_can_read_it(plan_file):  # type: ignore[no-untyped-def]
    lines = plan_file.read_text().splitlines()
    assert max(map(len, lines)) <= 110
    assert any('{"device": "d0", "tokens": 700, "q_heads": [0, 3]' in line for line in lines)


def test_a_plan_that_breaks_a_rule_is_not_written(tmp_path):  # type: ignore[no-untyped-def]
    plan = replace(two_stage_plan(), schema_version=2)
    with pytest.raises(PlanError, match="schema version 2"):
        write_plan(tmp_path / "plan.json", four_device_instance(), plan)
    assert list(tmp_path.iterdir()) == []


def test_an_unwritable_place_is_told_plainly(tmp_path):  # type: ignore[no-untyped-def]
    with pytest.raises(InstanceError, match="cannot be written"):
        write_plan(tmp_path / "no" / "plan.json", four_device_instance(), two_stage_plan())


def test_a_failed_write_leaves_the_old_file(plan_file, monkeypatch):  # type: ignore[no-untyped-def]
    before = plan_file.read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(InstanceError, match="No space left"):
        write_plan(plan_file, four_device_instance(), two_stage_plan())
    assert plan_file.read_bytes() == before
    assert [entry.name for entry in plan_file.parent.iterdir()] == ["plan.json"]


def test_any_truncation_is_one_clear_error(plan_file):  # type: ignore[no-untyped-def]
    whole = plan_file.read_text()
    for share in (0.0, 0.1, 0.5, 0.9, 0.99):
        plan_file.write_text(whole[: int(len(whole) * share)])
        with pytest.raises(InstanceError) as caught:
            read_plan(plan_file)
        assert str(plan_file) in str(caught.value)


def changed(plan_file, change):  # type: ignore[no-untyped-def]
    document = json.loads(plan_file.read_text())
    change(document)
    plan_file.write_text(json.dumps(document))
    return plan_file


def test_all_problems_are_told_at_once(plan_file):  # type: ignore[no-untyped-def]
    def spoil(document):  # type: ignore[no-untyped-def]
        stage = document["plan"]["layout"]["replicas"][0]["stages"][0]
        stage["ring"][0]["ranks"][0]["tokens"] = "many"
        stage["ring"][0]["ranks"][1]["q_heads"] = [3]
        stage["colour"] = "blue"
        del document["plan"]["batch"]
        document["instance"]["workload"]["dtype"] = "bf17"
        document["surprise"] = 1

    with pytest.raises(InstanceError) as caught:
        read_plan(changed(plan_file, spoil))
    fields = {problem.field for problem in caught.value.problems}
    assert {
        "plan.layout.replicas[0].stages[0].ring[0].ranks[0].tokens",
        "plan.layout.replicas[0].stages[0].ring[0].ranks[1].q_heads",
        "plan.layout.replicas[0].stages[0].colour",
        "plan.batch",
        "workload.dtype",
        "surprise",
    } <= fields
    assert all(problem.file == str(plan_file) for problem in caught.value.problems)


def test_a_newer_schema_says_update(plan_file):  # type: ignore[no-untyped-def]
    path = changed(plan_file, lambda document: document.update(schema_version=2, shape="new"))
    with pytest.raises(InstanceError, match=r"newer than this package.*update hexisolve") as caught:
        read_plan(path)
    assert len(caught.value.problems) == 1


@pytest.mark.parametrize("key", ["plan", "instance", "digest", "price_s", "schema_version"])
def test_a_missing_part_is_named(plan_file, key):  # type: ignore[no-untyped-def]
    with pytest.raises(InstanceError, match=key):
        read_plan(changed(plan_file, lambda document: document.pop(key)))


def test_a_changed_instance_and_price_warn(plan_file):  # type: ignore[no-untyped-def]
    def alter(document):  # type: ignore[no-untyped-def]
        document["instance"]["cost"]["link_efficiency"] = 0.5

    first, second = read_plan(changed(plan_file, alter)).warnings
    assert "digest differs" in first
    assert "priced at" in second
    assert len(read_plan(plan_file, reprice=False).warnings) == 1


def test_an_illegal_plan_is_read_and_left_to_the_checker(plan_file):  # type: ignore[no-untyped-def]
    def alter(document):  # type: ignore[no-untyped-def]
        document["plan"]["layout"]["replicas"][0]["stages"][0]["layers"] = [0, 2]

    assert read_plan(changed(plan_file, alter)).plan.layout.replicas[0].stages[0].num_layers == 2
