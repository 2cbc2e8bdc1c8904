"""A plan as a tree that stays short."""

from __future__ import annotations

from hexisolve.plan.plan import Plan
from tests.plans import make, ring_of_groups


def _lines(plan: Plan) -> list[str]:
    return [line.strip() for line in str(plan).splitlines()]


def test_every_stage_group_and_choice_has_a_line() -> None:
    lines = _lines(ring_of_groups(recompute="layer")[1])
    assert lines[0] == "plan: 5 ranks, 1 replica"
    assert any(line.startswith("stage 0: layers 0..1 (2)") for line in lines)
    assert sum(line.startswith("group") for line in lines) == 3
    assert "recompute of stage 0: layer 2 layers of every chunk" in lines


def test_groups_that_are_alike_share_a_line() -> None:
    ring = [[(2, (0, 6))], [(2, (0, 6))], [(2, (0, 6))], [(1, (0, 6))]]
    _, plan = make([((0, 4), ring)], [[0]], [70])
    groups = [line for line in _lines(plan) if line.startswith("group")]
    devices = [rank.device for rank in plan.layout.ranks]
    assert groups == [
        f"groups 0..2, to {devices[2]}, each like {devices[0]}: 28.6% of tokens, 6 heads",
        f"group 3: {devices[3]}: 14.3% of tokens, 6 heads",
    ]


def test_equal_sizes_with_other_heads_do_not_share_a_line() -> None:
    ring = [[(2, (0, 2)), (1, (2, 6))], [(2, (0, 4)), (1, (4, 6))]]
    _, plan = make([((0, 4), ring)], [[0]], [60])
    assert sum(line.startswith("group") for line in _lines(plan)) == 2
