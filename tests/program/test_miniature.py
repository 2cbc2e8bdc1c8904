"""A miniature is a legal plan with the structure of the original."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from hexisolve.data.cluster import Cluster
from hexisolve.data.instance import Instance
from hexisolve.data.model_spec import ModelSpec, llama_like
from hexisolve.data.workload import Workload
from hexisolve.plan.check import check_plan
from hexisolve.plan.pieces import stage_pieces
from hexisolve.program.compile import compile_plan
from hexisolve.program.match import match
from hexisolve.program.miniature import REDUCTIONS, miniature
from hexisolve.solvers.baselines.compare import baselines
from tests.plans import CASES, large, make


def structure(plan):  # type: ignore[no-untyped-def]
    """Everything a miniature must keep."""
    return [
        [
            (stage.ring_kind, stage.zero, [
                [(rank.device, rank.q_heads, rank.state_share, rank.tokens > 0)
                 for rank in group.ranks]
                for group in stage.ring
            ])
            for stage in replica.stages
        ]
        for replica in plan.layout.replicas
    ]  # fmt: skip


@pytest.mark.parametrize("name", sorted(CASES))
def test_small_plans_keep_everything_but_widths(name: str) -> None:
    instance, plan = CASES[name]()
    small, small_plan = miniature(instance, plan)
    assert check_plan(small, small_plan) == []
    assert structure(small_plan) == structure(plan)
    assert small.workload.sequence_lengths == instance.workload.sequence_lengths
    assert match(compile_plan(small, small_plan)).ok


def test_large_plan_shrinks_to_the_stated_sizes() -> None:
    instance, plan = large(num_ranks=16, num_stages=2, num_layers=20, num_chunks=9)
    mini = miniature(instance, plan)
    small, small_plan = mini
    assert check_plan(small, small_plan) == []
    assert structure(small_plan) == structure(plan)
    attention = small.model.layers[0].attention
    heads = instance.model.layers[0].attention.num_q_heads
    assert (attention.num_q_heads, attention.qk_head_dim) == (heads, 2)
    assert small.model.hidden_size == 2 * heads
    assert small.model.layers[0].mlp.intermediate_size == 4 * heads
    assert small.model.vocab_size == 64
    assert [stage.num_layers for stage in small_plan.layout.replicas[0].stages] == [2, 2]
    chunks = small_plan.batch.replicas[0].pipelines[0].chunks
    assert [chunk.num_tokens for chunk in chunks] == [256] * 4
    text = "\n".join(mini.reductions)
    for words in ("layers 20 -> 4", "chunks 9 -> 4", "head width 128 -> 2"):
        assert words in text


def test_mixed_policies_all_stay() -> None:
    instance, plan = large(num_ranks=8, num_stages=2, num_layers=20, num_chunks=3)
    _, small_plan = miniature(instance, plan)
    before = plan.batch.replicas[0].pipelines[0].recompute
    after = small_plan.batch.replicas[0].pipelines[0].recompute
    for row, small_row in zip(before, after, strict=True):
        for counts, small_counts in zip(row, small_row, strict=True):
            assert {p for p, n in small_counts.items() if n} == {p for p, n in counts.items() if n}


def test_tiny_shares_keep_their_pieces() -> None:
    """1 of 100,000 tokens is still a shard in 256, an empty shard stays empty."""
    first = ((0, 2), [[(99_999, (0, 3)), (1, (3, 6))], [(0, (0, 6))], [(60_000, (0, 6))]])
    instance, plan = make([first, ((2, 4), [[(1, (0, 6))]])], [[0], [1]], [160_000, 120_000])
    small, small_plan = miniature(instance, plan)
    assert check_plan(small, small_plan) == []
    for chunk in small_plan.batch.replicas[0].pipelines[0].chunks:
        pieces = stage_pieces(small_plan.layout.replicas[0].stages[0], chunk, 0)
        assert [bool(own) for group in pieces for own in group] == [True, True, False, True]


def test_chunk_proportions_are_kept() -> None:
    first = ((0, 4), [[(1, (0, 6))], [(1, (0, 6))]])
    instance, plan = make([first], [[0], [1], [2]], [100_000, 50_000, 25_000])
    small, _ = miniature(instance, plan)
    assert small.workload.sequence_lengths == (256, 128, 64)


def test_packed_documents_stay_packed() -> None:
    first = ((0, 4), [[(5, (0, 6))], [(3, (0, 6))]])
    lengths = [9_000, 40, 3_000, 1, 20_000]
    instance, plan = make([first], [[0, 1, 2, 3], [4]], lengths)
    small, small_plan = miniature(instance, plan)
    packs = [len(c.slices) for c in small_plan.batch.replicas[0].pipelines[0].chunks]
    assert packs == [4, 1]
    assert min(small.workload.sequence_lengths) >= 1
    assert check_plan(small, small_plan) == []


def test_stage_bounds_stay_contiguous() -> None:
    instance, plan = large(num_ranks=8, num_stages=4, num_layers=22, num_chunks=2)
    small, small_plan = miniature(instance, plan)
    ranges = [stage.layers for stage in small_plan.layout.replicas[0].stages]
    assert ranges[0][0] == 0
    assert ranges[-1][1] == small.model.num_layers
    assert all(one[1] == two[0] for one, two in pairwise(ranges))


def test_every_reduction_can_be_lifted() -> None:
    instance, plan = large(num_ranks=4, num_stages=2, num_layers=6, num_chunks=5)
    small, small_plan = miniature(instance, plan, keep=REDUCTIONS)
    assert small.model is instance.model
    assert small_plan == plan
    for kept in REDUCTIONS:
        mini = miniature(instance, plan, keep=(kept,))
        assert check_plan(mini.instance, mini.plan) == [] or kept in ("tokens", "widths")


def test_unknown_reduction_is_refused() -> None:
    instance, plan = CASES["two_stages"]()
    with pytest.raises(ValueError, match=r"cannot keep \['colour'\]; choose from tokens"):
        miniature(instance, plan, keep=("colour",))


def test_tied_model_stays_tied() -> None:
    model = llama_like("tied", 512, 8, 8, 4, 1024, 1000, head_dim=64, tied_embeddings=True)
    stages = [((0, 5), [[(3, (0, 8))]]), ((5, 8), [[(1, (0, 5)), (1, (5, 8))]])]
    instance, plan = make(stages, [[0]], [4096], model=model)
    assert miniature(instance, plan).instance.model.tied_embeddings


def test_plan_for_a_shipped_cluster(repository: Path) -> None:
    """Unlike devices keep their places, and the small plan fits all of them."""
    cluster = Cluster.read("mixed-32")
    model = ModelSpec.from_config(repository / "models/llm/llama-2-13b.json")
    workload = Workload(context_tokens=65_536, batch_sequences=8)
    instance = Instance(cluster, model, workload)
    plan = baselines(instance, names=["proportional"])["proportional"].plan
    assert plan is not None
    assert match(compile_plan(instance, plan)).ok
    small, small_plan = miniature(instance, plan)
    assert check_plan(small, small_plan) == []
    assert structure(small_plan) == structure(plan)
    assert match(compile_plan(small, small_plan)).ok
