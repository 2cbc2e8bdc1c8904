from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from hexisolve.data.cluster import Cluster
from hexisolve.data.instance import Instance
from hexisolve.data.model_spec import llama_like
from hexisolve.data.workload import Workload
from hexisolve.errors import BackendUnavailableError, InstanceError, NoPlanError, PlanError
from hexisolve.plan.check import check_plan
from hexisolve.plan.evaluate import evaluate
from hexisolve.solvers.result import Progress, Result, Status
from hexisolve.solvers.solve import solve


def cluster(devices: list[dict], hosts: list[int] | None = None, nic: str = "1 GB/s") -> Cluster:
    """Devices in hosts of the given sizes; all in one host by default."""
    sizes = hosts or [len(devices)]
    types = {
        f"kind{idx}": {
            "dense_peak": f"{d.get('speed', 50)} GFLOP/s",
            "memory": d.get("memory", "1 GiB"),
            "memory_bandwidth": "10 GB/s",
            "dense_efficiency": 0.5,
            "attention_forward_efficiency": 0.5,
            "attention_backward_efficiency": 0.5,
            "dtypes": ["bf16", "fp32", "fp64"],
            "source": "made up",
        }
        for idx, d in enumerate(devices)
    }
    names, document = iter(types), {}
    for number, size in enumerate(sizes):
        document[f"host{number}"] = {
            "count": 1,
            "devices": [{"type": next(names)} for _ in range(size)],
            "inside": {"kind": "host", "bandwidth": "20 GB/s", "latency": "1 us"},
            "nics": {"count": 1, "bandwidth": nic, "fabric": "net"},
        }
    return Cluster.from_dict(
        {
            "schema_version": 1, "name": "small", "device_types": types,
            "fabrics": {"net": {"latency": "2 us"}}, "hosts": document,
        }
    )  # fmt: skip


def instance(on: Cluster, layers: int = 3, q_heads: int = 4, kv_heads: int = 2, **more) -> Instance:
    model = llama_like("small", 64, layers, q_heads, kv_heads, 160, 128, head_dim=16)
    values = {"context_tokens": 256, "batch_sequences": 2, "block_tokens": 128, "zero": (0,)}
    cost = replace(Instance(on, model, Workload(**(values | more))).cost, reserve_bytes=0,
                   peer_buffer_bytes=0)  # fmt: skip
    return Instance(on, model, Workload(**(values | more)), cost)


def solved(problem: Instance, **options) -> Result:
    result = solve(problem, **({"time_limit_s": 60, "relative_gap": 0.0} | options))
    assert result.plan is None or check_plan(problem, result.plan) == []
    if result.plan is not None:
        assert result.objective_s == evaluate(problem, result.plan).step_time_s
    return result


def test_two_to_one_speeds_are_split_unevenly() -> None:
    # Case 27: the even split takes the slow card's time.
    problem = instance(cluster([{"speed": 100}, {"speed": 50}]), context_tokens=384)
    result = solved(problem)
    assert result.status is Status.OPTIMAL
    even = solved(instance(cluster([{"speed": 50}, {"speed": 50}]), context_tokens=384))
    assert result.objective_s < even.objective_s


def test_memory_binds_device_by_device_and_more_never_hurts() -> None:
    # Case 28, metamorphic: a device more, or a bigger one, never makes it worse or infeasible.
    small = solved(instance(cluster([{"memory": "6 MiB"}])))
    bigger = solved(instance(cluster([{"memory": "60 MiB"}])))
    joined = solved(instance(cluster([{"memory": "60 MiB"}, {"memory": "6 MiB"}])))
    assert bigger.status is Status.OPTIMAL
    assert joined.objective_s <= bigger.objective_s * (1 + 1e-9)
    if small.status is Status.OPTIMAL:
        assert bigger.objective_s <= small.objective_s * (1 + 1e-9)


def test_infeasible_names_a_device_and_bytes() -> None:
    result = solved(instance(cluster([{"memory": "2 MiB"}, {"memory": "2 MiB"}])))
    assert result.status is Status.INFEASIBLE
    assert result.bound_s is None
    assert "host0" in result.diagnosis
    assert "iB" in result.diagnosis
    with pytest.raises(NoPlanError, match="memory"):
        result.require_plan()


