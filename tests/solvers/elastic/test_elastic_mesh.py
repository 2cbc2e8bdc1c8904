"""Cuts of equal seconds and the packing of short sequences."""

from __future__ import annotations

from itertools import combinations, pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hexisolve.plan.price_book import price_book
from hexisolve.solvers.elastic.mesh import Ruler, cut, equal_cuts, make_ruler
from hexisolve.solvers.elastic.packing import best_fit
from hexisolve.solvers.elastic.pipeline import replica_model
from tests.solvers.elastic.elastic_cases import bundled, random_case, stage_per_host


def _worst_s(ruler: Ruler, cuts: tuple[int, ...]) -> float:
    last = len(ruler.positions) - 1
    return max(ruler.slice_s(a, b) for a, b in pairwise((0, *cuts, last)))


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**9), st.integers(2, 4), st.integers(4, 18))
def test_the_mesh_is_the_best_of_all_cuts(seed: int, num_slices: int, length: int) -> None:
    instance, layout = random_case(Random(seed))
    model = replica_model(price_book(instance), layout, 0)
    ruler = make_ruler(model.seconds, length, instance.workload.attention == "causal")
    assert ruler.positions.tolist() == list(range(length + 1))
    found = equal_cuts(ruler, num_slices)
    best = min(
        _worst_s(ruler, cuts)
        for count in range(num_slices)
        for cuts in combinations(range(1, length), count)
    )
    assert len(found) < num_slices
    assert _worst_s(ruler, tuple(found)) == pytest.approx(best, rel=1e-3)


def test_later_slices_are_shorter_and_take_equal_seconds() -> None:
    instance = bundled("mixed-32", "llama-2-13b", [98_304])
    model = replica_model(price_book(instance), stage_per_host(instance), 0)
    ruler = make_ruler(model.seconds, 98_304, True)
    cuts = equal_cuts(ruler, 8)
    sizes = [b - a for a, b in pairwise([0, *cuts, 98_304])]
    assert len(sizes) == 8
    assert sizes == sorted(sizes, reverse=True)
    at = {int(position): idx for idx, position in enumerate(ruler.positions)}
    seconds = [ruler.slice_s(at[a], at[b]) for a, b in pairwise([0, *cuts, 98_304])]
    assert max(seconds) < 1.03 * min(seconds)


def test_one_token_and_more_slices_than_tokens() -> None:
    instance = bundled("mixed-32", "llama-2-13b", [3])
    model = replica_model(price_book(instance), stage_per_host(instance), 0)
    assert equal_cuts(make_ruler(model.seconds, 1, True), 4) == []
    assert len(equal_cuts(make_ruler(model.seconds, 3, True), 64)) <= 2


@given(st.integers(1, 40), st.lists(st.integers(1, 60), unique=True))
def test_slices_cover_their_sequence_in_order(num_tokens: int, cuts: list[int]) -> None:
    spans = cut(num_tokens, sorted(cuts))
    assert [token for a, b in spans for token in range(a, b)] == list(range(num_tokens))
    assert all(a < b for a, b in spans)


@given(st.integers(0, 10**9))
def test_packing_keeps_both_caps_and_every_item(seed: int) -> None:
    rng = Random(seed)
    sizes = sorted((rng.randint(1, 30) for _ in range(rng.randint(0, 40))), reverse=True)
    loads = [size + size**2 / 100 for size in sizes]
    buckets = [(rng.uniform(0, 40), rng.randint(1, 30)) for _ in range(rng.randint(0, 5))]
    cap, cap_tokens = 45.0, 35
    packed = best_fit(loads, sizes, buckets, cap, cap_tokens)
    assert sorted(item for bucket in packed for item in bucket) == list(range(len(sizes)))
    for idx, bucket in enumerate(packed):
        load, tokens = buckets[idx] if idx < len(buckets) else (0.0, 0)
        if bucket:
            assert load + sum(loads[item] for item in bucket) <= cap + 1e-9
            assert tokens + sum(sizes[item] for item in bucket) <= cap_tokens


def test_an_item_above_the_caps_has_a_bucket_to_itself() -> None:
    assert best_fit([9.0, 1.0], [9, 1], [], 4.0, 4) == [[0], [1]]
