"""Classes of interchangeable devices, hosts and switches."""

from __future__ import annotations

import itertools
from typing import Any

import networkx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_cluster import TOY, explicit

from hexisolve.data.cluster import Cluster
from hexisolve.data.symmetry import find_symmetry, switch_classes


def is_automorphism(cluster: Cluster, swap: dict[str, str]) -> bool:
    """The definition, spelled out: relabel the whole graph and compare."""
    graph = cluster.graph
    names = {node: swap.get(node, node) for node in graph}
    relabelled = networkx.relabel_nodes(graph, names)
    places = ("host", "fabric")

    def plain(data: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in data.items() if key not in places}

    return {node: plain(data) for node, data in relabelled.nodes.items()} == {
        node: plain(data) for node, data in graph.nodes.items()
    } and dict(relabelled.edges.items()) == dict(graph.edges.items())


def test_equal_hosts_and_their_devices_form_classes() -> None:
    symmetry = find_symmetry(Cluster.read("mixed-32"))
    assert symmetry.host_classes == (("h100-0", "h100-1"), ("a100-0",), ("l40s-0",))
    assert [len(members) for members in symmetry.device_classes] == [8, 8, 8, 4, 4]
    assert ("l40s-0.switch0", "l40s-0.switch1") in symmetry.switch_classes


def test_a_changed_device_leaves_its_class_and_its_host_too() -> None:
    document = Cluster.read("mixed-32").to_dict()
    document["overrides"] = {"h100[1].device[3]": {"memory": "70 GiB"}}
    cluster = Cluster.from_dict(document)
    assert ("h100-1.3",) in cluster.device_classes
    assert cluster.host_classes[:2] == (("h100-0",), ("h100-1",))


@pytest.mark.parametrize("slots", [(0, 7), (3, 3)])
def test_hosts_that_differ_in_order_only_stay_interchangeable(slots: tuple[int, int]) -> None:
    document = Cluster.read("mixed-32").to_dict()
    document["overrides"] = {
        f"h100[{host}].device[{slot}]": {"memory": "70 GiB"} for host, slot in enumerate(slots)
    }
    assert Cluster.from_dict(document).host_classes[0] == ("h100-0", "h100-1")


def test_a_slower_port_parts_hosts() -> None:
    document = Cluster.read("a800-4x8").to_dict()
    document["overrides"] = {"a800[2]": {"nic_bandwidth": "25 GB/s"}}
    assert Cluster.from_dict(document).host_classes == (
        ("a800-0", "a800-1", "a800-3"), ("a800-2",),
    )  # fmt: skip


def test_devices_with_rails_take_their_nics_along() -> None:
    symmetry = find_symmetry(Cluster.read("two-fabrics"))
    assert len(symmetry.device_classes[0]) == 8
    assert ("a100-0.0", "a100-0.1") in symmetry.device_classes


def test_switches_exchange_with_the_hosts_under_them() -> None:
    document = Cluster.read("a800-4x8").to_dict()
    document["fabrics"]["ib"] = {"levels": [{"hosts": 2}, {"contention": 0.5}]}
    cluster = Cluster.from_dict(document)
    assert cluster.host_classes == (("a800-0", "a800-1"), ("a800-2", "a800-3"))
    assert ("ib.level0.0", "ib.level0.1") in switch_classes(cluster)


def test_bridged_devices_are_compared_with_each_other() -> None:
    cluster = explicit(
        [("a", "s", 1), ("b", "s", 1), ("c", "s", 1), ("d", "s", 1), ("a", "b", 5)],
        ["a", "b", "c", "d"], s={"kind": "switch"},
    )  # fmt: skip
    # All in boxes of their own here, so put them into one.
    document = cluster.to_dict()
    for node in document["nodes"][:4]:
        node["host"] = "box"
    assert Cluster.from_dict(document).device_classes == (("a", "b"), ("c", "d"))


def test_names_in_the_file_play_no_part() -> None:
    document = Cluster.read("mixed-16").to_dict()
    document["hosts"]["other"] = dict(document["hosts"]["h100"])
    assert Cluster.from_dict(document).host_classes == (("h100-0", "other-0"), ("a100-0",))


@settings(max_examples=40, deadline=None)
@given(
    links=st.lists(
        st.tuples(st.integers(0, 5), st.integers(0, 7), st.sampled_from([1, 2])), max_size=14
    ),
    memories=st.lists(st.sampled_from(["8 GiB", "9 GiB"]), min_size=6, max_size=6),
)
def test_device_classes_are_exactly_the_exchangeable_pairs(
    links: list[tuple[int, int, int]], memories: list[str]
) -> None:
    names = [*"abcdef", "s", "t"]
    nodes: list[dict[str, Any]] = [
        {"id": name, "type": "toy", "host": "box", "memory": memory}
        for name, memory in zip(names, memories, strict=False)
    ]
    nodes += [{"id": "s", "kind": "switch", "host": "box"}, {"id": "t", "kind": "switch"}]
    unique = {(a, b): rate for a, b, rate in links if a != b}
    cluster = Cluster.from_dict(
        {
            "device_types": {"toy": TOY},
            "nodes": nodes,
            "edges": [
                {"source": names[a], "target": names[b], "bandwidth": f"{rate} GB/s"}
                for (a, b), rate in unique.items()
            ],
        }
    )
    label = {name: idx for idx, members in enumerate(cluster.device_classes) for name in members}
    for first, second in itertools.combinations("abcdef", 2):
        swap = {first: second, second: first}
        assert (label[first] == label[second]) == is_automorphism(cluster, swap)


def test_mixed_1024_is_a_small_problem() -> None:
    cluster = Cluster.read("mixed-1024")
    assert [len(members) for members in cluster.host_classes] == [24, 32, 32, 40]