@pytest.mark.parametrize("change", ["speed", "links", "memory"])
def test_more_of_a_resource_is_never_worse(change: str) -> None:
    base = solved(instance(cluster([{"speed": 60}, {"speed": 40}], [1, 1], "0.5 GB/s")))
    if change == "speed":
        better = cluster([{"speed": 60}, {"speed": 55}], [1, 1], "0.5 GB/s")
    elif change == "links":
        better = cluster([{"speed": 60}, {"speed": 40}], [1, 1], "2 GB/s")
    else:
        better = cluster([{"speed": 60, "memory": "2 GiB"}, {"speed": 40}], [1, 1], "0.5 GB/s")
    assert solved(instance(better)).objective_s <= base.objective_s * (1 + 1e-9)


def test_all_rates_times_k_gives_time_divided_by_k() -> None:
    def scaled(k: int) -> Instance:
        on = Cluster.from_dict(
            {
                "schema_version": 1, "name": "scaled",
                "device_types": {
                    name: {
                        "dense_peak": f"{k * speed} GFLOP/s", "memory": "1 GiB",
                        "memory_bandwidth": f"{k} GB/s", "dense_efficiency": 0.5,
                        "attention_forward_efficiency": 0.5, "attention_backward_efficiency": 0.4,
                        "dtypes": ["bf16"], "source": "made up",
                    }
                    for name, speed in (("fast", 30), ("slow", 20))
                },
                "fabrics": {"net": {"latency": "0 us"}},
                "hosts": {
                    "box": {
                        "devices": [{"type": "fast"}, {"type": "slow"}],
                        "inside": {"kind": "host", "bandwidth": f"{k} GB/s", "latency": "0 us"},
                        "nics": {"count": 1, "bandwidth": "1 GB/s", "fabric": "net"},
                    }
                },
            }
        )  # fmt: skip
        problem = instance(on)
        return replace(problem, cost=replace(problem.cost, launch_overhead_s=0.0))

    one, four = solved(scaled(1)), solved(scaled(4))
    assert four.objective_s == pytest.approx(one.objective_s / 4, rel=1e-9)


def test_relabelling_devices_changes_nothing() -> None:
    forward = solved(instance(cluster([{"speed": 60}, {"speed": 40}, {"speed": 60}]), layers=2,
                              q_heads=2, kv_heads=1))  # fmt: skip
    backward = solved(instance(cluster([{"speed": 40}, {"speed": 60}, {"speed": 60}]), layers=2,
                               q_heads=2, kv_heads=1))  # fmt: skip
    assert forward.objective_s == pytest.approx(backward.objective_s, rel=1e-9)


@pytest.mark.parametrize(("q_heads", "kv_heads", "num_devices"), [(6, 3, 2), (7, 1, 4), (12, 4, 5)])
def test_head_counts_that_do_not_divide(q_heads: int, kv_heads: int, num_devices: int) -> None:
    # Cases 2, 3, 5: never "not divisible".
    problem = instance(cluster([{"speed": 50}] * num_devices), 2, q_heads, kv_heads)
    result = solved(problem, relative_gap=0.5, time_limit_s=10)
    assert result.plan is not None


def test_heads_over_sixteen_ranks() -> None:
    # Case 1: 40 query and 8 KV heads on 16 GPUs.
    model = llama_like("wide", 640, 8, 40, 8, 1728, 1000, head_dim=16)
    workload = Workload(context_tokens=32_768, batch_sequences=4)
    problem = Instance(Cluster.read("mixed-16"), model, workload)
    result = solved(problem, relative_gap=0.9, time_limit_s=20)
    assert result.plan is not None


def test_unlike_memories_share_layers_by_memory() -> None:
    # Case 23: a feasible split where even shares would not fit.
    on = cluster([{"memory": "28 MiB"}, {"memory": "9 MiB"}, {"memory": "7 MiB"}], [1, 1, 1])
    result = solved(instance(on, layers=6, q_heads=1, kv_heads=1, context_tokens=128),
                    relative_gap=0.05)  # fmt: skip
    assert result.plan is not None


def test_a_large_vocabulary_relieves_the_last_stage() -> None:
    # Case 19: the stage with the head gets fewer layers.
    model = llama_like("vocab", 64, 6, 2, 1, 160, 20_000, head_dim=32)
    on = cluster([{}, {}], [1, 1], "10 GB/s")
    problem = instance(on, batch_sequences=6, context_tokens=128)
    result = solved(replace(problem, model=model), stages=2)
    assert result.plan is not None
    first, last = result.plan.layout.replicas[0].stages
    assert last.num_layers < first.num_layers


