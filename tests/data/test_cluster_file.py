"""Cluster files: written and read again, node by node, and everything a person can get wrong."""

from __future__ import annotations

import copy
import functools
import json
import logging
import operator
from collections.abc import Callable
from pathlib import Path
from typing import Any

import networkx
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from hexisolve.data.cluster import Cluster
from hexisolve.data.cluster_file import node_link
from hexisolve.data.library import bundled_names, bundled_path
from hexisolve.errors import InstanceError

SMALL: dict[str, Any] = {
    "schema_version": 1,
    "name": "small",
    "fabrics": {"ib": {"latency": "5 us", "oversubscription": 1}},
    "hosts": {
        "h100": {
            "count": 2,
            "devices": {"type": "H100-SXM-80GB", "count": 8},
            "inside": {"kind": "nvswitch", "bandwidth": "450 GB/s", "latency": "3 us"},
            "nics": {"count": 1, "bandwidth": "200 Gbit/s", "fabric": "ib"},
        },
        "l40s": {
            "count": 1,
            "devices": {"type": "L40S-48GB", "count": 4},
            "inside": {
                "kind": "pcie", "switches": [[0, 1], [2, 3]], "bandwidth": "25 GB/s",
                "between": "20 GB/s",
            },
            "nics": [{"bandwidth": "100 Gbit/s", "fabric": "ib", "at": "switch0"}],
        },
    },
    "overrides": {"h100[1].device[3]": {"memory": "70 GiB", "dense_efficiency": 0.5}},
}  # fmt: skip


def small(**changes: Any) -> dict[str, Any]:
    """SMALL with values replaced; keys are paths joined by two underscores."""
    document = copy.deepcopy(SMALL)
    for path, value in changes.items():
        place: Any = document
        *parents, last = path.split("__")
        for key in parents:
            place = place[int(key)] if isinstance(place, list) else place.setdefault(key, {})
        place[last] = value
    return document


def problems_of(document: Any) -> list[str]:
    with pytest.raises(InstanceError) as caught:
        Cluster.from_dict(document, "c.yaml")
    assert all(problem.file == "c.yaml" for problem in caught.value.problems)
    return [str(problem) for problem in caught.value.problems]


def same_graph(first: Cluster, second: Cluster) -> bool:
    return dict(first.graph.nodes.items()) == dict(second.graph.nodes.items()) and dict(
        first.graph.edges.items()
    ) == dict(second.graph.edges.items())


def test_the_example_of_the_manual() -> None:
    cluster = Cluster.from_dict(SMALL)
    assert len(cluster.devices) == 20
    assert cluster.edge_bytes_per_s(("h100-0.nic0", "ib")) == 25e9
    changed = cluster.device("h100-1.3")
    assert (changed.memory_bytes, changed.dense_efficiency) == (70 * 2**30, 0.5)
    assert cluster.device("h100-0.3").memory_bytes == 81_559 * 2**20


@pytest.mark.parametrize("name", bundled_names("clusters"))
def test_written_and_read_again_it_is_the_same(name: str, tmp_path: Path) -> None:
    cluster, path = Cluster.read(name), tmp_path / "größe mit leer.yaml"
    cluster.write(path)
    again = Cluster.read(path)
    text = path.read_text(encoding="utf-8")
    again.write(path)
    assert path.read_text(encoding="utf-8") == text
    assert again == cluster
    assert same_graph(again, cluster)
    assert again.devices == cluster.devices


@pytest.mark.parametrize("name", ["mixed-32", "two-fabrics", "consumer-2x4", "local-mixed-4"])
def test_node_link_json_gives_the_same_graph(name: str, tmp_path: Path) -> None:
    cluster, path = Cluster.read(name), tmp_path / "c.json"
    cluster.write(path)
    again = Cluster.read(path)
    text = path.read_text()
    again.write(path)
    assert path.read_text() == text
    assert same_graph(again, cluster)
    assert again.devices == cluster.devices


def test_to_dict_needs_no_catalogue() -> None:
    document = Cluster.from_dict(SMALL).to_dict()
    assert document["device_types"]["H100-SXM-80GB"]["dense_peak"] == "989.4 TFLOP/s"
    assert json.loads(json.dumps(document)) == document
    assert Cluster.from_dict(document).to_dict() == document


def test_changing_the_document_changes_nothing() -> None:
    document = copy.deepcopy(SMALL)
    cluster = Cluster.from_dict(document)
    document["hosts"]["h100"]["count"] = 7
    cluster.to_dict()["hosts"]["h100"]["count"] = 9
    assert cluster == Cluster.from_dict(SMALL)
    with pytest.raises(networkx.NetworkXError):
        cluster.graph.add_node("x")


