"""The checker: accepts legal plans, and has a mutant for every rule it must catch."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from plan_examples import (
    cluster_of,
    four_device_instance,
    instance_of,
    model_of,
    plan_of,
    stage_of,
    two_stage_plan,
    whole_chunks,
)

from hexisolve.data.cluster import Cluster
from hexisolve.plan.check import RULES, check_plan
from hexisolve.plan.plan import Chunk, Plan, Slice

INSTANCE = four_device_instance()


def on_stage(stage_idx=0, **changes):  # type: ignore[no-untyped-def]
    """Change one stage of the layout."""

    def mutate(plan: Plan) -> Plan:
        stages = list(plan.layout.replicas[0].stages)
        stages[stage_idx] = replace(stages[stage_idx], **changes)
        return with_stages(plan, stages)

    return mutate


def with_stages(plan, stages):  # type: ignore[no-untyped-def]
    replica = replace(plan.layout.replicas[0], stages=tuple(stages))
    return replace(plan, layout=replace(plan.layout, replicas=(replica,)))


def on_rank(stage_idx=0, group_idx=0, rank_idx=0, **changes):  # type: ignore[no-untyped-def]
    """Change one rank of the layout."""

    def mutate(plan: Plan) -> Plan:
        ring = list(plan.layout.replicas[0].stages[stage_idx].ring)
        ranks = list(ring[group_idx].ranks)
        ranks[rank_idx] = replace(ranks[rank_idx], **changes)
        ring[group_idx] = replace(ring[group_idx], ranks=tuple(ranks))
        return on_stage(stage_idx, ring=tuple(ring))(plan)

    return mutate


def on_pipeline(change):  # type: ignore[no-untyped-def]
    """Change the only pipeline; `change` maps it to new fields."""

    def mutate(plan: Plan) -> Plan:
        pipeline = plan.batch.replicas[0].pipelines[0]
        batch = replace(plan.batch.replicas[0], pipelines=(replace(pipeline, **change(pipeline)),))
        return replace(plan, batch=replace(plan.batch, replicas=(batch,)))

    return mutate


def swapped(stage_idx, one, other):  # type: ignore[no-untyped-def]
    """Exchange two operations of a stage's schedule."""

    def change(pipeline):  # type: ignore[no-untyped-def]
        exchanged = {one: other, other: one}
        rows = list(pipeline.schedule)
        rows[stage_idx] = tuple(exchanged.get(op, op) for op in rows[stage_idx])
        return {"schedule": tuple(rows)}

    return on_pipeline(change)


def first_chunk(**changes):  # type: ignore[no-untyped-def]
    return on_pipeline(lambda p: {"chunks": (replace(p.chunks[0], **changes), *p.chunks[1:])})


def all_zero_weights(field):  # type: ignore[no-untyped-def]
    def mutate(plan: Plan) -> Plan:
        return on_rank(0, 0, 1, **{field: 0})(on_rank(0, 0, 0, **{field: 0})(plan))

    return mutate


def one_more_replica(plan: Plan) -> Plan:
    return replace(plan, layout=replace(plan.layout, replicas=()))


def split_over_pipelines(plan: Plan) -> Plan:
    pipeline = plan.batch.replicas[0].pipelines[0]
    return replace(
        plan,
        batch=replace(
            plan.batch, replicas=(replace(plan.batch.replicas[0], pipelines=(pipeline,) * 2),)
        ),
    )


PIECES = (((Slice(0, 0, 700),), (Slice(0, 700, 1000),)), ((Slice(0, 0, 1000),), ()))

DEADLOCKED = ("F2", "B2", "F0", "B0", "F1", "B1", "F3", "B3")

