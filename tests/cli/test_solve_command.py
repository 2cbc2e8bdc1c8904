"""`solve` and `compare`: the answer, its bound, its reasons; and when there is none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hexisolve.plan.check import check_plan
from hexisolve.plan.evaluate import evaluate
from hexisolve.plan.io import plan_from_dict, read_plan
from tests.cli.conftest import CLUSTER, MODEL

REPOSITORY = Path(__file__).resolve().parents[2]
STATUSES = {"optimal", "feasible", "infeasible", "no_solution"}


@pytest.fixture
def answer(shell, inputs: Path) -> Callable[..., object]:
    """`solve --json` of the small instance."""

    def call(*more: object):
        return shell("solve", inputs / "instance.yaml", "--json", *more)

    return call


def test_solve_json_has_the_promised_keys(answer) -> None:
    outcome = answer()
    document = outcome.json
    assert outcome.code == 0
    assert document["status"] in ("optimal", "feasible")
    assert (document["limit"] is None) == (document["status"] == "optimal")
    assert document["bound_s"] <= document["objective_s"] * (1 + 1e-9)
    gap = (document["objective_s"] - document["bound_s"]) / document["objective_s"]
    assert document["gap"] == pytest.approx(max(gap, 0.0))
    assert document["wall_s"] > 0
    assert document["backend"]
    assert {"ring", "ulysses", "usp", "even"} <= document["baselines"].keys()
    for step_time_s in document["baselines"].values():
        assert step_time_s is None or step_time_s > 0


def test_the_plan_of_solve_json_is_legal_and_has_the_price(answer, inputs: Path) -> None:
    from hexisolve.data.instance_file import read_instance

    document = answer().json
    instance = read_instance(inputs / "instance.yaml")
    plan = plan_from_dict(document["plan"])
    assert check_plan(instance, plan) == []
    assert evaluate(instance, plan).step_time_s == pytest.approx(document["objective_s"])
    assert document["price"]["step_time_s"] == pytest.approx(document["objective_s"])


def test_solve_never_loses_to_a_baseline_it_could_have_chosen(shell, inputs: Path) -> None:
    document = shell("compare", inputs / "instance.yaml", "--json").json
    for entry in document["baselines"].values():
        if entry["one_replica"] and entry["step_time_s"] is not None:
            assert entry["step_time_s"] >= document["objective_s"] * (1 - 1e-9)
            assert entry["of_hexisolve"] >= 1 - 1e-9


def test_solve_for_people_says_why(shell, inputs: Path) -> None:
    text = shell("solve", inputs / "instance.yaml").out
    for word in ("bound", "gap", "tokens/s", "share of peak", "idle", "states",
                 "reserve", "recomputed", "ulysses"):  # fmt: skip
        assert word in text, word


def test_baselines_can_be_left_out(answer, shell, inputs: Path) -> None:
    assert answer("--no-baselines").json["baselines"] == {}
    assert "ulysses" not in shell("solve", inputs / "instance.yaml", "--no-baselines").out


def test_output_is_a_plan_file_that_the_other_commands_read(answer, shell, tmp_path: Path) -> None:
    output = tmp_path / "my plän.json"
    outcome = answer("--output", output)
    assert outcome.code == 0
    file = read_plan(output)
    assert file.price_s == pytest.approx(outcome.json["objective_s"])
    assert shell("check", output).code == 0
    assert shell("simulate", output).code == 0
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_options_replace_parts_of_an_instance_file(shell, inputs: Path, tmp_path: Path) -> None:
    output = tmp_path / "plan.json"
    outcome = shell(
        "solve", inputs / "instance.yaml", "--context", "128", "--zero", "1", "--dtype", "fp32",
        "--cost", "link_efficiency=0.5", "--stages", "2", "-o", output,
    )  # fmt: skip
    assert outcome.code == 0
    instance, plan = read_plan(output).instance, read_plan(output).plan
    assert instance.workload.context_tokens == 128
    assert instance.workload.batch_sequences == 2
    assert instance.workload.zero == (1,)
    assert instance.workload.dtype == "fp32"
    assert instance.cost.link_efficiency == 0.5
    assert len(plan.layout.replicas[0].stages) == 2


def test_a_lengths_file_replaces_context_and_batch(shell, inputs: Path, tmp_path: Path) -> None:
    (inputs / "lengths.txt").write_text("64\n256, 96 # two on a line\n\n32\n")
    output = tmp_path / "plan.json"
    options = ("--lengths", inputs / "lengths.txt", "-o", output)
    outcome = shell("solve", inputs / "instance.yaml", *options)
    assert outcome.code == 0
    assert read_plan(output).instance.workload.lengths == (64, 256, 96, 32)


def test_a_start_plan_is_accepted_and_one_for_nothing_is_not(
    answer, shell, inputs: Path, tmp_path: Path
) -> None:
    output = tmp_path / "plan.json"
    first = answer("--output", output).json
    again = answer("--start", output).json
    assert again["objective_s"] <= first["objective_s"] * (1 + 1e-9)
    output.write_text(output.read_text()[:200])
    outcome = answer("--start", output)
    assert outcome.code == 2
    assert str(output) in outcome.err


def test_a_start_plan_of_another_instance_is_refused_as_check_refuses_it(
    shell, inputs: Path, plan_path: Path
) -> None:
    instance = inputs / "instance.yaml"
    started = shell("solve", instance, "--start", plan_path)
    checked = shell("check", instance, plan_path)
    assert started.code == checked.code == 2
    assert started.out == checked.out == ""
    named = (str(instance), "the instance given")
    assert started.err.splitlines() == [line.replace(*named) for line in checked.err.splitlines()]


def test_a_start_plan_that_breaks_a_rule_is_rejected(
    answer, shell, inputs: Path, tmp_path: Path
) -> None:
    output = tmp_path / "plan.json"
    answer("--output", output)
    document = json.loads(output.read_text())
    document["plan"]["layout"]["replicas"][0]["stages"][0]["ring"][0]["ranks"][0]["device"] = "x"
    output.write_text(json.dumps(document))
    assert answer("--start", output).code == 3


def test_a_model_that_cannot_fit_is_exit_code_1_with_a_reason(
    shell, inputs: Path, tmp_path: Path
) -> None:
    (inputs / "small.yaml").write_text(
        CLUSTER
        + "overrides:\n"
        + "".join(f'  "box[0].device[{index}]": {{memory: 3 GiB}}\n' for index in range(2))
    )
    big = MODEL | {"hidden_size": 4096, "intermediate_size": 16384, "num_hidden_layers": 8}
    (inputs / "big.json").write_text(json.dumps(big))
    output = tmp_path / "plan.json"
    args = ("solve", inputs / "instance.yaml", "--cluster", inputs / "small.yaml", "--model",
            inputs / "big.json", "--output", output)  # fmt: skip
    outcome = shell(*args, "--json")
    assert outcome.code == 1
    document = outcome.json
    assert document["status"] == "infeasible"
    assert document["plan"] is None
    assert document["objective_s"] is None
    assert document["bound_s"] is None
    assert "GiB" in document["diagnosis"]
    assert "box" in document["diagnosis"]
    assert not output.exists()
    text = shell(*args).out
    assert "infeasible" in text
    assert "GiB" in text


def test_more_stages_than_layers_is_bad_input(answer) -> None:
    outcome = answer("--stages", "5")
    assert outcome.code == 2
    assert outcome.out == ""
    assert "5" in outcome.err
    assert "4 layers" in outcome.err


def test_an_unknown_backend_is_bad_input(answer) -> None:
    outcome = answer("--backend", "abacus")
    assert outcome.code == 2
    assert "abacus" in outcome.err


def test_a_backend_that_is_not_installed_says_what_to_install(
    answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hexisolve.solvers.backends.find_spec", lambda module: None)
    outcome = answer("--backend", "highs")
    assert outcome.code == 2
    assert "pip install pulp highspy" in outcome.err


def test_help_lists_every_backend(shell) -> None:
    from hexisolve.solvers.solve import BACKENDS

    help_text = shell("solve", "--help").out
    assert [name for name in BACKENDS if name not in help_text] == []


def test_compare_is_one_table(shell, inputs: Path) -> None:
    outcome = shell("compare", inputs / "instance.yaml")
    assert outcome.code == 0
    for word in ("hexisolve", "ring", "ulysses", "usp", "even", "baselines fit"):
        assert word in outcome.out


def test_folders_and_names_with_a_space_and_a_letter_beyond_ascii(
    inputs: Path, tmp_path: Path
) -> None:
    """Case 44: TMPDIR, working directory and file names."""
    folder, temporary = tmp_path / "my wörk", tmp_path / "témp orary"
    folder.mkdir()
    temporary.mkdir()
    for name in ("cluster.yaml", "model.json"):
        (folder / f"a ß {name}").write_bytes((inputs / name).read_bytes())
    done = subprocess.run(
        [sys.executable, "-m", "hexisolve", "solve", "--cluster", "a ß cluster.yaml",
         "--model", "a ß model.json", "--context", "256", "--batch", "2", "--block-tokens", "64",
         "--output", "plän b.json", "--json"],
        capture_output=True, text=True, timeout=120, cwd=folder,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "TMPDIR": str(temporary)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["status"] in STATUSES
    assert read_plan(folder / "plän b.json").plan is not None
    assert {path.name for path in folder.iterdir()} == {
        "a ß cluster.yaml", "a ß model.json", "plän b.json"
    }  # fmt: skip
    assert list(temporary.iterdir()) == []


def test_an_interrupt_while_baselines_are_priced_keeps_the_plan(
    shell, inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(instance: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("hexisolve.solvers.baselines.baselines", interrupted)
    outcome = shell("solve", inputs / "instance.yaml", "--json", "-o", tmp_path / "plan.json")
    assert outcome.code == 0
    assert outcome.json["plan"] is not None
    assert outcome.json["baselines"] == {}
    assert (tmp_path / "plan.json").is_file()
