"""What layers keep per host, against the memory of whole plans."""

from __future__ import annotations

import numpy as np
import pytest

from hexisolve.data.cluster import Cluster
from hexisolve.data.instance import Instance
from hexisolve.data.model_spec import llama_like
from hexisolve.data.workload import Workload
from hexisolve.formulation.bundled_ring import bundled_ring
from hexisolve.formulation.bundled_work import BundledStage
from hexisolve.formulation.bundles import Suggestion
from hexisolve.formulation.host_memory import StagePlace, host_memory, layer_bytes
from hexisolve.formulation.relaxed_layer import column_shape
from hexisolve.formulation.stage_memory_bound import StateMode
from hexisolve.formulation.stage_pricer import StagePricer
from hexisolve.formulation.whole_shares import evenly, largest_remainder
from hexisolve.formulation.work import POLICIES
from hexisolve.plan.plan import Chunk, Slice, Stage
from hexisolve.plan.price_book import price_book
from hexisolve.plan.step_memory import chunk_memory
from hexisolve.plan.tokens import chunk_shape

TOKENS, BLOCKS, HEADS = 65_536, 512, 16


@pytest.fixture(scope="module")
def problem() -> Instance:
    model = llama_like("mid", 2048, 8, HEADS, 4, 5504, 32_000)
    return Instance(
        Cluster.read("mixed-16"), model, Workload(context_tokens=TOKENS, batch_sequences=2)
    )


def suggestion(joined: bool) -> Suggestion:
    bundles = ((0, 1),) if joined else ((0,), (1,))
    heads = (10, 6) if joined else (HEADS, HEADS)
    stage = BundledStage(bundles, (1,) * len(bundles), None)
    return Suggestion(0.0, stage, (320, 192), heads)


@pytest.mark.parametrize("joined", [True, False], ids=["heads exchanged", "ring between hosts"])
@pytest.mark.parametrize("number", range(3), ids=POLICIES)
def test_kept_bytes_of_hosts_are_those_of_their_devices(
    problem: Instance, joined: bool, number: int
) -> None:
    hosts = [[d.id for d in problem.cluster.devices_of(h)] for h in problem.cluster.hosts()]
    own = suggestion(joined)
    stage = Stage((0, 1), bundled_ring(problem, hosts, own))
    shape = chunk_shape(Chunk((Slice(0, 0, TOKENS),)))
    policy = POLICIES[number]
    memory = chunk_memory(price_book(problem), stage, 1, 3, shape, {policy: 1})
    item = layer_bytes(problem, TOKENS)
    by_rank = dict(zip((rank.device for rank in stage.ranks), memory.kept, strict=True))
    working = {
        rank.device: items[0] for rank, items in zip(stage.ranks, memory.working, strict=True)
    }
    for host, devices in enumerate(hosts):
        tokens = own.blocks[host] / BLOCKS
        bundle = 1.0 if joined else tokens
        shares = np.array([tokens, bundle * own.heads[host] / HEADS])
        kept = sum(by_rank[device] for device in devices)
        # K, V of a head that two ranks share are kept twice.
        assert item.kept[number] @ shares <= kept * (1 + 1e-9)
        assert item.kept[number] @ shares >= kept * 0.9
        assert item.transient[number] @ shares <= sum(working[d] for d in devices) * (1 + 1e-9)


def test_room_shrinks_with_states_and_neighbours(problem: Instance) -> None:
    pricer = StagePricer(problem, 4)
    shape = column_shape(pricer.rates, range(16))
    rooms = [
        host_memory(
            problem, shape, StateMode(1, "step"), pricer.sizes[j > 0], StagePlace(j, place, 4),
            float(TOKENS), (4, 0, 0), smallest_stage=4,
        ).room
        for j, place in ((1, 1), (1, 0))
    ]  # fmt: skip
    assert (rooms[0] != rooms[1]).all()
    last = host_memory(
        problem, shape, StateMode(1, "step"), pricer.sizes[0], StagePlace(0, 0, 4),
        float(TOKENS), (4, 0, 0),
    )  # fmt: skip
    assert last.logits == TOKENS * 32_000 * (2 + 8)
    assert last.logits_tile == problem.cost.logits_tile_tokens / TOKENS


def test_rings_share_evenly_and_turn_back(problem: Instance) -> None:
    hosts = [[d.id for d in problem.cluster.devices_of(h)] for h in problem.cluster.hosts()]
    own = Suggestion(0.0, BundledStage(((0, 1),), (2,), None), (321, 191), (9, 7))
    ring = bundled_ring(problem, hosts, own)
    assert [len(group.ranks) for group in ring] == [8, 8]
    assert sum(rank.tokens for group in ring for rank in group.ranks) == TOKENS
    for group in ring:
        covered = sorted(h for rank in group.ranks for h in range(*rank.q_heads))
        assert covered == list(range(HEADS))
    first, second = ([rank.device.split(".")[0] for rank in g.ranks] for g in ring)
    assert first == second[::-1]
    assert evenly(7, 3) == [3, 2, 2]
    assert largest_remainder(np.array([[1.0, 1.0, 2.0]]), 5).sum() == 5