MUTANTS = [
    ("schema", lambda plan: replace(plan, schema_version=2), "schema version 2"),
    ("replicas", one_more_replica, "no replica"),
    ("replicas", lambda plan: with_stages(plan, []), "no stage"),
    ("stage-count", lambda plan: with_stages(plan, plan.layout.replicas[0].stages * 2),
     "4 stages share 2 layers"),
    ("empty-stage", on_stage(1, layers=(1, 1)), "layers 1..1 are none"),
    ("layers", on_stage(0, layers=(0, 2)), "repeats layers 1..2"),
    ("layers", on_stage(1, layers=(2, 3)), "leaves out layers 1..2"),
    ("layers", on_stage(1, layers=(1, 3)), "ends at layer 3, the model has 2"),
    ("layers", on_stage(1, layers=(-1, 2)), "no range"),
    ("ring", on_stage(0, ring=()), "at least one head group"),
    ("ring-kind", on_stage(1, ring_kind="kvq"), "'kvq' cannot travel"),
    ("zero", on_stage(0, zero=2), "ZeRO mode 2 is unknown"),
    ("zero3-gradients", on_stage(0, zero=3, zero3_gradients="never"), "'never'"),
    ("devices", on_rank(device="d9"), "no device 'd9'"),
    ("device-once", on_rank(1, 0, 0, device="d0"), "d0 is already used in replica 0, stage 0"),
    ("heads", on_rank(q_heads=(0, 2)), "query heads 2 are on no rank: the group computes 3 heads"),
    ("heads", on_rank(q_heads=(0, 4)), "query heads 3 are on several ranks"),
    ("heads", on_rank(q_heads=(0, 5)), "no range within 0..4"),
    ("heads", on_rank(q_heads=(3, 0)), "nearest: "),
    ("tokens", on_rank(tokens=-1), "whole numbers of at least 0"),
    ("tokens", all_zero_weights("tokens"), "all 0"),
    ("state-shares", on_rank(state_share=-1), "whole numbers of at least 0"),
    ("state-shares", all_zero_weights("state_share"), "all 0"),
    ("batch-shape", on_pipeline(lambda p: {"schedule": p.schedule[:1]}), "1 rows for 2 stages"),
    ("batch-shape", on_pipeline(lambda p: {"recompute": p.recompute[:1]}), "1 rows for 2 stages"),
    ("batch-shape", on_pipeline(lambda p: {"recompute": (p.recompute[0][:1], p.recompute[1])}),
     "1 entries for 4 chunks"),
    ("batch-shape", on_pipeline(lambda p: {"chunks": (), "schedule": ((), ())}), "has no chunk"),
    ("chunks", first_chunk(slices=()), "no tokens"),
    ("chunks", first_chunk(slices=(Slice(9, 0, 1000),)), "sequence 9 is none of the 4"),
    ("chunks", first_chunk(slices=(Slice(0, 0, 1001),)), "no part of a sequence of 1000"),
    ("tokens-covered", first_chunk(slices=(Slice(0, 0, 900),)), "900..1000 of 1000 are on no"),
    ("tokens-covered", first_chunk(slices=(Slice(1, 0, 1000),)), "0..1000 of 1000 are in two"),
    ("one-pipeline", split_over_pipelines, "2 pipelines"),
    ("one-slice", first_chunk(slices=(Slice(0, 0, 500), Slice(0, 500, 1000))), "one is the most"),
    ("schedule", on_pipeline(lambda p: {"schedule": (p.schedule[0][:-1], p.schedule[1])}),
     "B3 is missing"),
    ("schedule", on_pipeline(lambda p: {"schedule": ((*p.schedule[0], "F9"), p.schedule[1])}),
     "F9 names none of the 4 chunks"),
    ("schedule", on_pipeline(lambda p: {"schedule": ((*p.schedule[0], "F0"), p.schedule[1])}),
     "F0 stands there 2 times"),
    ("schedule", on_pipeline(lambda p: {"schedule": ((*p.schedule[0], "X0"), p.schedule[1])}),
     "'X0' is no operation"),
    ("forward-first", swapped(1, "F1", "B1"), "B1 stands before F1"),
    ("deadlock", on_pipeline(lambda p: {"schedule": (p.schedule[0],
                                                     DEADLOCKED)}),
     "stage 1 cannot start F2"),
    ("recompute", on_pipeline(lambda p: {"recompute": (({"full": 2},) * 4, p.recompute[1])}),
     "name 2 layers, the stage has 1"),
    ("recompute", on_pipeline(lambda p: {"recompute": (({"full": -1},) * 4, p.recompute[1])}),
     "-1 layers"),
    ("policy", on_pipeline(lambda p: {"recompute": (({"some": 1},) * 4, p.recompute[1])}),
     "'some' is unknown"),
    ("offload", on_pipeline(lambda p: {"offload": ((2, 0, 0, 0), (0, 0, 0, 0))}),
     "offload of 2 layers"),
    ("offload", on_pipeline(lambda p: {"offload": ((1, 0, 0, 0), (0, 0, 0, 0))}),
     "no link to host memory"),
    ("pieces", first_chunk(pieces=PIECES[:1]), "1 of 2 stages"),
    ("pieces", first_chunk(pieces=(PIECES[0][:1], PIECES[1])), "1 of 2 ranks"),
    ("pieces", first_chunk(pieces=(PIECES[0], ((Slice(0, 0, 900),), ()))), "at 900..1000"),
    ("pieces", first_chunk(pieces=(PIECES[0], ((Slice(0, 0, 1000),), (Slice(0, 5, 9),)))),
     "leave a gap or overlap"),
    ("pieces", first_chunk(pieces=(PIECES[0], ((Slice(0, 0, 1000),), (Slice(1, 0, 9),)))),
     "sequence 1, which the chunk does not hold"),
]  # fmt: skip