@pytest.mark.parametrize("key", ["links", "edges"])
@pytest.mark.parametrize("is_directed", [True, False])
def test_networkx_node_link_is_read(key: str, is_directed: bool) -> None:
    graph = networkx.DiGraph() if is_directed else networkx.Graph()
    for idx in range(11):
        graph.add_node(idx, type="A100-SXM-80GB", host="box")
    graph.add_node("sw", kind="switch")
    for idx in range(11):
        graph.add_edge(idx, "sw", bytes_per_s=300e9, latency_s=1.5e-6)
        if is_directed:
            graph.add_edge("sw", idx, bytes_per_s=300e9, latency_s=1.5e-6)
    cluster = Cluster.from_dict(networkx.node_link_data(graph, edges=key))
    assert [device.id for device in cluster.devices] == [str(idx) for idx in range(11)]
    assert cluster.edge_bytes_per_s(("sw", "10")) == 300e9
    assert cluster.route("9", "10").latency_s == pytest.approx(3e-6)


def test_nodes_may_be_added_to_hosts() -> None:
    document = small(
        nodes=[{"id": "extra", "type": "T4-16GB", "host": "spare"}],
        edges=[{"source": "extra", "target": "ib", "bandwidth": "1 GB/s", "both": True}],
    )
    cluster = Cluster.from_dict(document)
    assert cluster.connected("extra", "l40s-0.0")
    assert cluster.hosts()[-1] == "spare"


def test_overrides_reach_groups_hosts_and_devices_the_special_last() -> None:
    cluster = Cluster.from_dict(
        small(
            overrides={
                "h100[0].device[1]": {"memory": "10 GiB"},
                "h100": {"memory": "30 GiB", "link_bandwidth": "100 GB/s"},
                "h100-1": {"memory": "20 GiB", "nic_bandwidth": "5 GB/s"},
                "l40s-0.2": {"dtypes": ["fp16"]},
            }
        )
    )
    memory = [cluster.device(name).memory_bytes // 2**30 for name in
              ("h100-0.0", "h100-0.1", "h100-1.0", "h100-1.1")]  # fmt: skip
    assert memory == [30, 10, 20, 20]
    assert cluster.edge_bytes_per_s(("h100-0.0", "h100-0.switch0")) == 100e9
    assert cluster.edge_bytes_per_s(("h100-1.nic0", "ib")) == 5e9
    assert cluster.edge_bytes_per_s(("h100-0.nic0", "ib")) == 25e9
    assert cluster.device("l40s-0.2").dtypes == ("fp16",)


def test_a_type_of_ones_own_and_one_like_a_known_one() -> None:
    cluster = Cluster.from_dict(
        {
            "device_types": {
                "mine": {
                    "dense_peak": "1e9 FLOP/s", "memory": "2 GiB", "memory_bandwidth": "1 GB/s",
                    "link": {"kind": "nvswitch", "bandwidth": "7 GB/s"},
                },
                "cut": {"like": "A100-SXM-80GB", "memory": "40 GiB"},
            },
            "hosts": {
                "a": {"devices": [{"type": "mine", "count": 2}, {"type": "cut"}]},
            },
        }
    )  # fmt: skip
    mine, cut = cluster.device("a-0.1"), cluster.device("a-0.2")
    assert mine.dense_flop_per_s == pytest.approx(0.6e9)
    assert (cut.memory_bytes, cut.dense_peak_flop_per_s) == (40 * 2**30, 312e12)
    assert cluster.edge_bytes_per_s(("a-0.0", "a-0.switch0")) == 7e9


