"""The clock: fast play equals flat play, and the cost model where nothing is finer."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from hexisolve.data.constants import CostConstants
from hexisolve.data.instance import Instance
from hexisolve.data.instance_file import resolve_cluster, resolve_model
from hexisolve.data.workload import Workload
from hexisolve.errors import UnsupportedPlanError
from hexisolve.plan.evaluate import evaluate
from hexisolve.plan.plan import BatchPlan, Plan, ReplicaBatch
from hexisolve.program.clock import play_flat, simulate, simulate_programs
from hexisolve.program.compile import compile_plan
from hexisolve.program.link_sharing import Load, SharedLinks
from hexisolve.program.played import Aside, Await, Join, Meet, Played, Post, Run, Send
from hexisolve.program.player import Player, StuckError
from hexisolve.program.timeline import Timeline
from hexisolve.solvers.baselines import baselines
from hexisolve.solvers.solve import solve
from tests.plan.plan_examples import (
    instance_of,
    model_of,
    plan_of,
    stage_of,
    two_hosts,
    whole_chunks,
)
from tests.plans import CASES, large, one_rank, three_stages, two_stages


@pytest.fixture(scope="module")
def played() -> Timeline:
    return simulate(*three_stages(), ring_blocks=8)


@pytest.mark.parametrize("name", sorted(CASES))
def test_layers_played_once_give_the_time_of_every_event(name: str) -> None:
    programs = compile_plan(*CASES[name](), ring_blocks=8)
    flat, fast = play_flat(programs), simulate_programs(programs)
    assert fast.step_time_s == pytest.approx(flat.step_time_s, rel=1e-5)
    for ours, theirs in zip(fast.devices, flat.devices, strict=True):
        assert ours.busy_s == pytest.approx(theirs.busy_s, rel=1e-6)


def test_one_device_takes_what_evaluate_says() -> None:
    """No links, no bubbles: FLOP over rate, launches, optimizer."""
    instance, plan = one_rank()
    assert simulate(instance, plan).step_time_s == pytest.approx(
        evaluate(instance, plan).step_time_s, rel=1e-9
    )


def test_a_pipeline_of_equal_stages_has_its_bubbles() -> None:
    """(n - 1 + P) t for n equal chunks on P equal stages, transfers apart."""
    instance, plan = large(4, 4, 8, 8, 1, context_tokens=4096)
    timeline = simulate(instance, plan)
    evaluation = evaluate(instance, plan)
    assert timeline.step_time_s == pytest.approx(evaluation.step_time_s, rel=0.05)
    assert timeline.bubble_share == pytest.approx(evaluation.bubble_share, abs=0.02)


@pytest.mark.parametrize("name", ["ulysses", "usp", "proportional"])
def test_baselines_lie_within_5_percent_of_evaluate(name: str) -> None:
    workload = Workload(context_tokens=65_536, batch_sequences=2)
    instance = Instance(resolve_cluster("mixed-16"), resolve_model("llama-2-13b"), workload)
    plan = baselines(instance, names=[name])[name].plan
    assert plan is not None
    timeline = simulate(instance, plan)
    assert timeline.step_time_s == pytest.approx(evaluate(instance, plan).step_time_s, rel=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("cluster", ["mixed-32", "mixed-32-fast"])
def test_solver_plans_lie_within_5_percent_of_evaluate(cluster: str) -> None:
    workload = Workload(context_tokens=65_536, batch_sequences=8)
    instance = Instance(resolve_cluster(cluster), resolve_model("llama-3.1-70b"), workload)
    plan = solve(instance, time_limit_s=10, relative_gap=0.01).plan
    assert plan is not None
    timeline = simulate(instance, plan)
    assert timeline.step_time_s == pytest.approx(evaluate(instance, plan).step_time_s, rel=0.05)


def test_many_layers_and_chunks_need_few_plays() -> None:
    instance, plan = large(16, 2, 40, 8, 2, context_tokens=16_384)
    timeline = simulate(instance, plan)
    assert len(timeline.runs) == 40 * 8 * 2
    assert timeline.num_plays <= 30


def test_overheads_cost_what_they_say() -> None:
    """15 us for each of 8 launches in 4 layers, forward and backward, 2 chunks."""
    instance, plan = one_rank()
    free = replace(instance, cost=CostConstants(launch_overhead_s=0.0))
    difference = simulate(instance, plan).step_time_s - simulate(free, plan).step_time_s
    assert difference == pytest.approx(15e-6 * 8 * 4 * 2 * 2, rel=1e-6)


def test_faster_links_and_devices_never_make_a_step_longer() -> None:
    workload = Workload(context_tokens=16_384, batch_sequences=2)
    model = resolve_model("llama-2-7b")
    slow = Instance(resolve_cluster("mixed-16"), model, workload)
    plan = baselines(slow, names=["usp"])["usp"].plan
    assert plan is not None
    slow_s = simulate(slow, plan).step_time_s
    wide = Instance(resolve_cluster("mixed-16-fast"), model, workload)
    assert simulate(wide, plan).step_time_s <= slow_s
    quick = Instance(slow.cluster.with_speed("A100-SXM-80GB", 1.5), model, workload)
    assert simulate(quick, plan).step_time_s < slow_s


def test_seconds_of_a_device_sum_to_the_step(played: Timeline) -> None:
    for device in played.devices:
        assert device.busy_s > 0
        assert device.busy_s + device.exchange_s + device.idle_s == pytest.approx(
            played.step_time_s
        )


def test_spans_of_a_rank_do_not_overlap_and_name_their_layer(played: Timeline) -> None:
    for times in played.ranks:
        spans = list(played.spans(times.rank))
        for first, second in pairwise(spans):
            assert first.end_s <= second.start_s + 1e-12
        layers = {span.layer for span in spans if span.kind == "attention"}
        assert layers == set(range(*two_or_three_layers(times.stage)))
        assert spans[-1].end_s <= played.step_time_s + 1e-12


def two_or_three_layers(stage: int) -> tuple[int, int]:
    return three_stages()[1].layout.replicas[0].stages[stage].layers


def test_operations_follow_the_schedule(played: Timeline) -> None:
    _, plan = three_stages()
    rows = plan.batch.replicas[0].pipelines[0].schedule
    for number, row in enumerate(rows):
        assert [f"{kind}{chunk}" for _, _, kind, chunk in played.operations(number)] == list(row)


@pytest.mark.parametrize("detail", ["layer", "instruction"])
def test_the_trace_has_a_row_for_every_rank(played: Timeline, tmp_path: Path, detail: str) -> None:
    path = tmp_path / "step trace é.json"
    played.write_trace(path, detail=detail)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == [path]
    events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    slices = [event for event in events if event["ph"] == "X"]
    assert {(e["pid"], e["tid"]) for e in slices} == {
        (times.stage_number, times.rank) for times in played.ranks
    }
    names = {e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert names == {f"rank {times.rank} {times.device}" for times in played.ranks}
    assert all(event["dur"] >= 0 for event in slices)
    latest = max(event["ts"] + event["dur"] for event in slices)
    assert latest == pytest.approx(played.step_time_s * 1e6, rel=1e-3)


def test_the_text_has_a_line_for_every_stage(played: Timeline) -> None:
    lines = played.text(80).splitlines()
    rows = [line for line in lines if line.startswith("stage")]
    assert len(rows) == 3
    assert all(len(row) == 80 for row in rows)
    assert "0" in rows[0]
    assert "a" in rows[0]
    assert rows[2].index("0") > rows[0].index("0 " if "0 " in rows[0] else "0")


def test_offload_is_refused_by_name() -> None:
    instance, plan = two_stages()
    (batch,) = plan.batch.replicas
    (pipeline,) = batch.pipelines
    moved = replace(pipeline, offload=((1, 0, 0), (0, 0, 0)))
    changed: Plan = replace(plan, batch=BatchPlan((ReplicaBatch((moved,)),)))
    with pytest.raises(UnsupportedPlanError, match="offload"):
        simulate(instance, changed)


def test_ranks_that_wait_for_ever_are_named() -> None:
    lists: dict[int, list[Played]] = {0: [Run(1.0, "pre"), Await("never")], 1: []}
    lists[0].insert(1, Post("never", (("channel", (lone_send(),)),)))
    with pytest.raises(StuckError, match=r"ranks \[0\]"):
        Player(lists, SharedLinks([1.0])).play()


def lone_send():  # type: ignore[no-untyped-def]
    return Send(("channel", 0, 1), True, Load((0,), (1.0,), (1.0,), 0.0))


def test_a_collective_begins_when_the_last_member_has_come() -> None:
    meet = Meet("channel", 2, Load((0,), (4.0,), (1.0,), 0.5))
    lists: dict[int, list[Played]] = {0: [Run(1.0, "pre"), meet], 1: [Run(3.0, "pre"), meet]}
    player = Player(lists, SharedLinks([2.0]))
    assert player.play() == {0: 5.5, 1: 5.5}
    kinds = [(span.kind, span.start_s, span.end_s) for span in player.spans()[0]]
    assert kinds == [("pre", 0.0, 1.0), ("wait", 1.0, 3.0), ("exchange", 3.0, 5.5)]


def test_a_collective_aside_moves_hop_by_hop() -> None:
    """Each of its two links is busy with something else for 2 of 6 s, one after the other.

    A collective that moved as one would stand still for all 4 of them and end at 8.
    """

    def load(edge: int, num_bytes: float, flows: float = 1.0) -> Load:
        return Load((edge,), (num_bytes,), (flows,), 0.0)

    hops = (load(0, 4.0), load(1, 4.0))
    gather = Meet("states", 2, Load((0, 1), (4.0, 4.0), (1.0, 1.0), 0.0), hops).yielding()
    assert {hop.num_flows for hop in gather.hops} == {gather.load.num_flows[:1]}
    lists: dict[int, list[Played]] = {}
    for rank in (0, 1):
        lists[rank] = [Aside((gather,))]
        for edge in (0, 1):
            send = Send(("ring", 0, 1), rank == 0, load(edge, 2.0))
            lists[rank] += [Post("block", (("ring", (send,)),)), Await("block")]
        lists[rank].append(Join())
    ends = Player(lists, SharedLinks([1.0, 1.0])).play()
    assert ends == {0: pytest.approx(6.0), 1: pytest.approx(6.0)}


@pytest.mark.parametrize("policy", ["layer", "full"])
@pytest.mark.parametrize("gradients", ["step", "chunk"])
@pytest.mark.parametrize("link", [2e5, 8e5, 1e7])
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_gathers_beside_busy_links_cost_what_evaluate_says(
    groups: int, link: float, gradients: str, policy: str
) -> None:
    """From links that hold everything up to links that hold nothing up (cost equation 9)."""
    size, heads = 4 // groups, groups
    ring = [
        [(f"d{size * g + r}", 250, (r * heads, (r + 1) * heads)) for r in range(size)]
        for g in range(groups)
    ]
    stage = stage_of((0, 6), *ring, zero=3, zero3_gradients=gradients)
    instance = instance_of(two_hosts(link), model_of(6))
    plan = plan_of([stage], whole_chunks([1000] * 2), policy)
    timeline = simulate(instance, plan)
    assert timeline.step_time_s == pytest.approx(evaluate(instance, plan).step_time_s, rel=0.02)


@pytest.mark.parametrize("layers", [(2, 2), (4, 2)])
@pytest.mark.parametrize("link", [5.5e5, 6e5])
def test_stages_that_share_a_wire_cost_what_evaluate_says(
    layers: tuple[int, int], link: float
) -> None:
    """Two rings between the same hosts want more than all of the wire in the time of a chunk.

    The longest path alone is 15 to 20% below a play of every event (equation 12).
    """
    stages = [
        stage_of(own, [(f"d{p}", 500, (0, 4))], [(f"d{p + 2}", 500, (0, 4))])
        for p, own in enumerate([(0, layers[0]), (layers[0], sum(layers))])
    ]
    instance = instance_of(two_hosts(link), model_of(sum(layers)), batch_sequences=8)
    plan = plan_of(stages, whole_chunks([1000] * 8))
    evaluation = evaluate(instance, plan)
    wire_s = evaluation.edge_seconds["left", "right"]
    busiest_s = max(sum(stage.forward_s) + sum(stage.backward_s) for stage in evaluation.stages)
    assert wire_s > busiest_s
    flat_s = play_flat(compile_plan(instance, plan)).step_time_s
    assert flat_s > 1.1 * (evaluation.step_time_s - evaluation.edge_wait_s)
    assert flat_s == pytest.approx(evaluation.step_time_s, rel=0.05)
    assert simulate(instance, plan).step_time_s == pytest.approx(evaluation.step_time_s, rel=0.05)
    for stage in evaluation.stages:
        assert stage.edge_wait_s > 0
        assert stage.breakdown().total_s == pytest.approx(stage.busy_s, rel=1e-9)
