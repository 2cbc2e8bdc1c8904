"""Plans that were once below the bound of a stage over several hosts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hexisolve.data.cluster import Cluster
from hexisolve.data.instance import Instance
from hexisolve.data.model_spec import llama_like
from hexisolve.data.workload import Workload
from hexisolve.formulation.arrangement import arrange
from hexisolve.formulation.bundle_program import Box, BundleProgram
from hexisolve.formulation.bundled_column import bundled_work, launches_s
from hexisolve.formulation.bundled_ring import bundled_ring
from hexisolve.formulation.bundled_work import BundledStage
from hexisolve.formulation.bundles import Suggestion
from hexisolve.formulation.column_bounds import beside
from hexisolve.formulation.relaxed_layer import column_shape
from hexisolve.formulation.stage_memory_bound import StateMode
from hexisolve.formulation.stage_pricer import StagePricer
from hexisolve.formulation.work import POLICIES
from hexisolve.solvers.small_optimum import SmallOptimiser
from hexisolve.solvers.solve import solve

ONE_DEVICE_HOSTS = """
schema_version: 1
name: small
fabrics: {ib: {latency: 5 us}}
hosts:
  h100: {count: 3, devices: {type: H100-SXM-80GB, count: 2}, nics: {count: 1, bandwidth: 200 Gbit/s, fabric: ib}}
  l40s: {count: 3, devices: {type: L40S-48GB, count: 1}, nics: {count: 1, bandwidth: 100 Gbit/s, fabric: ib}}
"""  # noqa: E501


def instance(cluster: Cluster, heads: int, kv_heads: int, inner: int, context: int) -> Instance:
    model = llama_like("m", 128 * heads, 6, heads, kv_heads, inner, 1000)
    return Instance(cluster, model, Workload(context_tokens=context, batch_sequences=4))


@pytest.mark.parametrize("gradients", ["step", "chunk"])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "context", "hosts", "stage", "blocks", "shares"),
    [
        # Groups over the same hosts exchange K, V inside the hosts only.
        (8, 8, 32_768, (0, 1), (((0, 1),), (2,), None), (128, 128), (4, 4)),
        # Launches are part of what hides gathers.
        (8, 2, 8_192, (0, 1), (((0,), (1,)), (1, 1), None), (32, 32), (8, 8)),
        # dK, dV come from the bundle before, not from the own one.
        (12, 12, 57_856, (0, 1, 2, 3), (((3, 2), (0, 1)), (1, 4), None), (116, 113, 114, 109),
         (6, 6, 6, 6)),
        # A group without tokens is no hop.
        (8, 8, 2_048, (0, 1), (((0,), (1,)), (8, 8), None), (15, 1), (8, 8)),
    ],
    ids=["inside hosts", "launches", "the bundle before", "empty groups"],
)  # fmt: skip
def test_rows_stay_below_a_stage_at_its_own_shares(
    gradients: str, heads: int, kv_heads: int, context: int, hosts: tuple[int, ...],
    stage: tuple[object, ...], blocks: tuple[int, ...], shares: tuple[int, ...],
) -> None:  # fmt: skip
    problem = instance(Cluster.read("a800-4x8"), heads, kv_heads, 20_000, context)
    pricer = StagePricer(problem, 4)
    names = list(problem.cluster.hosts())
    devices_of, index = problem.cluster.devices_of, problem.cluster.device_index
    numbers = [index[device.id] for host in hosts for device in devices_of(names[host])]
    shape = column_shape(pricer.rates, numbers)
    mode = StateMode(3, gradients)  # type: ignore[arg-type]
    own = Suggestion(0.0, BundledStage(*stage), blocks, shares)  # type: ignore[arg-type]
    devices = [[shape.devices[k].id for k in host] for host in shape.hosts]
    real = arrange(pricer, bundled_ring(problem, devices, own)).layer_s[beside(mode)][0, 0]
    tokens = tuple(count / sum(blocks) for count in blocks)
    counts = tuple(count / heads for count in shares)
    for number, policy in enumerate(POLICIES):
        kind = problem.model.layers[0]
        work = bundled_work(problem, kind, context, shape, mode, {policy: 1.0})
        program = BundleProgram(work, own.stage, SmallOptimiser(), 100.0)
        found = program.relaxation(Box(tokens, tokens, counts, counts), 100.0)
        assert found.seconds < np.inf
        assert found.seconds + launches_s(problem)[number] <= real[number] * (1 + 1e-9)


def test_hosts_of_one_device_have_finite_bounds(tmp_path: Path) -> None:
    path = tmp_path / "small.yaml"
    path.write_text(ONE_DEVICE_HOSTS, encoding="utf-8")
    result = solve(instance(Cluster.read(path), 16, 4, 4096, 8_192), time_limit_s=3.0)
    assert result.plan is not None
    assert result.bound_s is not None
    assert result.objective_s is not None
    assert 0.0 < result.bound_s <= result.objective_s
