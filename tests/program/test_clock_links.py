"""Jobs that share links, and the seconds of single instructions."""

from __future__ import annotations

import random

import pytest

from hexisolve.cost.communication import Flow, exchange_time_s
from hexisolve.data.instance import Instance
from hexisolve.data.instance_file import resolve_cluster, resolve_model
from hexisolve.data.workload import Workload
from hexisolve.program.durations import pair_count
from hexisolve.program.instructions import AttnPair, Exchange
from hexisolve.program.link_sharing import YIELD, Links, Load, SharedLinks
from hexisolve.program.lowering import exchanged_elements


def load(edges: dict[int, float], flows: float = 1.0) -> Load:
    return Load(tuple(edges), tuple(edges.values()), (flows,) * len(edges), 0.0)


def ends(links: SharedLinks) -> dict[object, float]:
    found = {}
    while (end_s := links.next_end_s()) is not None:
        for job in links.pop():
            found[job.tag] = end_s
    return found


def test_a_job_alone_takes_the_flow_rule() -> None:
    instance = Instance(
        resolve_cluster("mixed-32"),
        resolve_model("llama-2-7b"),
        Workload(context_tokens=1024, batch_sequences=1),
    )
    devices = instance.cluster.devices
    draw = random.Random(5)
    for _ in range(10):
        flows = [
            (draw.randrange(32), draw.randrange(32), draw.uniform(0.0, 1e9)) for _ in range(40)
        ]
        made = Links(instance).load(flows)
        links = SharedLinks(Links(instance).bytes_per_s)
        links.add(made, 0.0, "all")
        expected = exchange_time_s(
            instance.cluster,
            [Flow(devices[a].id, devices[b].id, size) for a, b, size in flows],
            instance.cost.link_efficiency,
        )
        assert ends(links)["all"] + made.latency_s == pytest.approx(expected, rel=1e-9)


def test_two_jobs_of_one_edge_take_the_sum_of_their_times() -> None:
    links = SharedLinks([10.0])
    links.add(load({0: 10.0}), 0.0, "small")
    links.add(load({0: 30.0}), 0.0, "large")
    # Half each until the small one has its 10 bytes, then all for the large one.
    assert ends(links) == {"small": pytest.approx(2.0), "large": pytest.approx(4.0)}


def test_jobs_of_different_edges_do_not_meet() -> None:
    links = SharedLinks([10.0, 1.0])
    links.add(load({0: 10.0}), 0.0, "fast")
    links.add(load({1: 10.0}), 0.0, "slow")
    assert ends(links) == {"fast": pytest.approx(1.0), "slow": pytest.approx(10.0)}


def test_a_job_that_comes_later_slows_the_first_from_then_on() -> None:
    links = SharedLinks([10.0])
    links.add(load({0: 30.0}), 0.0, "first")
    links.add(load({0: 10.0}), 1.0, "second")
    # 10 bytes alone, then 5 bytes/s each: the second needs 2 s, the first 10 more bytes.
    assert ends(links) == {"second": pytest.approx(3.0), "first": pytest.approx(4.0)}


def test_what_runs_aside_yields() -> None:
    links = SharedLinks([10.0])
    links.add(load({0: 10.0}), 0.0, "waited for")
    links.add(load({0: 10.0}).yielding(), 0.0, "aside")
    share = YIELD / (YIELD + 1)
    assert ends(links) == {
        "waited for": pytest.approx(1.0 / share),
        "aside": pytest.approx(2.0),
    }


def test_what_runs_aside_takes_what_others_leave() -> None:
    links = SharedLinks([10.0, 1.0])
    links.add(load({0: 10.0, 1: 10.0}), 0.0, "waited for")
    for name in ("aside", "also"):
        links.add(load({0: 45.0}).yielding(), 0.0, name)
    # The second edge holds the first job to 1 byte/s, so 9 of 10 are left on the first edge.
    assert ends(links) == {name: pytest.approx(10.0) for name in ("waited for", "aside", "also")}


def test_what_runs_aside_slows_down_when_a_neighbour_speeds_up() -> None:
    links = SharedLinks([10.0, 2.0])
    links.add(load({0: 9.0, 1: 9.0}), 0.0, "waited for")
    links.add(load({1: 3.0}), 0.0, "neighbour")
    links.add(load({0: 50.0}).yielding(), 0.0, "aside")
    # Until 3 s the neighbour takes half of the second edge: 1 byte/s of the first edge is used
    # and 27 pass aside; then 2 are used until 6 s and 24 more have passed when 50 are reached.
    assert ends(links) == {
        "neighbour": pytest.approx(3.0),
        "aside": pytest.approx(3.0 + 23.0 / 8.0),
        "waited for": pytest.approx(6.0),
    }


def test_taken_capacity_is_missing_but_never_more_than_half() -> None:
    for taken, expected in ((4.0, 10 / 6), (9.0, 2.0)):
        links = SharedLinks([10.0], {0: taken})
        links.add(load({0: 10.0}), 0.0, "job")
        assert ends(links)["job"] == pytest.approx(expected)


def test_a_job_without_bytes_ends_at_once() -> None:
    links = SharedLinks([10.0])
    links.add(Load((), (), (), 0.0), 2.0, "empty")
    assert ends(links) == {"empty": 2.0}


@pytest.mark.parametrize("seed", range(20))
def test_pair_counts_are_those_of_a_mask(seed: int) -> None:
    draw = random.Random(seed)
    num_q, num_k = draw.randint(1, 9), draw.randint(1, 9)
    offset, window = draw.randint(-6, 12), draw.randint(1, 8)
    pair = AttnPair(0, (3, 3 + num_q), (1, 1 + num_k), "window", offset, window)
    mask = sum(0 <= offset + i - j < window for i in range(num_q) for j in range(num_k))
    assert pair_count(pair) == mask
    assert pair_count(AttnPair(0, (0, num_q), (0, num_k), "full")) == num_q * num_k
    causal = sum(j <= i for i in range(num_q) for j in range(num_q))
    assert pair_count(AttnPair(-1, (0, num_q), (0, num_q), "causal")) == causal


@pytest.mark.parametrize("kind", ["qkv", "out", "d_out", "d_qkv"])
def test_exchanged_elements_are_the_splits_of_every_member(kind: str) -> None:
    from hexisolve.program.compile import compile_plan
    from tests.plans import CASES

    programs = compile_plan(*CASES["three_stages"](), ring_blocks=4)
    members = [program for program in programs.ranks if program.stage == 0]
    attention = programs.instance.model.layers[0].attention
    exchanges = [
        next(
            i
            for template in program.templates.values()
            for i in template.instructions
            if isinstance(i, Exchange) and i.kind == kind
        )
        for program in members
    ]
    found = exchanged_elements(exchanges[0], attention.qk_head_dim, attention.v_head_dim)
    for sender, receiver, num_elements in found:
        assert num_elements == exchanges[sender].send_elements[receiver]
        assert num_elements == exchanges[receiver].receive_elements[sender]
