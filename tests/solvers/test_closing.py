from __future__ import annotations

import time

import pytest

from hexisolve.data.cluster import Cluster
from hexisolve.data.instance import Instance
from hexisolve.data.model_spec import llama_like
from hexisolve.data.workload import Workload
from hexisolve.solvers.insides import count_insides, insides
from hexisolve.solvers.result import Status
from hexisolve.solvers.solve import solve


def _cluster(num_devices: int) -> Cluster:
    return Cluster.from_dict(
        {
            "schema_version": 1,
            "name": "few",
            "hosts": {
                "box": {
                    "devices": {"type": "A100-SXM-80GB", "count": num_devices},
                    "inside": {"kind": "nvswitch", "bandwidth": "300 GB/s", "latency": "3 us"},
                }
            },
        }
    )


@pytest.mark.parametrize("num_devices", [1, 2, 3])
@pytest.mark.parametrize("num_blocks", [1, 3])
@pytest.mark.parametrize("num_heads", [1, 2, 4])
def test_the_count_is_that_of_the_enumeration(
    num_devices: int, num_blocks: int, num_heads: int
) -> None:
    rings = list(insides(tuple("abc")[:num_devices], num_blocks, 1, num_heads))
    assert len(rings) == len(set(rings)) == count_insides(num_devices, num_blocks, num_heads)


@pytest.mark.parametrize(
    ("num_layers", "context_tokens"), [(2, 131_072), (30, 256)], ids=["blocks", "layers"]
)
def test_too_many_to_enumerate_is_seen_without_enumerating(
    num_layers: int, context_tokens: int
) -> None:
    model = llama_like("small", 256, num_layers, 8, 8, 512, 512)
    workload = Workload(context_tokens=context_tokens, batch_sequences=2)
    start = time.monotonic()
    result = solve(Instance(_cluster(4), model, workload), time_limit_s=3)
    assert result.plan is not None
    assert time.monotonic() - start < 40  # it used to run for ever


def test_unequal_sequences_are_not_refuted_by_a_short_cutoff() -> None:
    model = llama_like("small", 256, 2, 8, 8, 512, 512)
    workload = Workload(lengths=(128, 131_072))
    for backend in ("dp", "cp-sat"):
        result = solve(Instance(_cluster(2), model, workload), time_limit_s=5, backend=backend)
        assert result.status is not Status.INFEASIBLE
        assert result.plan is not None
