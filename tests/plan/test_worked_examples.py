"""The known answers of the design, example A and B: equal to 1e-9."""

from __future__ import annotations

import pytest
from plan_examples import cluster_of, instance_of, model_of, stage_of

from hexisolve.plan.attention_traffic import all_to_all, ring
from hexisolve.plan.plan import Chunk, Slice
from hexisolve.plan.price_book import price_book
from hexisolve.plan.stage_price import layer_works, price_stage
from hexisolve.plan.tokens import chunk_shape, stage_tokens

CLUSTERS = {
    "A": cluster_of(),
    "B": cluster_of(peak=2e9, efficiencies=(1.0, 0.5, 0.45), link=5e6, latency=0.0),
}


def close(value: float) -> object:
    return pytest.approx(value, rel=1e-9)


def first_layer(name, stage, span):  # type: ignore[no-untyped-def]
    instance = instance_of(CLUSTERS[name], model_of(1))
    chunk = Chunk((Slice(0, *span),))
    price = price_stage(instance, stage, 0, 1, chunk, {"none": 1})
    work = next(layer_works(price_book(instance), stage, 0, chunk_shape(chunk)))
    return price.layers[0], work


@pytest.mark.parametrize(
    ("name", "span", "dense_s", "attention_s", "backward_s"),
    [
        ("A", (0, 1000), 0.073728, 0.256256, 0.8008),
        ("B", (1500, 2000), 0.018432, 0.224064, 0.6224),
    ],
)
def test_one_device(name, span, dense_s, attention_s, backward_s):  # type: ignore[no-untyped-def]
    stage = stage_of((0, 1), [("d0", 1000, (0, 4))])
    layer, _ = first_layer(name, stage, span)
    assert layer.forward.dense_s == close(dense_s)
    assert layer.backward.dense_s == close(2 * dense_s)
    assert layer.forward.attention_s == close(attention_s)
    assert layer.backward.attention_s == close(backward_s)
    assert layer.forward.total_s == close(dense_s + attention_s)


@pytest.mark.parametrize(
    ("name", "ranks", "before", "after", "times_s", "dense_s", "attention_s", "total_s"),
    [
        ("A", [("d0", 700, (0, 3)), ("d1", 300, (3, 4))], (67200, 67200), (28800, 22400),
         (0.0682, 0.0298), 0.0516096, 0.192192, 0.3418016),
        ("B", [("d0", 602, (0, 1)), ("d1", 398, (1, 4))], (134848, 38208), (12736, 57792),
         (0.0269696, 0.0115584), 0.022192128, 0.096096, 0.156816128),
    ],
)  # fmt: skip
def test_head_group(name, ranks, before, after, times_s, dense_s, attention_s, total_s):  # type: ignore[no-untyped-def]
    stage = stage_of((0, 1), ranks)
    layer, work = first_layer(name, stage, (0, 1000))
    tokens = stage_tokens(stage, (((0, 1000),), None), 0)
    swap = all_to_all(stage, tokens, model_of(1).layers[0].attention, 2)
    assert (swap.tokens_to_heads["d0", "d1"], swap.tokens_to_heads["d1", "d0"]) == before
    assert {swap.heads_to_tokens["d0", "d1"], swap.heads_to_tokens["d1", "d0"]} == set(after)
    assert (work.before.seconds, work.after.seconds) == (close(times_s[0]), close(times_s[1]))
    assert layer.forward.dense_s == close(dense_s)
    assert layer.forward.attention_s == close(attention_s)
    assert layer.forward.total_s == close(total_s)


@pytest.mark.parametrize(
    ("name", "tokens", "pairs", "num_bytes", "ring_s", "sums_s"),
    [
        ("A", (700, 300), (350350, 150150), (38400, 89600), 0.0906, (0.2309888, 0.0989952)),
        ("B", (602, 398), (301301, 199199), (50944, 77056), 0.0154112, (0.099325184, 0.065666816)),
    ],
)
def test_ring(name, tokens, pairs, num_bytes, ring_s, sums_s):  # type: ignore[no-untyped-def]
    stage = stage_of((0, 1), [("d0", tokens[0], (0, 4))], [("d1", tokens[1], (0, 4))])
    layer, work = first_layer(name, stage, (0, 1000))
    lie = stage_tokens(stage, (((0, 1000),), None), 0)
    around = ring(stage, lie, model_of(1).layers[0].attention, 2, 4)
    assert lie.pairs(None, True) == pairs
    assert around.forward["d1", "d0"] == close(num_bytes[0])
    assert around.forward["d0", "d1"] == close(num_bytes[1])
    assert work.ring_forward.seconds == close(ring_s)
    sums = [d + a for d, a in zip(work.dense_s, work.attention_forward_s, strict=True)]
    assert sums == [close(sums_s[0]), close(sums_s[1])]
    assert layer.forward.total_s == close(max(sums_s))
