"""The flow rule against numbers worked out by hand and against its definition."""

from __future__ import annotations

import csv
import logging
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hexisolve.cost.communication import (
    Flow,
    edge_bytes,
    edge_seconds,
    exchange_time_s,
    flow_network,
)
from hexisolve.data.cluster import Cluster
from hexisolve.errors import InstanceError


def toy(bandwidth: str = "1e6 B/s", latency: str = "1 ms", count: int = 2) -> Cluster:
    """Devices on one switch, as in the worked examples."""
    return Cluster.from_dict(
        {
            "device_types": {
                "toy": {
                    "dense_peak": "1e9 FLOP/s", "memory": "16 GiB", "memory_bandwidth": "1 GB/s",
                }
            },
            "hosts": {
                "box": {
                    "devices": {"type": "toy", "count": count},
                    "inside": {"kind": "nvswitch", "bandwidth": bandwidth, "latency": latency},
                }
            },
        }
    )  # fmt: skip


@pytest.mark.parametrize(
    ("bandwidth", "latency", "there", "back", "time_s"),
    [
        ("1e6 B/s", "1 ms", 67200, 67200, 0.068200000),
        ("1e6 B/s", "1 ms", 28800, 22400, 0.029800000),
        ("1e6 B/s", "1 ms", 38400, 89600, 0.090600000),
        ("5e6 B/s", "0 s", 134848, 38208, 0.026969600),
        ("5e6 B/s", "0 s", 12736, 57792, 0.011558400),
        ("5e6 B/s", "0 s", 50944, 77056, 0.015411200),
    ],
)
def test_the_worked_examples(
    bandwidth: str, latency: str, there: int, back: int, time_s: float
) -> None:
    flows = [Flow("box-0.0", "box-0.1", there), Flow("box-0.1", "box-0.0", back)]
    assert exchange_time_s(toy(bandwidth, latency), flows, 1.0) == pytest.approx(time_s, rel=1e-9)


def test_flows_to_oneself_and_of_nothing_are_free() -> None:
    cluster = toy()
    flows = [Flow("box-0.0", "box-0.0", 1e6), Flow("box-0.0", "box-0.1", 0)]
    assert exchange_time_s(cluster, flows, 1.0) == 0.0
    assert exchange_time_s(cluster, [], 1.0) == 0.0
    assert edge_bytes(cluster, flows) == {}


def test_a_free_flow_does_not_bring_its_latency() -> None:
    cluster = Cluster.read("mixed-32")
    near = Flow("h100-0.0", "h100-0.1", 450e9)
    far = Flow("h100-0.0", "a100-0.1", 0)
    assert exchange_time_s(cluster, [near, far], 1.0) == pytest.approx(1 + 3e-6)


def test_efficiency_divides_the_bandwidth_only() -> None:
    flows = [Flow("box-0.0", "box-0.1", 850_000)]
    assert exchange_time_s(toy(), flows, 0.85) == pytest.approx(1.0 + 0.001)


def test_flows_through_one_nic_add_up() -> None:
    cluster = Cluster.read("mixed-16")
    flows = [Flow(f"h100-0.{slot}", f"a100-0.{slot}", 25e9) for slot in range(8)]
    assert exchange_time_s(cluster, flows[:1], 1.0) == pytest.approx(1, rel=1e-4)
    assert exchange_time_s(cluster, flows, 1.0) == pytest.approx(8, rel=1e-4)


def test_rails_do_not_share() -> None:
    cluster = Cluster.read("two-fabrics")
    flows = [Flow(f"h100-0.{slot}", f"h100-1.{slot}", 50e9) for slot in range(8)]
    assert exchange_time_s(cluster, flows, 1.0) == pytest.approx(1, rel=1e-4)


def test_pcie_switches_share_the_way_to_the_host() -> None:
    cluster = Cluster.read("two-fabrics")
    flows = [Flow(f"l40s-0.{slot}", f"l40s-0.{slot + 4}", 5e9) for slot in range(4)]
    assert exchange_time_s(cluster, flows, 1.0) == pytest.approx(1, rel=1e-4)


def test_directions_do_not_share() -> None:
    flows = [Flow("box-0.0", "box-0.1", 1e6), Flow("box-0.1", "box-0.0", 1e6)]
    assert exchange_time_s(toy(), flows, 1.0) == pytest.approx(1.001)


def test_edge_bytes_and_seconds() -> None:
    cluster = toy(count=3)
    flows = [Flow("box-0.0", "box-0.2", 1e6), Flow("box-0.1", "box-0.2", 2e6)]
    total = edge_bytes(cluster, flows)
    assert total == {
        ("box-0.0", "box-0.switch0"): 1e6,
        ("box-0.1", "box-0.switch0"): 2e6,
        ("box-0.switch0", "box-0.2"): 3e6,
    }
    assert edge_seconds(cluster, total, 0.5)["box-0.switch0", "box-0.2"] == pytest.approx(6.0)