BAD: list[tuple[str, dict[str, Any], list[str]]] = [
    ("unknown key", small(hots={}), ["hots: unknown key", "hosts"]),
    ("unknown key below", small(hosts__h100__inside__bandwith="1 GB/s"),
     ["hosts.h100.inside.bandwith: unknown key", "bandwidth"]),
    ("schema", small(schema_version=9), ["schema_version", "write 1"]),
    ("no unit", small(hosts__h100__inside__bandwidth=450),
     ["hosts.h100.inside.bandwidth", "needs a number with a unit"]),
    ("no unit in text", small(hosts__h100__nics__bandwidth="200"), ["nics.bandwidth", "unit"]),
    ("unknown unit", small(hosts__h100__nics__bandwidth="200 Gb"), ["unknown unit 'Gb'"]),
    ("negative", small(hosts__h100__inside__bandwidth="-450 GB/s"), ["must be above 0"]),
    ("zero", small(hosts__h100__inside__bandwidth="0 GB/s"), ["must be above 0"]),
    ("absurd link", small(hosts__h100__inside__bandwidth="1e9 GB/s"), ["at most 10^6 GB/s"]),
    ("infinite link", small(hosts__h100__inside__bandwidth="1e999 GB/s"), ["10^6 GB/s"]),
    ("negative latency", small(hosts__h100__inside__latency="-3 us"), ["inside.latency"]),
    ("count zero", small(hosts__h100__count=0), ["hosts.h100.count", "from 1"]),
    ("count text", small(hosts__h100__count="two"), ["hosts.h100.count", "whole number"]),
    ("count true", small(hosts__h100__count=True), ["hosts.h100.count", "whole number"]),
    ("too many", small(hosts__h100__count=16_000), ["more than 16384 devices"]),
    ("no devices", small(hosts={}), ["no devices", "at least one host"]),
    ("empty devices", small(hosts__h100__devices=[]), ["holds no devices"]),
    ("devices missing", {"hosts": {"a": {"count": 1}}}, ["hosts.a.devices", "missing"]),
    ("type missing", small(hosts__h100__devices={"count": 2}), ["devices.type", "missing"]),
    ("type unknown", small(hosts__h100__devices__type="H100"),
     ["hosts.h100.devices.type", "H100-SXM-80GB", "device_types"]),
    ("type inline", small(hosts__h100__devices__type={"memory": "1 GiB"}), ["device_types"]),
    ("efficiency", small(overrides={"h100": {"dense_efficiency": 1.5}}),
     ["overrides.h100.dense_efficiency", "at most 1"]),
    ("nan", small(overrides={"h100": {"dense_efficiency": float("nan")}}), ["dense_efficiency"]),
    ("memory", small(overrides={"h100": {"memory": "-1 GiB"}}), ["overrides.h100.memory"]),
    ("memory overflow", small(overrides={"h100": {"memory": "1e999 GiB"}}), ["overrides.h100.mem"]),
    ("dtype", small(overrides={"h100": {"dtypes": ["bf32"]}}), ["dtypes", "bf16"]),
    ("override key", small(overrides={"h100": {"speed": 2}}), ["overrides.h100.speed"]),
    ("override host", small(overrides={"b200[0]": {}}), ["overrides.b200[0]", "h100, l40s"]),
    ("override index", small(overrides={"h100[2]": {}}), ["h100 has 2 hosts"]),
    ("override device", small(overrides={"h100[1].device[8]": {}}), ["has 8 devices"]),
    ("override nic", small(overrides={"h100-0.1": {"nic_bandwidth": "1 GB/s"}}), ["to a host"]),
    ("kind", small(hosts__h100__inside__kind="nvlink"), ["inside.kind", "nvswitch"]),
    ("switches", small(hosts__l40s__inside__switches=[[0, 1], [2]]), ["exactly once"]),
    ("switch words", small(hosts__l40s__inside__switches=[["a"], None]), ["switches"]),
    ("between", small(hosts__h100__inside__between="1 GB/s"), ["between", "two switches"]),
    ("bridge", small(hosts__l40s__inside__bridges=[{"devices": [0, 9], "bandwidth": "1 GB/s"}]),
     ["bridges[0].devices", "like [0, 1]"]),
    ("fabric unknown", small(hosts__h100__nics__fabric="ibb"), ["nics.fabric", "ib"]),
    ("fabric missing", small(fabrics__eth={}, hosts__h100__nics={"bandwidth": "1 GB/s"}),
     ["nics.fabric", "missing"]),
    ("fabric name", small(fabrics={"h100-0.0": {}}), ["letters, digits"]),
    ("at", small(hosts__l40s__nics=[{"bandwidth": "1 GB/s", "fabric": "ib", "at": "switch7"}]),
     ["nics[0].at", "switch0, switch1, host"]),
    ("rails", small(hosts__h100__nics={"count": 3, "bandwidth": "1 GB/s", "rails": "per-device"}),
     ["must divide the 8 devices"]),
    ("oversubscription", small(fabrics__ib={"oversubscription": 0.5}), ["at least 1"]),
    ("contention", small(fabrics__ib={"levels": [{"contention": 0}]}), ["contention", "above 0"]),
    ("levels", small(fabrics__ib={"levels": [{"hosts": 4}, {"hosts": 2}]}), ["must grow"]),
    ("core", small(core_switches={"c": {"fabrics": ["ib"], "bandwidth": "1 GB/s"}}),
     ["two fabrics"]),
    ("core name", small(core_switches={"ib": {"fabrics": ["ib", "x"], "bandwidth": "1 GB/s"}}),
     ["two nodes"]),
    ("node twice", small(nodes=[{"id": "ib", "kind": "switch"}]), ["id of two nodes"]),
    ("node type", small(nodes=[{"id": "x", "type": "A1000"}]), ["nodes[0].type"]),
    ("edge end", small(edges=[{"source": "h100-0.0", "target": "l40s-0.9", "bandwidth": "1 GB/s"}]),
     ["edges[0].target", "use one of l40s-0."]),
    ("edge twice", small(edges=[{"source": "h100-0.0", "target": "h100-0.switch0",
                                 "bandwidth": "1 GB/s"}]), ["given twice"]),
    ("edge itself", small(edges=[{"source": "ib", "target": "ib", "bandwidth": "1 GB/s"}]),
     ["joins a node to itself"]),
    ("edge number", {"nodes": [], "links": [{"source": 1, "target": 2, "bytes_per_s": "fast"}]},
     ["must be a number"]),
    ("custom type", small(device_types={"t": {"dense_peak": "1 TFLOP/s"}}),
     ["device_types.t.memory: is missing"]),
    ("not a mapping", small(hosts=["h100"]), ["hosts: must be a mapping"]),
    ("null", small(hosts=None), ["hosts: must be a mapping"]),
]  # fmt: skip


