"""Clusters: routes, classes of speed, what the graph says about devices and links."""

from __future__ import annotations

from typing import Any

import networkx
import pytest

from hexisolve.data.cluster import Cluster, check_dtype, natural_key
from hexisolve.data.library import bundled_names
from hexisolve.errors import InstanceError

TOY = {
    "dense_peak": "1e9 FLOP/s",
    "memory": "16 GiB",
    "memory_bandwidth": "1 GB/s",
    "dense_efficiency": 1,
    "attention_forward_efficiency": 0.5,
    "attention_backward_efficiency": 0.4,
}


def explicit(edges: list[tuple[Any, ...]], devices: list[str], **others: dict[str, Any]) -> Cluster:
    """A cluster of toy devices from (source, target, GB/s) edges, both directions."""
    nodes: list[dict[str, Any]] = [{"id": name, "type": "toy"} for name in devices]
    nodes += [{"id": name} | attributes for name, attributes in others.items()]
    return Cluster.from_dict(
        {
            "name": "explicit",
            "device_types": {"toy": TOY},
            "nodes": nodes,
            "edges": [
                {"source": a, "target": b, "bandwidth": f"{rate} GB/s", "both": True}
                for a, b, rate in edges
            ],
        }
    )


def test_devices_and_hosts_follow_the_file() -> None:
    cluster = Cluster.read("mixed-32")
    assert isinstance(cluster.graph, networkx.DiGraph)
    assert cluster.hosts() == ("h100-0", "h100-1", "a100-0", "l40s-0")
    assert [device.id for device in cluster.devices_of("a100-0")][:2] == ["a100-0.0", "a100-0.1"]
    assert len(cluster.devices) == 32
    assert cluster.device("l40s-0.7").memory_bytes == 46_068 * 2**20


def test_rates_are_peak_times_efficiency() -> None:
    device = Cluster.read("mixed-32").device("h100-0.0")
    assert device.dense_flop_per_s == pytest.approx(989.4e12 * 0.62)
    assert device.attention_forward_flop_per_s == pytest.approx(989.4e12 * 0.40)
    assert device.attention_backward_flop_per_s == pytest.approx(989.4e12 * 0.35)