def test_devices_that_are_not_joined_are_an_error_with_names() -> None:
    cluster = Cluster.read("two-fabrics")
    with pytest.raises(InstanceError, match=r"h100-0\.0 -> l40s-0\.0"):
        exchange_time_s(cluster, [Flow("h100-0.0", "l40s-0.0", 1)], 1.0)
    with pytest.raises(InstanceError, match="no such device"):
        exchange_time_s(cluster, [Flow("h100-0.0", "l40s-9.0", 1)], 1.0)


def test_the_network_is_compiled_once_per_cluster() -> None:
    assert flow_network(Cluster.read("mixed-16")) is flow_network(Cluster.read("mixed-16"))


def by_definition(cluster: Cluster, flows: list[Flow], efficiency: float) -> float:
    """The rule, word by word."""
    moving = [flow for flow in flows if flow.source != flow.target and flow.num_bytes > 0]
    load: dict[tuple[str, str], float] = {}
    for flow in moving:
        for edge in cluster.route(flow.source, flow.target).edges:
            load[edge] = load.get(edge, 0.0) + flow.num_bytes
    busiest = max(
        (b / (cluster.edge_bytes_per_s(edge) * efficiency) for edge, b in load.items()), default=0.0
    )
    return busiest + max(
        (cluster.route(flow.source, flow.target).latency_s for flow in moving), default=0.0
    )


@settings(max_examples=60, deadline=None)
@given(
    pairs=st.lists(
        st.tuples(st.integers(0, 63), st.integers(0, 63), st.integers(0, 10**9)), max_size=40
    )
)
def test_the_tables_equal_the_definition(pairs: list[tuple[int, int, int]]) -> None:
    cluster = Cluster.read("mixed-64")
    ids = [device.id for device in cluster.devices]
    flows = [Flow(ids[a], ids[b], num_bytes) for a, b, num_bytes in pairs]
    expected = by_definition(cluster, flows, 0.85)
    assert exchange_time_s(cluster, flows, 0.85) == pytest.approx(expected, rel=1e-12)


def test_route_tables_hold_the_routes() -> None:
    cluster = Cluster.read("consumer-2x4")
    network = flow_network(cluster)
    for source, device in enumerate(cluster.devices):
        for target, other in enumerate(cluster.devices):
            row = network.route_table([source], [target])[0]
            edges = tuple(network.edges[index] for index in row if index < network.num_edges)
            assert edges == cluster.route(device.id, other.id).edges


def test_busiest_edge_of_an_accumulated_step() -> None:
    cluster = toy()
    network = flow_network(cluster)
    total = network.zeros()
    for _ in range(3):
        network.add_edge_bytes(total, [0, 1], [1, 1], [1e6, 5e6])
    assert network.busiest_edge_s(total, 0.5) == pytest.approx(6.0)
    assert float(total.sum()) == 6e6


def contended(rates: dict[int, float]) -> Cluster:
    """Hosts of one device whose measured point-to-point rates (GB/s) fall with their number."""
    best = max(rates.values())
    sizes = sorted(rates)
    levels = [
        {"hosts": size, "contention": rates[size] / best} for size in sizes[:-1]
    ] + [{"contention": rates[sizes[-1]] / best}]  # fmt: skip
    return Cluster.from_dict(
        {
            "fabrics": {"ib": {"latency": "0 s", "levels": levels}},
            "hosts": {
                "b200": {
                    "count": sizes[-1],
                    "devices": {"type": "B200-SXM-180GB", "count": 1},
                    "nics": {"bandwidth": f"{best!r} GB/s"},
                }
            },
        }
    )


def ring_s(cluster: Cluster, num_hosts: int, num_bytes: float) -> float:
    hosts = np.arange(num_hosts)
    flows = [
        Flow(f"b200-{host}.0", f"b200-{(host + 1) % num_hosts}.0", num_bytes) for host in hosts
    ]
    return exchange_time_s(cluster, flows, 1.0)


def test_contention_per_level_gives_the_measured_rates(shared_data: Path) -> None:
    path = shared_data / "nccl-tests" / "sendrecv_b200_scaling_2_to_32_nodes.csv"
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    largest = list(csv.DictReader(lines))[-1]
    measured = {nodes: float(largest[f"nodes{nodes}"]) for nodes in (4, 8, 16, 32)}
    cluster = contended(measured)
    for nodes, rate in measured.items():
        assert ring_s(cluster, nodes, rate * 1e9) == pytest.approx(1.0, rel=0.01)


def test_eight_stages_beat_sixteen_under_contention() -> None:
    cluster = contended({4: 44.4, 8: 26.15, 16: 14.67})
    work_s, num_bytes, num_chunks = 1.0, 5e9, 16
    period_s = {stages: work_s / stages + ring_s(cluster, stages, num_bytes) for stages in (8, 16)}
    step_s = {stages: (num_chunks + stages - 1) * period for stages, period in period_s.items()}
    assert step_s[8] < step_s[16]


def test_a_reading_with_tiny_links_warns_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        toy(bandwidth="1e6 B/s")
    assert len([record for record in caplog.records if "unusual link" in record.message]) == 1