@pytest.mark.parametrize(("document", "words"), [case[1:] for case in BAD], ids=[c[0] for c in BAD])
def test_bad_input_names_field_and_remedy(document: dict[str, Any], words: list[str]) -> None:
    text = "\n".join(problems_of(document))
    assert all(word in text for word in words), text


def test_all_problems_are_reported_at_once() -> None:
    document = small(
        hots=1,
        hosts__h100__count=-1,
        hosts__h100__inside__bandwidth="450",
        hosts__l40s__nics=[{"bandwidth": "-1 GB/s", "fabric": "nope"}],
        overrides={"x": {}},
    )
    fields = [problem.split(": ")[1] for problem in problems_of(document)]
    assert fields == [
        "hots", "hosts.h100.count", "hosts.h100.inside.bandwidth", "hosts.l40s.nics[0].bandwidth",
        "hosts.l40s.nics[0].fabric", "overrides.x",
    ]  # fmt: skip


FILES = {
    "empty.yaml": (b"  \n", "is empty"),
    "broken.yaml": (b"name: x\nhosts: {a: [1, 2\nb: 3\n", "line 3"),
    "tabs.yaml": (b"name: x\n\thosts: 1\n", "line 2"),
    "twice.yaml": (b"name: x\nhosts: {}\nname: y\n", "'name' is written twice"),
    "binary.yaml": (b"name: x\n\xff\xfe\x00\x01", "is not UTF-8 text"),
    "control.yaml": (b"name: \x00\x01", "is not valid YAML"),
    "list.yaml": (b"- 1\n- 2\n", "must hold a mapping"),
    "code.yaml": (b"name: !!python/object/apply:os.system [ls]\n", "line 1"),
    "loop.yaml": (b"hosts: &a {b: *a}\n", "nested too deeply"),
    "list-loop.yaml": (b"edges: &a [*a]\n", "nested too deeply"),
    "key.yaml": (b"? [a, b]\n: 1\n", "a key must be a plain word"),
    "date.yaml": (b"name: 2024-13-45\n", "holds a value that cannot be read"),
    "deep.yaml": (b"a: " + b"[" * 3000 + b"]" * 3000, "deep"),
    "broken.json": (b'{"nodes": [1,\n}', "line 2"),
    "twice.json": (b'{"nodes": [], "nodes": []}', "written twice"),
    "deep.json": (b"[" * 100_000, "deep"),
}


@pytest.mark.parametrize("name", FILES)
def test_broken_files_say_where(name: str, tmp_path: Path) -> None:
    content, words = FILES[name]
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(InstanceError) as caught:
        Cluster.read(path)
    assert words in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_folder_and_a_missing_file_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(InstanceError, match="is a folder"):
        Cluster.read(tmp_path)
    with pytest.raises(InstanceError, match="does not exist"):
        Cluster.read(tmp_path / "none.yaml")


