"""The clock: plays compiled programs from durations of single instructions and link capacities.

Nothing here knows the formulas of `evaluate` for layers, pipelines or synchronisation: the step
time is when the last rank ends its list. See docs/clock.md.
"""

from __future__ import annotations

from hexisolve.data.instance import Instance
from hexisolve.plan.plan import Plan
from hexisolve.program.compile import DEFAULT_RING_BLOCKS, compile_plan
from hexisolve.program.layer_plays import LayerPlays
from hexisolve.program.link_sharing import Links, SharedLinks
from hexisolve.program.lowering import Lowering
from hexisolve.program.player import Player
from hexisolve.program.rank_program import Programs
from hexisolve.program.timeline import RankTimes, Timeline

__all__ = ["Timeline", "play_flat", "simulate", "simulate_programs"]


def simulate(instance: Instance, plan: Plan, *, ring_blocks: int = DEFAULT_RING_BLOCKS) -> Timeline:
    """Compile a plan and play one step of it.

    Parameters
    ----------
    plan
        A plan that `check_plan` accepts.
    ring_blocks
        Blocks aimed at per ring, as in `compile_plan`.

    Raises
    ------
    UnsupportedPlanError
        When the plan uses a part that has no program yet, or offload.

    Examples
    --------
    >>> timeline = simulate(instance, plan)                      # doctest: +SKIP
    >>> timeline.step_time_s, timeline.write_trace("step.json")  # doctest: +SKIP
    """
    return simulate_programs(compile_plan(instance, plan, ring_blocks=ring_blocks))


def simulate_programs(programs: Programs) -> Timeline:
    """Play compiled programs, every layer once per link situation."""
    links = Links(programs.instance)
    lowering = Lowering(programs, links)
    lists = lowering.lists(flat=False)
    shared = SharedLinks(links.bytes_per_s)
    layers = LayerPlays(lowering, links, shared)
    player = Player(dict(enumerate(lists)), shared, layers=layers)
    ends = player.play()
    return _timeline(programs, ends, player, layers)


def play_flat(programs: Programs) -> Timeline:
    """Play every instruction of every rank as one event: exact, and slow on large plans."""
    links = Links(programs.instance)
    lowering = Lowering(programs, links)
    player = Player(dict(enumerate(lowering.lists(flat=True))), SharedLinks(links.bytes_per_s))
    return _timeline(programs, player.play(), player, None)


def _timeline(
    programs: Programs, ends: dict[int, float], player: Player, layers: LayerPlays | None
) -> Timeline:
    spans = player.spans()
    stages = list(dict.fromkeys((p.replica, p.stage) for p in programs.ranks))
    ranks = tuple(
        RankTimes(
            p.rank, p.device, p.replica, p.stage, stages.index((p.replica, p.stage)),
            ends[p.rank], tuple(spans[p.rank]),
        )
        for p in programs.ranks
    )  # fmt: skip
    runs = tuple(layers.runs) if layers is not None else ()
    num_plays = layers.num_plays if layers is not None else 0
    return Timeline(max(ends.values()), ranks, runs, num_plays)
