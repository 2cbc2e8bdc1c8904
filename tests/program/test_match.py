"""The matcher accepts what the compiler writes and nothing that was tampered with."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hexisolve.program import instructions as ins
from hexisolve.program.compile import compile_plan
from hexisolve.program.match import match
from hexisolve.program.rank_program import Programs
from tests.plans import CASES, make
from tests.program.flat_matcher import flat_match
from tests.program.mutants import MUTANTS, edit_body, edit_template


def busy_programs() -> Programs:
    """Pipelines, rings of groups and head groups in one plan: every mutant finds its place."""
    first = ((0, 2), [[(3, (0, 3)), (2, (3, 6))], [(1, (0, 1)), (4, (1, 6))], [(3, (0, 6))]])
    middle = ((2, 3), [[(1, (0, 6))]])
    last = ((3, 4), [[(2, (0, 4)), (1, (4, 6))]])
    instance, plan = make([first, middle, last], [[0], [1], [2]], [33, 26, 33])
    return compile_plan(instance, plan, ring_blocks=5)


@pytest.mark.parametrize("name", sorted(CASES))
def test_compiled_programs_match(name: str) -> None:
    report = match(compile_plan(*CASES[name](), ring_blocks=7))
    assert report.problems == ()
    assert report.ok


def test_counts_are_those_of_the_flat_programs() -> None:
    programs = busy_programs()
    sends = sum(
        transfer.is_send
        for program in programs.ranks
        for item in program.body
        for transfer in _transfers(program, item)
    )
    assert match(programs).num_transfers == sends


def _transfers(program, item):  # type: ignore[no-untyped-def]
    if hasattr(item, "instruction"):
        return getattr(item.instruction, "transfers", ())
    instructions = program.templates[item.template].instructions
    once = [t for i in instructions for t in getattr(i, "transfers", ())]
    return once * (item.layers[1] - item.layers[0])


@pytest.mark.parametrize("name", sorted(MUTANTS))
def test_mutant_is_caught(name: str) -> None:
    mutant = MUTANTS[name](busy_programs())
    report = match(mutant)
    assert not report.ok
    assert not flat_match(mutant)
    assert any("rank" in problem or "channel" in problem for problem in report.problems)


def test_mismatch_is_told_with_rank_channel_peer_and_sizes() -> None:
    (problem, *_) = match(MUTANTS["wrong_size"](busy_programs())).problems
    for word in ("rank 0", "instruction", "r0.s0.ring", "elements", "sent and"):
        assert word in problem


def test_deadlock_names_who_waits_for_what() -> None:
    problems = match(MUTANTS["all_send_first"](busy_programs())).problems
    assert any("waits forever" in problem and "send to rank" in problem for problem in problems)


@pytest.mark.parametrize("name", sorted(CASES))
def test_flat_matcher_agrees_on_compiled_programs(name: str) -> None:
    assert flat_match(compile_plan(*CASES[name](), ring_blocks=3))


BUSY = busy_programs()


@settings(
    max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
@given(st.data())
def test_flat_matcher_agrees_on_random_mutants(data: st.DataObject) -> None:
    programs = BUSY
    for _ in range(data.draw(st.integers(1, 2))):
        programs = _random_mutant(programs, data)
    assert match(programs).ok == flat_match(programs)


def _random_mutant(programs: Programs, data: st.DataObject) -> Programs:
    rank = data.draw(st.integers(0, len(programs.ranks) - 1))
    program = programs.ranks[rank]
    name = data.draw(st.sampled_from(["", *program.templates]))

    def change(items: tuple[object, ...]) -> list[object]:
        changed = list(items)
        kind = data.draw(st.sampled_from(["drop", "swap", "repeat", "transfer"]))
        first = data.draw(st.integers(0, len(items) - 1))
        if kind == "drop":
            del changed[first]
        elif kind == "swap":
            second = data.draw(st.integers(0, len(items) - 1))
            changed[first], changed[second] = changed[second], changed[first]
        elif kind == "repeat":
            changed.insert(first, changed[first])
        else:
            changed = _changed_transfer(changed, data)
        return changed

    return (
        edit_template(programs, rank, name, change) if name else edit_body(programs, rank, change)
    )


def _changed_transfer(items: list[object], data: st.DataObject) -> list[object]:
    starts = [idx for idx, item in enumerate(items) if isinstance(item, ins.Start)]
    if not starts:
        return items
    where = data.draw(st.sampled_from(starts))
    start = items[where]
    assert isinstance(start, ins.Start)
    transfers = list(start.transfers)
    idx = data.draw(st.integers(0, len(transfers) - 1))
    kind = data.draw(st.sampled_from(["peer", "size", "way", "drop", "turn"]))
    if kind == "peer":
        transfers[idx] = replace(transfers[idx], peer=data.draw(st.integers(0, 7)))
    elif kind == "size":
        transfers[idx] = replace(transfers[idx], num_elements=data.draw(st.integers(0, 99)))
    elif kind == "way":
        transfers[idx] = replace(transfers[idx], is_send=not transfers[idx].is_send)
    elif kind == "drop":
        del transfers[idx]
    else:
        transfers.reverse()
    items[where] = replace(start, transfers=tuple(transfers))
    return items
