"""Blocks and steps of the ring: everything visits whom it must, at an even pace."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hexisolve.plan.pieces import stage_pieces
from hexisolve.plan.plan import Chunk, HeadGroup, Rank, Slice, Stage
from hexisolve.program.blocks import ring_work
from hexisolve.program.ring import ring_steps
from hexisolve.program.segments import area


def zigzag(shares, lengths):  # type: ignore[no-untyped-def]
    """Pieces of single-rank groups."""
    stage = Stage((0, 1), tuple(HeadGroup((Rank("d", share, (0, 1)),)) for share in shares))
    chunk = Chunk(tuple(Slice(seq, 0, length) for seq, length in enumerate(lengths)))
    return [group[0] for group in stage_pieces(stage, chunk)]


def work_of(shares, lengths, ring_blocks=64):  # type: ignore[no-untyped-def]
    return ring_work(zigzag(shares, lengths), causal=True, window=None, ring_blocks=ring_blocks)


SHARES = st.lists(st.integers(0, 9), min_size=1, max_size=6).filter(lambda s: sum(s) > 0)
LENGTHS = st.lists(st.integers(1, 60), min_size=1, max_size=4)


@settings(deadline=None)
@given(SHARES, LENGTHS, st.integers(1, 20))
def test_all_causal_pairs_are_computed_once(shares, lengths, ring_blocks):  # type: ignore[no-untyped-def]
    work = work_of(shares, lengths, ring_blocks)
    own = sum(area(pairs) for group in work.own for pairs in group)
    others = sum(area(pairs) for group in work.arriving for pairs in group.values())
    assert own + others == sum(length * (length + 1) // 2 for length in lengths)
    for steps in (ring_steps(work, backward=False), ring_steps(work, backward=True)):
        laid = sum(area(step.pairs) for group in steps for step in group)
        assert laid == own + others


@settings(deadline=None)
@given(SHARES, LENGTHS, st.integers(1, 20))
def test_every_move_has_its_other_end_in_the_same_step(shares, lengths, ring_blocks):  # type: ignore[no-untyped-def]
    work = work_of(shares, lengths, ring_blocks)
    for backward in (False, True):
        steps = ring_steps(work, backward=backward)
        sent, received = [], []
        for group, own in enumerate(steps):
            for step in own:
                for name in ("kv", "dkv"):
                    sent += [
                        (step.number, name, block.number, group, other)
                        for block, other in getattr(step, f"{name}_sends")
                    ]
                    received += [
                        (step.number, name, block.number, other, group)
                        for block, other in getattr(step, f"{name}_receives")
                    ]
        assert sorted(sent) == sorted(received)
        assert len(set(sent)) == len(sent)


@settings(deadline=None)
@given(SHARES, LENGTHS, st.integers(1, 20))
def test_blocks_and_sums_travel_only_after_they_came(shares, lengths, ring_blocks):  # type: ignore[no-untyped-def]
    work = work_of(shares, lengths, ring_blocks)
    steps = ring_steps(work, backward=True)
    came: dict[tuple[str, int, int], int] = {}
    computed: dict[tuple[int, int], int] = {}
    dropped: dict[tuple[int, int], int] = {}
    for group, own in enumerate(steps):
        for step in own:
            for block, _ in step.kv_receives:
                came["kv", group, block.number] = step.number
            for block, _ in step.dkv_receives:
                came["dkv", group, block.number] = step.number
            for pair in step.pairs:
                if pair.block >= 0:
                    computed[group, pair.block] = step.number
            for number in step.kv_drops:
                dropped[group, number] = step.number
    for group, own in enumerate(steps):
        for step in own:
            for block, _ in step.kv_sends:
                is_own = block.chain[0] == group
                assert is_own or came["kv", group, block.number] < step.number
                assert is_own or dropped[group, block.number] >= step.number
            for block, _ in step.dkv_sends:
                assert computed[group, block.number] < step.number
                if block.chain[1] != group:
                    assert came["dkv", group, block.number] < step.number
    for (group, number), when in computed.items():
        assert came["kv", group, number] < when <= dropped[group, number]
    for block in work.blocks:
        assert ("dkv", block.chain[0], block.number) in came


def test_kv_bytes_are_those_of_the_cost_model() -> None:
    """Cost equation 5: into group n flow (1 - sigma_n) of the tokens; dKV (1 - sigma_(n-1))."""
    shares = [4, 3, 2, 1]
    work = work_of(shares, [1000])
    steps = ring_steps(work, backward=True)
    for group, share in enumerate(shares):
        kv = sum(b.num_rows for step in steps[group] for b, _ in step.kv_receives)
        dkv = sum(b.num_rows for step in steps[group] for b, _ in step.dkv_receives)
        assert kv == 1000 - 100 * share
        assert dkv == 1000 - 100 * shares[group - 1]


def test_blocks_are_about_one_size() -> None:
    work = work_of([7, 5, 3, 1], [64_000])
    sizes = [block.num_rows for block in work.blocks]
    assert 60 <= len(sizes) <= 68
    assert max(sizes) <= 1.05 * min(sizes)


def test_every_group_has_a_block_however_small_its_share() -> None:
    work = work_of([100, 1], [202], ring_blocks=2)
    assert {block.chain[0] for block in work.blocks} == {0, 1}


def test_whole_documents_do_not_travel() -> None:
    """Two equal documents on two groups: nothing moves."""
    work = work_of([1, 1], [30, 30])
    assert work.blocks == ()
    assert all(len(steps) == 1 for steps in ring_steps(work, backward=False))


def test_documents_travel_only_to_groups_that_hold_them() -> None:
    work = work_of([4, 2, 2], [40, 20, 20])
    assert work.blocks == ()
    cut = work_of([4, 3, 1], [40, 40])
    for block in cut.blocks:
        assert 0 not in block.chain


def test_empty_group_takes_no_part() -> None:
    work = work_of([3, 0, 2], [50])
    assert all(1 not in block.chain for block in work.blocks)
    assert ring_steps(work, backward=True)[1] == ()


@pytest.mark.parametrize("shares", [[1, 1, 1, 1], [8, 4, 2, 2], [13, 2, 1]])
def test_work_is_spread_evenly_over_the_steps(shares: list[int]) -> None:
    """In proportion to its share no group has long idle steps, nor one step with half its work."""
    work = work_of(shares, [64_000])
    steps = ring_steps(work, backward=False)
    for group in steps:
        areas = [area(step.pairs) for step in group]
        busiest = max(areas) / sum(areas)
        assert busiest < 6 / len(areas)