def test_aliases_that_explode_are_refused(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 10)]
    path = tmp_path / "bomb.yaml"
    path.write_text("\n".join(lines))
    with pytest.raises(InstanceError, match="too many values"):
        Cluster.read(path)


def test_writing_into_a_missing_folder_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(InstanceError, match="cannot be written"):
        Cluster.read("mixed-16").write(tmp_path / "none" / "c.yaml")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("bandwidth", "warns"),
    [("0.09 GB/s", True), ("0.1 GB/s", False), ("20000 GB/s", False), ("20001 GB/s", True)],
)
def test_unusual_links_warn(bandwidth: str, warns: bool, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        Cluster.from_dict(small(hosts__h100__inside__bandwidth=bandwidth))
    assert ("unusual link" in caplog.text) == warns


def test_gbit_and_gbyte_are_told_apart() -> None:
    cluster = Cluster.from_dict(small(hosts__h100__nics__bandwidth="200 GB/s"))
    assert cluster.edge_bytes_per_s(("h100-0.nic0", "ib")) == 8 * 25e9


@pytest.mark.parametrize(
    ("device_type", "peak", "warns"),
    [
        ("H100-PCIE-80GB", "1513 TFLOP/s", True),
        ("H100-SXM-80GB", "1979 TFLOP/s", True),
        ("A10-24GB", "250 TFLOP/s", True),
        ("L4-24GB", "242 TFLOP/s", True),
        ("H100-SXM-80GB", "800 TFLOP/s", False),
        ("L40S-48GB", "100 TFLOP/s", True),
    ],
)
def test_peaks_far_from_the_dense_figure_warn(
    device_type: str, peak: str, warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    host = {"devices": {"type": device_type}, "inside": {"kind": "host", "bandwidth": "20 GB/s"}}
    for document in (
        {"hosts": {"a": host}, "device_types": {device_type: {"dense_peak": peak}}},
        {"hosts": {"a": host}, "overrides": {"a": {"dense_peak": peak}}},
    ):
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            Cluster.from_dict(document)
        assert ("sparsity" in caplog.text) == warns


def _places(value: Any, set_value: Callable[[Any], None]) -> list[Callable[[Any], None]]:
    """A setter for every value of a document."""
    found = [set_value]
    if isinstance(value, dict | list):
        keys = list(value) if isinstance(value, dict) else range(len(value))
        for key in keys:
            found += _places(value[key], functools.partial(operator.setitem, value, key))
    return found


JUNK = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 10**30), st.floats(), st.text(max_size=4),
    st.sampled_from(["1 GB/s", "-1 GB/s", "1e400 GB/s", "3 us", "80 GiB", "ib", "switch0", "a b"]),
    st.lists(st.integers(-1, 9), max_size=3), st.dictionaries(st.text(max_size=3), st.none()),
)  # fmt: skip


@settings(max_examples=120, deadline=None)
@given(data=st.data())
def test_no_document_gives_a_traceback(data: st.DataObject) -> None:
    document = small(
        nodes=[{"id": "n", "type": "T4-16GB"}],
        edges=[{"source": "n", "target": "ib", "bandwidth": "1 GB/s", "latency_s": 1e-6}],
        device_types={"mine": {"like": "L4-24GB", "link": {"kind": "pcie"}}},
        core_switches={"core": {"fabrics": ["ib", "eth"], "bandwidth": "9 GB/s"}},
        fabrics__eth={"levels": [{"hosts": 2, "contention": 0.5}]},
    )
    for _ in range(data.draw(st.integers(1, 3))):
        places = _places(document, lambda new: None)
        junk = data.draw(JUNK)
        data.draw(st.sampled_from(places))(junk)
    try:
        cluster = Cluster.from_dict(document, "c.yaml")
    except InstanceError:
        return
    assert Cluster.from_dict(yaml.safe_load(yaml.safe_dump(cluster.to_dict()))) == cluster
    assert same_graph(Cluster.from_dict(node_link(cluster)), cluster)


def test_bundled_files_are_small_enough_to_read() -> None:
    for name in bundled_names("clusters"):
        path = bundled_path("clusters", name)
        assert path is not None
        assert len(path.read_text().splitlines()) < 80


def test_every_cluster_in_the_manual_can_be_read(repository: Path) -> None:
    text = (repository / "docs" / "clusters.md").read_text()
    blocks = [part.split("```")[0] for part in text.split("```yaml\n")[1:]]
    clusters = [Cluster.from_dict(yaml.safe_load(block)) for block in blocks]
    assert [len(cluster.devices) for cluster in clusters] == [32, 16, 256, 3, 2]