def test_the_plan_that_is_mutated_is_legal():  # type: ignore[no-untyped-def]
    assert check_plan(INSTANCE, two_stage_plan()) == []
    assert check_plan(INSTANCE, first_chunk(pieces=PIECES)(two_stage_plan())) == []


@pytest.mark.parametrize(("rule", "mutate", "words"), MUTANTS)
def test_every_mutant_is_caught(rule, mutate, words):  # type: ignore[no-untyped-def]
    found = check_plan(INSTANCE, mutate(two_stage_plan()))
    assert words in "\n".join(str(v) for v in found if v.rule == rule)


def rules_of(instance, plan):  # type: ignore[no-untyped-def]
    return {violation.rule for violation in check_plan(instance, plan)}


def test_memory_names_the_device_and_the_bytes():  # type: ignore[no-untyped-def]
    cluster = cluster_of((1.0,) * 4, memory=[10**9, 10**9, 10**9, 10**6])
    (found,) = check_plan(instance_of(cluster), two_stage_plan())
    assert found.rule == "memory"
    assert found.where == "replica 0, stage 1 on d3"
    assert "needs" in found.message
    assert "has 976.6 KiB (1000000 bytes)" in found.message
    assert "states" in found.message


def test_zero_modes_are_those_the_workload_allows():  # type: ignore[no-untyped-def]
    instance = four_device_instance(zero=(0, 1))
    assert rules_of(instance, on_stage(0, zero=1)(two_stage_plan())) == set()
    assert rules_of(instance, on_stage(0, zero=3)(two_stage_plan())) == {"zero"}


def test_devices_must_compute_in_the_dtype():  # type: ignore[no-untyped-def]
    instance = instance_of(cluster_of((1.0,) * 4, dtypes=("fp16", "fp32")), dtype="fp16")
    assert check_plan(instance, two_stage_plan()) == []
    # The instance refuses this by itself; the checker does not rely on that.
    object.__setattr__(instance, "workload", replace(instance.workload, dtype="bf16"))
    found = check_plan(instance, two_stage_plan())
    assert [v.rule for v in found] == ["dtype"] * 4  # one per type
    assert "d0 (type0) cannot compute in bf16; they have fp16, fp32" in found[0].message


def test_devices_without_a_common_network_are_never_in_one_plan():  # type: ignore[no-untyped-def]
    document = cluster_of((1.0,) * 4).to_dict()
    document["nodes"].append({"id": "island", "kind": "switch"})
    for edge in document["edges"]:
        for end, other in (("source", "target"), ("target", "source")):
            if edge[end] in ("d2", "d3"):
                edge[other] = "island"
    instance = instance_of(Cluster.from_dict(document))
    (found,) = check_plan(instance, two_stage_plan())
    assert found.rule == "connected"
    assert "d0 has no way to d2, d3" in found.message


SLICED = [
    Chunk((Slice(0, 0, 500),)),
    Chunk((Slice(0, 500, 1000),)),
    *whole_chunks([1000] * 4)[1:],
]


def sliced_plan(first_row, second_row):  # type: ignore[no-untyped-def]
    plan = plan_of(two_stage_plan().layout.replicas[0].stages, SLICED)
    rows = (tuple(first_row.split()), tuple(second_row.split()))
    return on_pipeline(lambda _: {"schedule": rows})(plan)


LEGAL_ROWS = (
    "F0 F1 F2 B1 F3 B0 F4 B2 B3 B4",
    "F0 F1 B1 F2 B0 F3 B2 F4 B3 B4",
)


def test_slices_in_causal_order_are_legal():  # type: ignore[no-untyped-def]
    assert check_plan(INSTANCE, sliced_plan(*LEGAL_ROWS)) == []


def test_slices_run_forward_in_order():  # type: ignore[no-untyped-def]
    rows = [row.replace("F0 F1", "F1 F0") for row in LEGAL_ROWS]
    assert rules_of(INSTANCE, sliced_plan(*rows)) == {"slice-order"}


def test_slices_run_backward_in_reverse():  # type: ignore[no-untyped-def]
    rows = ("F0 F1 F2 B0 F3 B1 F4 B2 B3 B4", "F0 F1 B0 F2 B1 F3 B2 F4 B3 B4")
    assert rules_of(INSTANCE, sliced_plan(*rows)) == {"backward-order"}