@pytest.mark.parametrize("name", bundled_names("clusters"))
def test_bundled_clusters_join_every_device_of_a_fabric(name: str) -> None:
    cluster = Cluster.read(name)
    first = cluster.devices[0]
    reached = [device for device in cluster.devices if cluster.connected(first.id, device.id)]
    expected = 24 if name == "two-fabrics" else len(cluster.devices)
    assert len(reached) == expected


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("mixed-16", {"H100-SXM-80GB": 8, "A100-SXM-80GB": 8}),
        ("mixed-32", {"H100-SXM-80GB": 16, "A100-SXM-80GB": 8, "L40S-48GB": 8}),
        (
            "mixed-64",
            {"H100-SXM-80GB": 16, "A100-SXM-80GB": 16, "A800-SXM-80GB": 16, "L40S-48GB": 16},
        ),
        (
            "mixed-128",
            {"H100-SXM-80GB": 24, "A100-SXM-80GB": 32, "A800-SXM-80GB": 32, "L40S-48GB": 40},
        ),
        (
            "mixed-1024",
            {"H100-SXM-80GB": 192, "A100-SXM-80GB": 256, "A800-SXM-80GB": 256, "L40S-48GB": 320},
        ),
    ],
)
def test_mixed_clusters_hold_what_their_names_promise(name: str, counts: dict[str, int]) -> None:
    for suffix, port in (("", 25e9), ("-fast", 200e9)):
        cluster = Cluster.read(name + suffix)
        found: dict[str, int] = {}
        for device in cluster.devices:
            found[device.type] = found.get(device.type, 0) + 1
        assert found == counts
        ports = [
            cluster.edge_bytes_per_s((nic, "ib"))
            for nic, data in cluster.graph.nodes.items()
            if data["kind"] == "nic"
        ]
        assert ports == [port] * (len(cluster.devices) // 8)


def test_a_route_inside_a_box_has_the_latency_of_the_box() -> None:
    route = Cluster.read("mixed-32").route("h100-0.0", "h100-0.7")
    assert route.edges == (("h100-0.0", "h100-0.switch0"), ("h100-0.switch0", "h100-0.7"))
    assert route.latency_s == pytest.approx(3e-6)


def test_a_route_between_boxes_adds_the_network_hop() -> None:
    route = Cluster.read("mixed-32").route("h100-0.0", "a100-0.3")
    assert [edge[1] for edge in route.edges] == [
        "h100-0.switch0", "h100-0.nic0", "ib", "a100-0.nic0", "a100-0.switch0", "a100-0.3",
    ]  # fmt: skip
    assert route.latency_s == pytest.approx((3 / 2 + 6 + 3 / 2) * 1e-6)


def test_a_route_takes_fewest_hops_before_width() -> None:
    cluster = explicit(
        [("a", "s", 1), ("s", "b", 1), ("a", "t", 9), ("t", "u", 9), ("u", "b", 9)],
        ["a", "b"], s={"kind": "switch"}, t={"kind": "switch"}, u={"kind": "switch"},
    )  # fmt: skip
    assert cluster.route("a", "b").edges == (("a", "s"), ("s", "b"))


def test_a_route_takes_the_widest_of_the_shortest() -> None:
    cluster = explicit(
        [("a", "s", 3), ("s", "b", 1), ("a", "t", 2), ("t", "b", 2)],
        ["a", "b"], s={"kind": "switch"}, t={"kind": "switch"},
    )  # fmt: skip
    assert cluster.route("a", "b").edges == (("a", "t"), ("t", "b"))


def test_of_equal_routes_the_first_by_natural_order_is_taken() -> None:
    cluster = explicit(
        [("a", "s10", 1), ("s10", "b", 1), ("a", "s9", 1), ("s9", "b", 1)],
        ["a", "b"], s10={"kind": "switch"}, s9={"kind": "switch"},
    )  # fmt: skip
    assert cluster.route("a", "b").edges == (("a", "s9"), ("s9", "b"))


def test_routes_never_pass_a_device() -> None:
    cluster = explicit([("a", "b", 1), ("b", "c", 1)], ["a", "b", "c"])
    assert cluster.connected("a", "b")
    assert not cluster.connected("a", "c")


def test_a_shared_box_does_not_bridge_two_fabrics() -> None:
    document = Cluster.read("two-fabrics").to_dict()
    document["hosts"]["bridge"] = {
        "devices": {"type": "A100-SXM-80GB", "count": 2},
        "inside": {"kind": "nvswitch", "bandwidth": "300 GB/s"},
        "nics": [
            {"bandwidth": "25 GB/s", "fabric": "ib"},
            {"bandwidth": "25 GB/s", "fabric": "ethernet"},
        ],
    }
    cluster = Cluster.from_dict(document)
    assert cluster.connected("bridge-0.0", "h100-0.0")
    assert cluster.connected("bridge-0.0", "l40s-0.0")
    assert not cluster.connected("h100-0.0", "l40s-0.0")


def test_a_route_does_not_turn_around_inside_a_nic() -> None:
    cluster = Cluster.from_dict(
        {
            "fabrics": {"ib": {}},
            "hosts": {
                "a": {
                    "devices": {"type": "A100-PCIE-80GB", "count": 2},
                    "inside": {"kind": "pcie", "bandwidth": "20 GB/s"},
                    "nics": {"count": 1, "bandwidth": "100 GB/s", "rails": "per-device"},
                }
            },
        }
    )
    assert cluster.route("a-0.0", "a-0.1").edges[0] == ("a-0.0", "a-0.switch0")


def test_two_fabrics_without_a_switch_are_not_connected() -> None:
    cluster = Cluster.read("two-fabrics")
    assert not cluster.connected("h100-0.0", "l40s-1.7")
    with pytest.raises(InstanceError, match="core_switches") as caught:
        cluster.route("h100-0.0", "l40s-1.7")
    assert "h100-0.0 -> l40s-1.7" in str(caught.value)


def test_a_core_switch_joins_two_fabrics() -> None:
    document = Cluster.read("two-fabrics").to_dict()
    document["core_switches"] = {
        "core": {"fabrics": ["ib", "ethernet"], "bandwidth": "40 GB/s", "latency": "10 us"}
    }
    cluster = Cluster.from_dict(document)
    route = cluster.route("h100-0.0", "l40s-0.0")
    assert ("ib", "core") in route.edges
    assert cluster.edge_bytes_per_s(("core", "ethernet")) == 40e9
    assert route.latency_s == pytest.approx((1.5 + 3 + 10 + 6 + 1.5) * 1e-6)


def test_consumer_cards_send_through_the_host() -> None:
    cluster = Cluster.read("consumer-2x4")
    route = cluster.route("ada-0.0", "ada-0.1")
    assert route.edges == (("ada-0.0", "ada-0.host"), ("ada-0.host", "ada-0.1"))


def test_a_narrow_slot_has_its_own_width() -> None:
    cluster = Cluster.read("consumer-2x4")
    assert cluster.edge_bytes_per_s(("ampere-0.3", "ampere-0.host")) == 1.9e9
    assert cluster.edge_bytes_per_s(("ampere-0.2", "ampere-0.host")) == 13e9


def test_pcie_switches_meet_in_the_host() -> None:
    cluster = Cluster.read("two-fabrics")
    edges = cluster.route("l40s-0.1", "l40s-0.6").edges
    assert [edge[1] for edge in edges] == [
        "l40s-0.switch0", "l40s-0.host", "l40s-0.switch1", "l40s-0.6",
    ]  # fmt: skip
    assert cluster.edge_bytes_per_s(("l40s-0.switch0", "l40s-0.host")) == 20e9


def test_a_nic_sits_where_the_file_puts_it() -> None:
    cluster = Cluster.read("two-fabrics")
    assert ("l40s-0.switch0", "l40s-0.nic0") in cluster.graph.edges
    near = len(cluster.route("l40s-0.0", "l40s-1.0").edges)
    far = len(cluster.route("l40s-0.4", "l40s-1.4").edges)
    assert (near, far) == (6, 10)


def test_rails_serve_their_own_devices() -> None:
    cluster = Cluster.read("two-fabrics")
    assert cluster.route("h100-0.3", "a100-0.5").edges == (
        ("h100-0.3", "h100-0.nic3"), ("h100-0.nic3", "ib"), ("ib", "a100-0.nic2"),
        ("a100-0.nic2", "a100-0.5"),
    )  # fmt: skip


def test_shared_nics_are_one_port_of_their_sum() -> None:
    document = Cluster.read("mixed-16").to_dict()
    document["hosts"]["h100"]["nics"] = {"count": 8, "bandwidth": "200 Gbit/s"}
    cluster = Cluster.from_dict(document)
    assert cluster.edge_bytes_per_s(("h100-0.nic0", "ib")) == 8 * 25e9


def test_oversubscription_divides_the_port() -> None:
    cluster = Cluster.read("two-fabrics")
    assert cluster.edge_bytes_per_s(("l40s-0.nic0", "ethernet")) == 12.5e9
    assert cluster.edge_bytes_per_s(("l40s-0.switch0", "l40s-0.nic0")) == 25e9


def test_levels_slow_down_distant_hosts() -> None:
    document = Cluster.read("a800-4x8").to_dict()
    document["fabrics"]["ib"] = {
        "latency": "6 us", "levels": [{"hosts": 2}, {"contention": 0.5, "latency": "10 us"}],
    }  # fmt: skip
    cluster = Cluster.from_dict(document)
    near, far = cluster.route("a800-0.0", "a800-1.0"), cluster.route("a800-0.0", "a800-2.0")
    assert ("a800-0.nic0", "ib.level0.0") in near.edges
    assert ("a800-0.nic0", "ib") in far.edges
    assert cluster.edge_bytes_per_s(("a800-0.nic0", "ib")) == 25e9
    assert (near.latency_s, far.latency_s) == (pytest.approx(9e-6), pytest.approx(13e-6))


def test_a_bridge_joins_two_devices_directly() -> None:
    document = {
        "hosts": {
            "box": {
                "devices": {"type": "A100-PCIE-80GB", "count": 4},
                "inside": {
                    "kind": "pcie", "bandwidth": "25 GB/s",
                    "bridges": [{"devices": [0, 1], "bandwidth": "300 GB/s"}],
                },
            }
        }
    }  # fmt: skip
    cluster = Cluster.from_dict(document)
    assert cluster.route("box-0.0", "box-0.1").edges == (("box-0.0", "box-0.1"),)
    assert len(cluster.route("box-0.1", "box-0.2").edges) == 2


def test_an_unknown_device_names_the_nearest() -> None:
    cluster = Cluster.read("mixed-32")
    with pytest.raises(InstanceError, match=r"h100-0\.0"):
        cluster.device("h100-0-0")
    with pytest.raises(InstanceError, match="l40s-0"):
        cluster.devices_of("l40-0")


def test_natural_order_counts() -> None:
    assert sorted(["gpu10", "gpu9", "gpu1"], key=natural_key) == ["gpu1", "gpu9", "gpu10"]
    assert sorted(["a10b", "a9c", "1", "b"], key=natural_key) == ["1", "a9c", "a10b", "b"]


def test_bf16_on_cards_without_it_is_a_problem_with_a_way_out() -> None:
    document = {
        "fabrics": {"ib": {}},
        "hosts": {
            "old": {
                "devices": {"type": "V100-SXM-32GB", "count": 4},
                "nics": {"bandwidth": "12 GB/s"},
            },
            "t4": {"devices": {"type": "T4-16GB"}, "nics": {"bandwidth": "12 GB/s"}},
            "new": {"devices": {"type": "A100-SXM-80GB"}, "nics": {"bandwidth": "12 GB/s"}},
        },
    }
    cluster = Cluster.from_dict(document)
    problems = check_dtype(cluster, "bf16")
    assert ["V100-SXM-32GB" in str(p) for p in problems] == [True, False]
    assert "T4-16GB" in str(problems[1])
    assert all("dtype: fp16" in problem.remedy for problem in problems)
    assert check_dtype(cluster, "fp16") == []


def test_with_speed_scales_one_type_only() -> None:
    cluster = Cluster.read("mixed-32")
    slower = cluster.with_speed("L40S-48GB", 0.8)
    assert slower.device("l40s-0.0").dense_flop_per_s == pytest.approx(
        0.8 * cluster.device("l40s-0.0").dense_flop_per_s
    )
    assert slower.device("h100-0.0") == cluster.device("h100-0.0")
    assert set(slower.graph.edges) == set(cluster.graph.edges)
    with pytest.raises(InstanceError, match="H100-SXM-80GB"):
        cluster.with_speed("H100-SXM", 0.8)


def test_clusters_are_equal_when_their_documents_are() -> None:
    first, second = Cluster.read("mixed-16"), Cluster.read("mixed-16")
    assert first == second
    assert hash(first) == hash(second)
    assert first != Cluster.read("mixed-16-fast")
    assert first != "mixed-16"
