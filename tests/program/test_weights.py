"""Gradients of every unit meet, every parameter is counted and stepped as often as it should."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from hexisolve.plan.plan import BatchPlan, Chunk, Layout, Plan, ReplicaBatch, Slice
from hexisolve.program import instructions as ins
from hexisolve.program.compile import compile_plan
from hexisolve.program.match import match
from hexisolve.program.rank_program import STEP_END, Programs
from tests.plans import CASES, make, tiny_model


def two_replicas(zeros=(0, 0), tied=False):  # type: ignore[no-untyped-def]
    """Unlike replicas: 3 ranks in 2 stages cut after layer 1, and 2 ranks in one stage."""
    model = tiny_model(tied_embeddings=tied)
    stages = [
        ((0, 1), [[(2, (0, 6))]]),
        ((1, 4), [[(1, (0, 2)), (2, (2, 6))]]),
        ((0, 4), [[(1, (0, 6))], [(3, (0, 6))]]),
    ]
    instance, plan = make(stages, [[0], [1], [2]], [11, 14, 19], model=model)
    (replica,) = plan.layout.replicas
    first = replace(replica, stages=tuple(replace(s, zero=zeros[0]) for s in replica.stages[:2]))
    second = replace(replica, stages=(replace(replica.stages[2], zero=zeros[1]),))
    _, one = make(stages[:2], [[0], [1]], [11, 14, 19], model=model)
    _, two = make(stages[2:], [[2]], [11, 14, 19], model=model)
    batches = (one.batch.replicas[0], two.batch.replicas[0])
    return instance, Plan(Layout((first, second)), BatchPlan(batches))


def step_end(programs: Programs, kind: type) -> dict[int, list]:  # type: ignore[type-arg]
    return {
        program.rank: [
            item.instruction
            for item in program.body
            if getattr(item, "chunk", None) == STEP_END and isinstance(item.instruction, kind)
        ]
        for program in programs.ranks
    }


PLANS = dict(CASES) | {
    "replicas_0_0": two_replicas,
    "replicas_1_1": lambda: two_replicas((1, 1)),
    "replicas_0_1": lambda: two_replicas((0, 1)),
    "replicas_tied": lambda: two_replicas((1, 0), tied=True),
}


@pytest.mark.parametrize("name", sorted(PLANS))
def test_norm_counts_every_parameter_once(name: str) -> None:
    instance, plan = PLANS[name]()
    programs = compile_plan(instance, plan)
    counted: dict[str, list[tuple[int, int]]] = {}
    for (norm,) in step_end(programs, ins.Norm).values():
        for unit, start, stop in norm.parts:
            counted.setdefault(unit, []).append((start, stop))
    total = 0
    for intervals in counted.values():
        end = 0
        for start, stop in sorted(intervals):
            assert start == end
            end = stop
        total += end
    assert total == instance.model.parameters


@pytest.mark.parametrize("name", sorted(PLANS))
def test_every_copy_of_every_parameter_is_stepped_once(name: str) -> None:
    programs = compile_plan(*PLANS[name]())
    stepped: Counter[tuple[int, int, str]] = Counter()
    held: Counter[tuple[int, int, str]] = Counter()
    for program in programs.ranks:
        (step,) = step_end(programs, ins.Step)[program.rank]
        for unit, start, stop in step.parts:
            stepped[program.replica, program.stage, unit] += stop - start
        members = sum(
            (p.replica, p.stage) == (program.replica, program.stage) for p in programs.ranks
        )
        for unit in program.units:
            key = (program.replica, program.stage, unit.name)
            held[key] = unit.size * (members if program.zero == 0 else 1)
    assert stepped == held


@pytest.mark.parametrize("name", sorted(name for name in PLANS if name.startswith("replicas")))
def test_replicas_compile_and_match(name: str) -> None:
    programs = compile_plan(*PLANS[name]())
    assert match(programs).problems == ()


@pytest.mark.parametrize("name", ["replicas_0_0", "replicas_1_1", "replicas_0_1", "replicas_tied"])
def test_gradients_of_every_holder_meet(name: str) -> None:
    """Summing by the program gives every stepped element the sum over all ranks that hold it."""
    programs = compile_plan(*PLANS[name]())
    sums = _play_sums(programs)
    holders: dict[str, int] = Counter(
        unit.name for program in programs.ranks for unit in program.units
    )
    for program in programs.ranks:
        (step,) = step_end(programs, ins.Step)[program.rank]
        for unit, start, stop in step.parts:
            assert set(sums[program.rank][unit][start:stop]) <= {holders[unit]}


def _play_sums(programs: Programs) -> dict[int, dict[str, list[int]]]:
    """Every rank starts with a gradient of ones; collectives and transfers add them up."""
    grads = {p.rank: {u.name: [1] * u.size for u in p.units} for p in programs.ranks}
    streams = {
        p.rank: [
            i.instruction for i in p.body
            if getattr(i, "chunk", None) == STEP_END
            and isinstance(i.instruction, ins.Reduce | ins.Gather | ins.Start)
            and getattr(i.instruction, "buffer", "") != "weight"
        ]
        for p in programs.ranks
    }  # fmt: skip
    # The three phases are reached by all ranks in order: reduce in stages, meet, gather.
    for rank, stream in streams.items():
        for item in stream:
            if isinstance(item, ins.Reduce) and item.members[0] == rank:
                total = [
                    sum(column)
                    for column in zip(*(grads[m][item.unit] for m in item.members), strict=True)
                ]
                for member in item.members:
                    grads[member][item.unit] = list(total)
                    if item.op == "reduce_scatter":
                        first = sum(item.counts[: item.members.index(member)])
                        stop = first + item.counts[item.members.index(member)]
                        void = [0] * len(total)
                        void[first:stop] = total[first:stop]
                        grads[member][item.unit] = void
    sent = {
        (rank, t.peer, t.unit, t.rows[0]): grads[rank][t.unit][slice(*t.rows[0])]
        for rank, stream in streams.items()
        for item in stream
        if isinstance(item, ins.Start)
        for t in item.transfers
        if t.is_send
    }
    for rank, stream in streams.items():
        for item in stream:
            for t in getattr(item, "transfers", ()):
                if not t.is_send:
                    low, high = t.rows[0]
                    payload = sent[t.peer, rank, t.unit, (low, high)]
                    own = grads[rank][t.unit]
                    own[low:high] = [a + b for a, b in zip(own[low:high], payload, strict=True)]
    for rank, stream in streams.items():
        for item in stream:
            if isinstance(item, ins.Gather) and item.members[0] == rank:
                whole: list[int] = []
                for member, count in zip(item.members, item.counts, strict=True):
                    own = grads[member][item.unit]
                    whole += own[len(whole) : len(whole) + count]
                for member in item.members:
                    grads[member][item.unit] = list(whole)
    return grads


def test_zero_3_gathers_before_use_and_reduces_as_the_plan_says() -> None:
    once = compile_plan(*CASES["zero_3"]())
    per_chunk = compile_plan(*CASES["zero_3_chunk"]())
    for programs, in_template in ((once, False), (per_chunk, True)):
        program = programs.ranks[0]
        for template in program.templates.values():
            kinds = [type(item).__name__ for item in template.instructions]
            assert kinds[0] == "Gather"
            assert ("Reduce" in kinds) == (in_template and template.phase == "backward")
    assert step_end(once, ins.Reduce)[0]
    assert not step_end(per_chunk, ins.Reduce)[0]
    assert all(unit.share[1] <= unit.size for unit in once.ranks[0].units)


def test_tied_table_is_one_unit_with_a_copy_on_the_last_stage() -> None:
    programs = compile_plan(*CASES["tied"]())
    for program in programs.ranks:
        names = [unit.name for unit in program.units]
        assert names.count("embedding") == 1
        assert "head" not in names
    starts = step_end(programs, ins.Start)
    assert all(starts[rank] for rank in range(4))


def test_single_chunk_batch_of_a_replica() -> None:
    """A replica whose pipelines are several runs them one after another."""
    instance, plan = CASES["two_stages"]()
    (replica,) = plan.batch.replicas
    (pipeline,) = replica.pipelines
    parts = []
    for idx, chunk in enumerate(pipeline.chunks):
        parts.append(
            replace(
                pipeline,
                chunks=(Chunk((Slice(idx, 0, chunk.num_tokens),)),),
                schedule=(("F0", "B0"), ("F0", "B0")),
                recompute=tuple(row[:1] for row in pipeline.recompute),
            )
        )
    batch = BatchPlan((ReplicaBatch(tuple(parts)),))
    programs = compile_plan(instance, replace(plan, batch=batch))
    assert match(programs).ok
    assert len(programs.ranks[0].shards) == 3
