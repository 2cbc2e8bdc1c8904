"""Activations that wait in host memory: the way there, its seconds, and what a step costs then."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hexisolve.data.cluster import Cluster
from hexisolve.plan.check import check_plan
from hexisolve.plan.evaluate import evaluate
from hexisolve.plan.offload import host_path, offload_s
from hexisolve.plan.plan import BatchPlan, Plan, ReplicaBatch
from hexisolve.plan.price_book import price_book
from tests.plan.plan_examples import cluster_of, instance_of, plan_of, stage_of, whole_chunks

PCIE_BYTES_PER_S = 25e9
HOST_BYTES_PER_S = 20e9


def pcie_box(devices: int = 4) -> Cluster:
    """Two PCIe switches of two devices, the host between them."""
    half = devices // 2
    return Cluster.from_dict(
        {
            "schema_version": 1,
            "name": "pcie",
            "fabrics": {"net": {"latency": "5 us"}},
            "hosts": {
                "l40s": {
                    "count": 1,
                    "devices": {"type": "L40S-48GB", "count": devices},
                    "inside": {
                        "kind": "pcie",
                        "switches": [list(range(half)), list(range(half, devices))],
                        "bandwidth": f"{PCIE_BYTES_PER_S!r} B/s",
                        "between": f"{HOST_BYTES_PER_S!r} B/s",
                        "latency": "1 us",
                    },
                    "nics": {"count": 1, "bandwidth": "100 Gbit/s", "fabric": "net"},
                }
            },
        }
    )


def test_the_way_to_host_memory_leads_over_the_switch() -> None:
    cluster = pcie_box()
    for device in cluster.devices:
        path = host_path(cluster, device.id)
        assert [source for source, _ in path] == [device.id, path[0][1]]
        assert cluster.graph.nodes[path[-1][1]]["kind"] == "host"


def test_a_box_without_a_host_node_has_no_way() -> None:
    assert host_path(cluster_of(), "d0") == ()


def test_devices_behind_one_switch_share_its_uplink() -> None:
    instance = instance_of(pcie_box())
    book = price_book(instance)
    devices = [device.id for device in instance.cluster.devices]
    latency_s = 2e-6
    # One device is held up by the slower of its two edges; two behind a switch share the uplink.
    one = offload_s(book, devices[:1], [10**9])
    assert one == pytest.approx(10**9 / HOST_BYTES_PER_S, abs=2 * latency_s)
    both = offload_s(book, devices[:2], [10**9, 10**9])
    assert both == pytest.approx(2 * 10**9 / HOST_BYTES_PER_S, abs=2 * latency_s)
    apart = offload_s(book, [devices[0], devices[2]], [10**9, 10**9])
    assert apart == pytest.approx(one)


def test_nothing_to_move_takes_no_time() -> None:
    instance = instance_of(pcie_box())
    assert offload_s(price_book(instance), [instance.cluster.devices[0].id], [0]) == 0.0


def _offloading(plan: Plan, layers: int) -> Plan:
    pipeline = plan.batch.replicas[0].pipelines[0]
    rows = tuple(tuple(layers for _ in pipeline.chunks) for _ in pipeline.schedule)
    batch = BatchPlan((ReplicaBatch((replace(pipeline, offload=rows),)),))
    return replace(plan, batch=batch)


def test_offload_trades_device_memory_for_time() -> None:
    instance = instance_of(pcie_box())
    device = instance.cluster.devices[0].id
    plan = plan_of([stage_of((0, 2), [(device, 1, (0, 4))])], whole_chunks([1000] * 4))
    prices = []
    for layers in (0, 1, 2):
        moved = _offloading(plan, layers)
        assert check_plan(instance, moved) == []
        prices.append(evaluate(instance, moved))
    kept = [price.devices[0].memory.activations for price in prices]
    assert kept[0] > kept[1] > kept[2]
    assert prices[0].step_time_s <= prices[1].step_time_s <= prices[2].step_time_s
    # The little model computes for less time than its activations travel.
    assert prices[2].step_time_s > prices[0].step_time_s
