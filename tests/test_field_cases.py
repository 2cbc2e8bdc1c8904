"""Cases from the field that need the whole way from an instance to a plan (docs/cases.md)."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from hexisolve.data.cluster import Cluster
from hexisolve.data.instance import Instance
from hexisolve.data.model_spec import ModelSpec, llama_like
from hexisolve.data.workload import Workload
from hexisolve.plan.check import check_plan
from hexisolve.plan.evaluate import evaluate
from hexisolve.solvers.result import Result
from hexisolve.solvers.solve import solve

GIB = 2**30


def _cluster(memories: Sequence[str], peak: str = "300 TFLOP/s", **peaks: str) -> Cluster:
    """Single devices on one fast network, each with its memory; `peaks` by position."""
    types = {
        f"device-{idx}": {
            "dense_peak": peaks.get(f"peak_{idx}", peak),
            "memory": memory,
            "memory_bandwidth": "2 TB/s",
            "dense_efficiency": 0.6,
            "attention_forward_efficiency": 0.5,
            "attention_backward_efficiency": 0.45,
        }
        for idx, memory in enumerate(memories)
    }
    hosts = {
        f"host{idx}": {
            "count": 1,
            "devices": {"type": name, "count": 1},
            "inside": {"kind": "nvswitch", "bandwidth": "400 GB/s", "latency": "3 us"},
            "nics": {"count": 1, "bandwidth": "100 GB/s", "fabric": "net"},
        }
        for idx, name in enumerate(types)
    }
    return Cluster.from_dict(
        {
            "schema_version": 1,
            "name": "field",
            "device_types": types,
            "fabrics": {"net": {"latency": "5 us"}},
            "hosts": hosts,
        }
    )


def _solve(
    cluster: Cluster, model: ModelSpec, *, stages: int | None = None, gap: float = 0.01,
    **load: object,
):  # fmt: skip
    workload = Workload(**({"context_tokens": 4096, "batch_sequences": 4} | load))  # type: ignore[arg-type]
    instance = Instance(cluster, model, workload)
    result = solve(instance, time_limit_s=45, relative_gap=gap, stages=stages)
    if result.plan is not None:
        assert check_plan(instance, result.plan) == []
    return instance, result


def _layers(result: Result) -> list[int]:
    return [stage.num_layers for stage in result.require_plan().layout.replicas[0].stages]


def _wide(num_layers: int, vocab_size: int = 1024) -> ModelSpec:
    return llama_like("wide", 2048, num_layers, 16, 16, 8192, vocab_size)


@pytest.mark.parametrize("num_devices", [3, 5, 7])
@pytest.mark.parametrize("num_heads", [8, 16])
def test_odd_numbers_of_devices_with_power_of_two_heads(num_devices: int, num_heads: int) -> None:
    """Case 5."""
    cluster = _cluster(["80 GiB"] * num_devices)
    model = llama_like("power", 64 * num_heads, 6, num_heads, num_heads, 1024, 1024)
    _, result = _solve(cluster, model, gap=0.5)  # that there is a plan is the point
    assert result.plan is not None


def test_layers_give_way_to_embedding_and_head() -> None:
    """Case 18: embedding and head weigh a layer each; 6 layers on 4 equal stages."""
    layer = _wide(1).layers[0].parameters
    model = _wide(6, vocab_size=round(layer / 2048))
    assert model.embedding_parameters == pytest.approx(layer, rel=1e-3)
    # Two layers' worth of states (18 bytes a parameter) and their activations, not three.
    states_gib = 18 * layer / GIB
    memory = f"{(2.6 * states_gib) / 0.94 + 2.4:.2f} GiB"
    _, result = _solve(
        _cluster([memory] * 4), model, stages=4, context_tokens=512, zero=(0,)
    )  # fmt: skip
    assert _layers(result) == [1, 2, 2, 1]


def test_a_large_vocabulary_takes_layers_off_the_end_stages() -> None:
    """Case 19: 250k tokens."""
    model = _wide(24, vocab_size=250_000)
    # Embedding and head weigh 7.6 layers each: 39 layers' worth on 4 devices for 11 of them.
    states_gib = 18 * model.layers[0].parameters / GIB
    memory = f"{11 * states_gib / 0.94 + 2.4:.2f} GiB"
    _, result = _solve(_cluster([memory] * 4), model, stages=4, context_tokens=512, zero=(0,))
    first, *middle, last = _layers(result)
    assert max(first, last) < min(middle)


def test_layers_follow_memory_when_memory_is_all_that_matters() -> None:
    """Case 23: 256, 64 and 48 GB, 94 layers of 3 GB each: a third of them fits on no small one."""
    model = llama_like("tall", 4096, 94, 32, 32, 8192, 32_000)
    cluster = _cluster(["256 GB", "64 GB", "48 GB"])
    instance, result = _solve(cluster, model, context_tokens=2048, zero=(0,))
    stages = result.require_plan().layout.replicas[0].stages
    by_device = {stage.ranks[0].device: stage.num_layers for stage in stages}
    large, middle, small = (by_device[device.id] for device in cluster.devices)
    assert large + middle + small == 94
    assert large > middle > small
    assert large > 94 / 2
    for entry in evaluate(instance, result.require_plan()).devices:
        assert entry.peak_bytes <= entry.usable_bytes


@pytest.mark.parametrize("change", ["another device", "a bigger device"])
def test_more_hardware_never_makes_a_feasible_instance_infeasible(change: str) -> None:
    """Case 28."""
    memories = ["16 GiB", "12 GiB"]
    model = _wide(8)
    before = _solve(_cluster(memories), model)[1]
    grown = [*memories, "4 GiB"] if change == "another device" else ["16 GiB", "24 GiB"]
    after = _solve(_cluster(grown), model)[1]
    assert before.plan is not None
    assert after.plan is not None
    assert after.bound_s is not None
    assert after.bound_s <= before.objective_s * (1 + 1e-9)
