"""Prove that the programs of a plan meet: same sizes, same types, no deadlock.

Rank programs are deterministic and rendezvous is confluent, so one complete order proves that
every order completes (docs/programs.md). The order that is tried runs whole layer templates at a
time: each family of templates is played once alone, then calls count as one collective of their
stage. So the unreduced programs of large plans take seconds, and nothing the compiler says about
itself is believed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from hexisolve.program.instructions import Exchange, Gather, Norm, Reduce, Start
from hexisolve.program.rank_program import Call, Do, Programs, RankProgram
from hexisolve.program.rendezvous import (
    COMMUNICATING,
    Line,
    Rendezvous,
    Together,
    communicating,
)

MAX_PROBLEMS = 50


@dataclass(frozen=True)
class MatchReport:
    """What the matcher found.

    Parameters
    ----------
    problems
        In words, with rank, instruction, channel, peer and sizes; at most `MAX_PROBLEMS`.
    num_transfers, num_collectives
        In one step: pairs of point-to-point transfers, and collectives.
    num_families
        Template families played.
    """

    problems: tuple[str, ...]
    num_transfers: int
    num_collectives: int
    num_families: int

    @property
    def ok(self) -> bool:
        """Everything meets and nothing can deadlock."""
        return not self.problems


def match(programs: Programs) -> MatchReport:
    """Prove the programs under rendezvous semantics without buffering, or say what is wrong."""
    channels = {channel.name: channel.members for channel in programs.channels}
    problems = _form_problems(programs)
    stages: dict[tuple[int, int], list[RankProgram]] = {}
    for program in programs.ranks:
        stages.setdefault((program.replica, program.stage), []).append(program)

    transfers: Counter[str] = Counter()
    collectives: Counter[str] = Counter()
    for members in stages.values():
        for name in dict.fromkeys(name for program in members for name in program.templates):
            lines = {
                program.rank: communicating(
                    (instruction, 0, 0) for instruction in program.templates[name].instructions
                )
                for program in members
                if name in program.templates
            }
            outcome = Rendezvous(lines, channels, f"template {name}").play()
            problems.extend(outcome.problems)
            transfers[name] += outcome.num_transfers
            collectives[name] += outcome.num_collectives
    if problems:
        return _report(problems, 0, 0, len(transfers))

    problems.extend(_shared_channels(stages))
    together = {_stage_channel(*key): tuple(p.rank for p in own) for key, own in stages.items()}
    lines = {program.rank: _top_level(program) for program in programs.ranks}
    outcome = Rendezvous(lines, channels | together).play()
    problems.extend(outcome.problems)
    num_transfers, num_collectives = outcome.num_transfers, outcome.num_collectives
    for members in stages.values():
        for item in members[0].body:
            if isinstance(item, Call):
                num_layers = item.layers[1] - item.layers[0]
                num_transfers += num_layers * transfers[item.template]
                num_collectives += num_layers * collectives[item.template]
    return _report(problems, num_transfers, num_collectives, len(transfers))


def _report(
    problems: list[str], num_transfers: int, num_collectives: int, num_families: int
) -> MatchReport:
    shown = tuple(problems[:MAX_PROBLEMS])
    if len(problems) > MAX_PROBLEMS:
        shown += (f"and {len(problems) - MAX_PROBLEMS} more",)
    return MatchReport(shown, num_transfers, num_collectives, num_families)


def _stage_channel(replica: int, stage: int) -> str:
    return f"layers of replica {replica} stage {stage}"


def _form_problems(programs: Programs) -> list[str]:
    """Check what the play relies on: names, numbers, members, local collectives."""
    found = []
    names = Counter(channel.name for channel in programs.channels)
    found += [
        f"channel {name} is defined {count} times" for name, count in names.items() if count > 1
    ]
    for channel in programs.channels:
        is_known = all(0 <= rank < len(programs.ranks) for rank in channel.members)
        if len(set(channel.members)) != len(channel.members) or not is_known:
            found.append(f"channel {channel.name} has members {channel.members}")
    for idx, program in enumerate(programs.ranks):
        if program.rank != idx:
            found.append(f"program {idx} calls itself rank {program.rank}")
        for item in program.body:
            if isinstance(item, Call):
                first, stop = item.layers
                if item.template not in program.templates:
                    found.append(f"rank {idx} calls template {item.template}, which it lacks")
                if not program.layers[0] <= first < stop <= program.layers[1]:
                    found.append(f"rank {idx} calls layers {item.layers} of {program.layers}")
        instructions = [item.instruction for item in program.body if isinstance(item, Do)]
        for template in program.templates.values():
            instructions.extend(template.instructions)
        for instruction in instructions:
            if (
                isinstance(instruction, Exchange | Gather | Reduce | Norm)
                and not instruction.channel
                and instruction.members != (idx,)
            ):
                found.append(
                    f"rank {idx}: {type(instruction).__name__.upper()} without a channel for "
                    f"members {instruction.members}"
                )
    return found


def _shared_channels(stages: Mapping[tuple[int, int], list[RankProgram]]) -> list[str]:
    """Find channels on which something started outside could stand before a template's transfers.

    A template is proved with its channels quiet at the start.
    """
    found = []
    for members in stages.values():
        outside = {
            transfer.channel
            for program in members
            for item in program.body
            if isinstance(item, Do) and isinstance(item.instruction, Start)
            for transfer in item.instruction.transfers
        }
        inside = {
            channel
            for program in members
            for template in program.templates.values()
            for instruction in template.instructions
            if isinstance(instruction, COMMUNICATING)
            for channel in (
                [transfer.channel for transfer in instruction.transfers]
                if isinstance(instruction, Start)
                else [getattr(instruction, "channel", "")]
            )
        }
        found += [
            f"channel {channel} is used by STARTs outside and inside of layer templates"
            for channel in sorted(inside & outside)
        ]
    return found


def _top_level(program: RankProgram) -> list[Line]:
    """The body with calls as collectives of the stage."""
    channel = _stage_channel(program.replica, program.stage)
    lines: list[Line] = []
    for position, item in enumerate(program.body):
        if isinstance(item, Call):
            what = f"CALL {item.template} layers {item.layers} {item.phase}"
            lines.append((position, (item.chunk, -1), Together(channel, what)))
        else:
            lines.extend(
                (position, context, instruction)
                for _, context, instruction in communicating([(item.instruction, item.chunk, -1)])
            )
    return lines