def test_full_attention_refuses_slices():  # type: ignore[no-untyped-def]
    instance = four_device_instance(attention="full")
    assert rules_of(instance, two_stage_plan()) == set()
    assert rules_of(instance, sliced_plan(*LEGAL_ROWS)) == {"full-attention"}


def test_a_plan_of_another_batch_is_refused():  # type: ignore[no-untyped-def]
    instance = four_device_instance(batch_sequences=5)
    assert rules_of(instance, two_stage_plan()) == {"tokens-covered"}


def test_every_rule_has_a_mutant():  # type: ignore[no-untyped-def]
    elsewhere = {
        "memory", "dtype", "connected", "slice-order", "backward-order", "full-attention",
    }  # fmt: skip
    assert {rule for rule, _, _ in MUTANTS} | elsewhere == set(RULES)


def test_all_broken_rules_are_told_at_once_with_the_nearest_values():  # type: ignore[no-untyped-def]
    """Case 7."""
    plan = two_stage_plan()
    for mutate in (
        on_rank(q_heads=(0, 2)),
        on_rank(1, 0, 0, device="d7"),
        on_stage(1, ring_kind="x"),
        on_rank(0, 0, 1, tokens=-5),
    ):
        plan = mutate(plan)
    found = check_plan(INSTANCE, plan)
    assert {v.rule for v in found} == {"heads", "devices", "ring-kind", "tokens"}
    heads = next(v for v in found if v.rule == "heads")
    assert "nearest: 0..3, 3..4" in heads.message


wild = st.one_of(st.integers(-3, 5), st.sampled_from(["", "F0", "kv", "d0", None, 1.5, True]))


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.data())
def test_nonsense_is_judged_and_never_raises(data):  # type: ignore[no-untyped-def]
    plan = two_stage_plan()
    fields = st.sampled_from(["device", "tokens", "q_heads", "state_share"])
    for _ in range(data.draw(st.integers(1, 4))):
        name = data.draw(fields)
        value = data.draw(st.tuples(wild, wild) if name == "q_heads" else wild)
        where = [data.draw(st.sampled_from(place)) for place in ((0, 1), (0,), (0,))]
        plan = on_rank(*where, **{name: value})(plan)
        stage_field = data.draw(st.sampled_from(["layers", "ring_kind", "zero"]))
        value = data.draw(st.tuples(wild, wild) if stage_field == "layers" else wild)
        plan = on_stage(data.draw(st.integers(0, 1)), **{stage_field: value})(plan)
    slices = data.draw(
        st.lists(st.builds(Slice, st.integers(-1, 5), st.integers(-5, 1500), st.integers(-5, 1500)))
    )
    plan = first_chunk(slices=tuple(slices))(plan)
    for violation in check_plan(INSTANCE, plan):
        assert violation.rule in RULES
        assert violation.message


def test_more_heads_than_ranks_can_share_evenly_are_legal():  # type: ignore[no-untyped-def]
    """Cases 1 and 3: 40 heads on 16 ranks, 28 on 8, 7 on 4: uneven ranges are legal."""
    for num_heads, num_kv, num_ranks in (
        (40, 8, 16),
        (28, 4, 8),
        (7, 7, 4),
        (12, 12, 5),
        (3, 1, 5),
    ):
        model = model_of(1, num_attention_heads=num_heads, num_key_value_heads=num_kv, head_dim=16)
        instance = instance_of(cluster_of((1.0,) * num_ranks, memory=[10**12] * num_ranks), model)
        bounds = [num_heads * idx // num_ranks for idx in range(num_ranks + 1)]
        ranks = [(f"d{idx}", 1, (bounds[idx], bounds[idx + 1])) for idx in range(num_ranks)]
        plan = plan_of([stage_of((0, 1), ranks)], whole_chunks([1000] * 4))
        assert check_plan(instance, plan) == []


def test_a_kv_head_on_two_ranks_is_legal_and_charged_twice():  # type: ignore[no-untyped-def]
    """Case 2: 6 query heads on 3 KV heads, 3 + 3 and 4 + 2 are both legal."""
    from hexisolve.plan.evaluate import evaluate

    model = model_of(1, num_attention_heads=6, num_key_value_heads=3, head_dim=16)
    instance = instance_of(cluster_of(), model)
    kept = {}
    for cut in (3, 4):
        ranks = [("d0", 500, (0, cut)), ("d1", 500, (cut, 6))]
        plan = plan_of([stage_of((0, 1), ranks)], whole_chunks([1000] * 4))
        assert check_plan(instance, plan) == []
        kept[cut] = sum(d.memory.activations for d in evaluate(instance, plan).devices)
    one_kv_head = 1000 * (16 + 16) * 2
    assert kept[3] == kept[4] + one_kv_head
