"""Whatever a person gets wrong: one clear message, all problems at once, never a traceback."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import CLUSTER

WORKLOAD = ["--context", "256", "--batch", "2", "--block-tokens", "32", "--time-limit", "5"]


@pytest.fixture
def solve(shell, inputs: Path) -> Callable[..., object]:
    """`solve` with the good inputs, unless replaced."""

    def call(*more: object, cluster: object = None, model: object = None):
        cluster = cluster or inputs / "cluster.yaml"
        model = model or inputs / "model.json"
        return shell("solve", "--cluster", cluster, "--model", model, *WORKLOAD, *more)

    return call


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("hosts: [1, 2\n", ["line", "not valid YAML"]),
        ("", ["empty"]),
        ("- a\n- b\n", ["mapping"]),
        (CLUSTER + "speed: fast\n", ["speed", "unknown key"]),
        (CLUSTER.replace("450 GB/s", "450"), ["bandwidth", "450", "unit"]),
        (CLUSTER.replace("450 GB/s", "450 GBps/s"), ["bandwidth", "GBps/s", "unit"]),
        (CLUSTER.replace("450 GB/s", "-450 GB/s"), ["bandwidth", "-450 GB/s", "range"]),
        (CLUSTER.replace("450 GB/s", "1000000000 GB/s"), ["bandwidth", "1000000000 GB/s"]),
        (CLUSTER.replace("count: 2", "count: 0"), ["count", "0"]),
        (CLUSTER.replace("count: 2", "count: -3"), ["count", "-3"]),
        (CLUSTER.replace("count: 2", "count: many"), ["count", "many"]),
        (CLUSTER.replace("H100-SXM-80GB", "H900"), ["H900", "use one of"]),
        (CLUSTER + 'overrides: {"box[7].device[0]": {memory: 1 GiB}}\n', ["box[7].device[0]"]),
        (CLUSTER + "hosts: {}\n", ["hosts", "twice"]),
        ("schema_version: 1\nname: none\nhosts: {}\n", ["device"]),
        ("a: !!python/object/apply:os.system [echo owned]\n", ["not valid YAML"]),
    ],
    ids=["broken", "empty", "list", "unknown-key", "no-unit", "wrong-unit", "negative", "too-fast",
         "no-devices", "negative-count", "text-count", "unknown-type", "unknown-device", "twice",
         "no-hosts", "unsafe-yaml"],
)  # fmt: skip
def test_bad_clusters(solve, tmp_path: Path, text: str, words: list[str]) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    output = tmp_path / "plan.json"
    outcome = solve("--output", output, cluster=path)
    assert outcome.code == 2
    assert outcome.out == ""
    for word in [*words, str(path)]:
        assert word in outcome.err
    assert not output.exists()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"model_type": "llama", ', ["line 1", "not valid JSON"]),
        ("[]", ["object"]),
        ('{"model_type": "llama"}', ["hidden_size"]),
        ('{"model_type": "alien", "hidden_size": 8}', ["alien"]),
    ],
    ids=["broken", "list", "missing", "unknown-family"],
)
def test_bad_models(solve, tmp_path: Path, text: str, words: list[str]) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text)
    outcome = solve(model=path)
    assert outcome.code == 2
    assert outcome.out == ""
    for word in [*words, str(path)]:
        assert word in outcome.err


def test_files_that_are_none(solve, shell, tmp_path: Path) -> None:
    missing, folder, binary = tmp_path / "no.yaml", tmp_path, tmp_path / "b.yaml"
    binary.write_bytes(b"\x80\x81\xff\x00")
    for path, word in ((missing, "does not exist"), (folder, "folder"), (binary, "UTF-8")):
        outcome = solve(cluster=path)
        assert outcome.code == 2
        assert word in outcome.err
        assert str(path) in outcome.err
        for command in ("check", "run", "verify", "simulate", "show"):
            assert shell(command, path).code == 2


def test_problems_of_every_part_are_told_at_once(shell, inputs: Path) -> None:
    (inputs / "bad.yaml").write_text(CLUSTER.replace("450 GB/s", "450"))
    (inputs / "bad.json").write_text('{"model_type": "llama"}')
    (inputs / "lengths.txt").write_text("12\nmany\n-3\n")
    outcome = shell(
        "solve", "--cluster", inputs / "bad.yaml", "--model", inputs / "bad.json",
        "--lengths", inputs / "lengths.txt", "--cost", "link_efficiency=2",
        "--cost", "colour=1",
    )  # fmt: skip
    assert outcome.code == 2
    for word in ("bandwidth", "hidden_size", "line 2", "many", "line 3", "-3", "colour"):
        assert word in outcome.err


def test_nothing_given_names_every_missing_option(shell) -> None:
    outcome = shell("solve")
    assert outcome.code == 2
    for option in ("--cluster", "--model", "--context", "--batch", "INSTANCE"):
        assert option in outcome.err


def test_an_instance_file_with_several_faults(shell, inputs: Path) -> None:
    path = inputs / "bad.yaml"
    path.write_text(
        "cluster: cluster.yaml\nmodel: model.json\ncolour: red\n"
        "workload: {context_tokens: -4, batch_sequences: 2, zero: [7], dtype: int4}\n"
    )
    outcome = shell("solve", path)
    assert outcome.code == 2
    for word in ("colour", "context_tokens", "zero", "dtype", str(path)):
        assert word in outcome.err


def test_a_dtype_the_devices_lack_is_refused(solve, tmp_path: Path) -> None:
    path = tmp_path / "old.yaml"
    path.write_text(CLUSTER.replace("H100-SXM-80GB", "V100-SXM2-32GB"))
    outcome = solve(cluster=path)
    assert outcome.code == 2
    assert "bf16" in outcome.err
    assert "fp16" in outcome.err


def test_a_truncated_plan(shell, plan_path: Path) -> None:
    text = plan_path.read_text()
    plan_path.write_text(text[: len(text) // 2])
    for command in ("check", "show", "simulate", "verify", "run"):
        outcome = shell(command, plan_path)
        assert outcome.code == 2, command
        assert outcome.out == ""
        assert str(plan_path) in outcome.err


def test_a_plan_that_lacks_parts_names_them_all(shell, plan_path: Path) -> None:
    document = json.loads(plan_path.read_text())
    del document["instance"]["model"]
    del document["plan"]["batch"]
    plan_path.write_text(json.dumps(document))
    outcome = shell("check", plan_path)
    assert outcome.code == 2
    assert "instance.model" in outcome.err
    assert "batch" in outcome.err


@pytest.mark.parametrize("where", ["no/such/folder/plan.json", "."])
def test_output_that_cannot_be_written_is_refused_before_the_solve(
    solve, tmp_path: Path, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import hexisolve.commands.solve as command

    def never(*_: object) -> None:
        raise AssertionError("the solve started")

    monkeypatch.setattr(command, "search", never)
    outcome = solve("--output", tmp_path / where)
    assert outcome.code == 2
    assert "output" in outcome.err


def test_lengths_files_that_are_none(shell, inputs: Path) -> None:
    for text in ("", "\n# nothing\n", "1.5\n", "9" * 5000):
        (inputs / "lengths.txt").write_text(text)
        outcome = shell("solve", inputs / "instance.yaml", "--lengths", inputs / "lengths.txt")
        assert outcome.code == 2
        assert "lengths.txt" in outcome.err
    outcome = shell("solve", inputs / "instance.yaml", "--lengths", inputs)
    assert outcome.code == 2
    assert "folder" in outcome.err


def test_an_output_that_is_a_pipe_is_not_replaced(solve, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    outcome = solve("--output", pipe)
    assert outcome.code == 2
    assert str(pipe) in outcome.err
    assert pipe.is_fifo()


@pytest.mark.parametrize(
    "options",
    [
        ["--context", "1" + "0" * 30],
        ["--block-tokens", "1" + "0" * 20],
        ["--batch", "1" + "0" * 12],
        ["--seed", "2147483648"],
        ["--time-limit", "1e30"],
        ["--cost", "optimizer_bytes=1e400"],
        ["--cost", "launch_overhead_s=1e308"],
    ],
    ids=lambda options: "".join(options[:2])[2:24],
)
def test_numbers_beyond_reason_are_refused(solve, options: list[str]) -> None:
    outcome = solve(*options)
    assert outcome.code == 2
    assert outcome.out == ""


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("big.json", '{"plan": ' + "9" * 5000 + "}"),
        ("bool.yaml", 'x: !!bool "foo"\n'),
        ("int.yaml", 'x: !!int ""\n'),
        ("time.yaml", 'x: !!timestamp "foo"\n'),
    ],
)
def test_values_no_reader_takes(shell, tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    outcome = shell("show", path)
    assert outcome.code == 2
    assert str(path) in outcome.err


@pytest.mark.parametrize(
    "command",
    [["check"], ["show"], ["solve"], ["solve", "demo", "--cluster"], ["solve", "demo", "--model"]],
    ids=" ".join,
)
@pytest.mark.parametrize("suffix", ["", ".json"])
def test_a_name_that_is_too_long(shell, command: list[str], suffix: str) -> None:
    outcome = shell(*command, "x" * 5000 + suffix)
    assert outcome.code == 2
    assert "name too long" in outcome.err


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    """A named pipe that nobody writes to: whoever opens it waits for ever."""
    path = tmp_path / "pipe.json"
    os.mkfifo(path)
    return path


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "command",
    [
        ["show", "PIPE"],
        *(["show", "--as", kind, "PIPE"] for kind in ("cluster", "model", "instance", "plan")),
        ["solve", "PIPE"],
        ["solve", "--cluster", "PIPE", "--model", "MODEL", "--context", "256", "--batch", "2"],
        ["solve", "--cluster", "CLUSTER", "--model", "PIPE", "--context", "256", "--batch", "2"],
        ["solve", "INSTANCE", "--lengths", "PIPE"],
        ["solve", "INSTANCE", "--start", "PIPE"],
        ["compare", "PIPE"],
        ["check", "PIPE"],
        ["check", "PIPE", "PLAN"],
        ["simulate", "PIPE"],
        ["verify", "PIPE"],
        ["run", "PIPE"],
        ["run", "PLAN", "--data", "PIPE"],
    ],
    ids=" ".join,
)
def test_an_input_that_is_a_pipe_is_refused_at_once(
    shell, inputs: Path, plan_path: Path, pipe: Path, command: list[str]
) -> None:
    named = {"PIPE": pipe, "PLAN": plan_path, "CLUSTER": inputs / "cluster.yaml",
             "MODEL": inputs / "model.json", "INSTANCE": inputs / "instance.yaml"}  # fmt: skip
    outcome = shell(*(named.get(word, word) for word in command))
    assert outcome.code == 2
    assert outcome.out == ""
    (line,) = outcome.err.splitlines()
    assert str(pipe) in line


def test_a_device_is_no_input(shell) -> None:
    for command in ("show", "check", "solve"):
        outcome = shell(command, "/dev/null")
        assert outcome.code == 2
        (line,) = outcome.err.splitlines()
        assert "/dev/null" in line
        assert "device" in line


@pytest.mark.parametrize(
    "command",
    [
        ["run", "PLAN", "--data", ""],
        ["check", ""],
        ["check", "", "PLAN"],
        ["show", ""],
        ["verify", ""],
        ["solve", ""],
        ["solve", "INSTANCE", "--cluster", ""],
        ["solve", "INSTANCE", "--start", ""],
        ["solve", "INSTANCE", "--lengths", ""],
        ["solve", "INSTANCE", "--output", ""],
        ["simulate", "PLAN", "--trace", ""],
    ],
    ids=" ".join,
)
def test_an_empty_name_is_refused(shell, inputs: Path, plan_path: Path, command: list[str]) -> None:
    named = {"PLAN": plan_path, "INSTANCE": inputs / "instance.yaml"}
    outcome = shell(*(named.get(word, word) for word in command))
    assert outcome.code == 2
    assert outcome.out == ""
    assert "empty" in outcome.err


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["check", "demo"], ["demo", "bundled instance", "PLAN"]),
        (["verify", "mixed-32"], ["mixed-32", "bundled cluster", "PLAN"]),
        (["run", "llama-2-13b"], ["llama-2-13b", "bundled model", "PLAN"]),
        (["check", "INSTANCE"], ["instance.yaml", "an instance", "PLAN"]),
        (["check", "PLAN", "PLAN"], ["plan.json", "a plan", "INSTANCE", "check PLAN"]),
        (["check", "PLAN", "INSTANCE"], ["plan.json", "a plan", "INSTANCE"]),
        (["simulate", "INSTANCE", "CLUSTER"], ["cluster.yaml", "a cluster", "PLAN"]),
        (["solve", "PLAN"], ["plan.json", "a plan", "INSTANCE"]),
        (["solve", "CLUSTER"], ["cluster.yaml", "a cluster", "INSTANCE", "--cluster"]),
        (["solve", "mixed-32"], ["mixed-32", "bundled cluster", "INSTANCE", "--cluster"]),
        (["compare", "MODEL"], ["model.json", "a model", "INSTANCE", "--model"]),
        (["solve", "INSTANCE", "--start", "INSTANCE"], ["instance.yaml", "an instance", "PLAN"]),
    ],
    ids=lambda value: " ".join(value) if len(value) < 5 else "",
)
def test_one_kind_of_file_for_another_is_told(
    shell, inputs: Path, plan_path: Path, command: list[str], words: list[str]
) -> None:
    named = {"PLAN": plan_path, "CLUSTER": inputs / "cluster.yaml",
             "MODEL": inputs / "model.json", "INSTANCE": inputs / "instance.yaml"}  # fmt: skip
    outcome = shell(*(named.get(word, word) for word in command))
    assert outcome.code == 2
    assert outcome.out == ""
    (line,) = outcome.err.splitlines()
    for word in words:
        assert word in line