def test_fabrics_without_a_common_switch_are_never_mixed() -> None:
    # Case 36.
    model = llama_like("mid", 256, 8, 8, 4, 704, 1000)
    problem = Instance(
        Cluster.read("two-fabrics"), model, Workload(context_tokens=16_384, batch_sequences=4)
    )
    result = solved(problem, relative_gap=0.9, time_limit_s=20)
    assert result.plan is not None


@pytest.mark.parametrize("backend", ["cp-sat", "dp"])
def test_backends_agree(backend: str) -> None:
    model = llama_like("mid", 1024, 6, 16, 16, 2816, 8_000)
    workload = Workload(context_tokens=32_768, batch_sequences=4)
    problem = Instance(Cluster.read("mixed-16"), model, workload)
    result = solved(problem, backend=backend, relative_gap=0.05, time_limit_s=60)
    assert result.plan is not None
    assert result.bound_s <= result.objective_s


def test_the_same_seed_gives_the_same_plan() -> None:
    problem = instance(cluster([{"speed": 60}, {"speed": 40}]))
    assert solved(problem, seed=3).plan == solved(problem, seed=3).plan


def test_a_start_is_never_made_worse_and_must_be_legal() -> None:
    problem = instance(cluster([{"speed": 60}, {"speed": 40}]))
    best = solved(problem)
    again = solved(problem, start=best.plan)
    assert again.objective_s <= best.objective_s
    with pytest.raises(PlanError):
        solved(instance(cluster([{"speed": 60}]), layers=5), start=best.plan)


def test_progress_never_goes_back() -> None:
    seen: list[Progress] = []
    solved(instance(cluster([{"speed": 60}, {"speed": 40}])), on_progress=seen.append)
    bounds = [entry.bound_s for entry in seen]
    values = [entry.incumbent_s for entry in seen if entry.incumbent_s is not None]
    assert bounds == sorted(bounds)
    assert values == sorted(values, reverse=True)


@pytest.mark.parametrize(
    ("name", "value"),
    [("time_limit_s", 0), ("relative_gap", 1.5), ("backend", "abacus"), ("stages", 9)],
)
def test_bad_arguments_name_themselves(name: str, value: object) -> None:
    problem = instance(cluster([{}]))
    with pytest.raises(InstanceError, match=name):
        solve(problem, **{name: value})


def test_a_backend_that_is_not_installed_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("hexisolve.solvers.backends.find_spec", lambda module: None)
    with pytest.raises(BackendUnavailableError, match="pip install pulp highspy"):
        solve(instance(cluster([{}])), backend="highs")


def test_works_from_a_folder_with_a_space_and_an_accent(tmp_path: Path) -> None:
    # Case 44.
    folder = tmp_path / "plan é x"
    folder.mkdir()
    script = folder / "solve it.py"
    script.write_text(
        "import hexisolve as hx\n"
        "from hexisolve.data.model_spec import llama_like\n"
        "model = llama_like('s', 64, 2, 2, 1, 160, 128)\n"
        "work = hx.Workload(context_tokens=256, batch_sequences=2)\n"
        "instance = hx.Instance(hx.Cluster.read('localhost'), model, work)\n"
        "result = hx.solve(instance, time_limit_s=20)\n"
        "assert result.plan is not None\n",
        encoding="utf-8",
    )
    root = Path(__file__).resolve().parents[2]
    environment = os.environ | {"TMPDIR": str(folder), "PYTHONPATH": str(root)}
    subprocess.run(
        [sys.executable, str(script)], cwd=folder, env=environment, check=True, timeout=120
    )


def test_more_stages_than_units_are_refused() -> None:
    with pytest.raises(InstanceError, match=r"stages: must lie in 1\.\.2"):
        solve(instance(cluster([{}, {}])), stages=3)
    large = replace(instance(Cluster.read("mixed-16"), layers=8), model=llama_like(
        "eight", 64, 8, 4, 2, 160, 128, head_dim=16))  # fmt: skip
    with pytest.raises(InstanceError, match="whole units"):
        solve(large, stages=5)


def test_a_start_has_the_stages_that_are_asked_for() -> None:
    problem = instance(cluster([{"speed": 60}, {"speed": 40}]))
    start = solved(problem, stages=2).plan
    with pytest.raises(InstanceError, match="a plan of 2 stages"):
        solve(problem, start=start, stages=1, time_limit_s=2.0)
    assert solve(problem, start=start, stages=2, time_limit_s=2.0).plan is not None
