"""Programs with one thing wrong: what the matcher must catch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from hexisolve.program import instructions as ins
from hexisolve.program.rank_program import Call, Do, Programs, RankProgram

Instructions = tuple[Any, ...]


def with_rank(programs: Programs, rank: int, program: RankProgram) -> Programs:
    ranks = list(programs.ranks)
    ranks[rank] = program
    return replace(programs, ranks=tuple(ranks))


def edit_template(
    programs: Programs, rank: int, name: str, edit: Callable[[Instructions], Sequence[Any]]
) -> Programs:
    """Replace the instructions of one template of one rank."""
    program = programs.ranks[rank]
    template = program.templates[name]
    changed = replace(template, instructions=tuple(edit(template.instructions)))
    return with_rank(
        programs, rank, replace(program, templates={**program.templates, name: changed})
    )


def edit_body(
    programs: Programs, rank: int, edit: Callable[[tuple[Any, ...]], Sequence[Any]]
) -> Programs:
    program = programs.ranks[rank]
    return with_rank(programs, rank, replace(program, body=tuple(edit(program.body))))


def ring_template(programs: Programs, phase: str = "forward") -> tuple[int, str]:
    """A rank and a template of it with transfers."""
    for program in programs.ranks:
        for name, template in program.templates.items():
            if template.phase == phase and positions(template.instructions, ins.Start):
                return program.rank, name
    raise LookupError("no ring")


def positions(instructions: Sequence[Any], kind: Any) -> list[int]:
    return [idx for idx, item in enumerate(instructions) if isinstance(item, kind)]


def edit_transfers(
    programs: Programs, edit: Callable[[tuple[ins.Transfer, ...]], Sequence[ins.Transfer]],
    which: int = 0, phase: str = "forward",
) -> Programs:  # fmt: skip
    """Replace the transfers of one START of a ring."""
    rank, name = ring_template(programs, phase)

    def change(instructions: Instructions) -> Sequence[Any]:
        items = list(instructions)
        where = positions(items, ins.Start)[which]
        items[where] = replace(items[where], transfers=tuple(edit(items[where].transfers)))
        return items

    return edit_template(programs, rank, name, change)


def all_send_first(programs: Programs) -> Programs:
    """Around the ring everybody sends and waits, then receives."""

    def change(instructions: Instructions) -> list[Any]:
        items: list[Any] = []
        for item in instructions:
            if isinstance(item, ins.Start):
                sends = tuple(t for t in item.transfers if t.is_send)
                receives = tuple(t for t in item.transfers if not t.is_send)
                if sends and receives:
                    items += [ins.Start(f"{item.handle} send", sends)]
                    items += [ins.Wait(f"{item.handle} send")]
                    items += [ins.Start(item.handle, receives)]
                    continue
            items.append(item)
        return items

    for program in programs.ranks:
        for name, template in program.templates.items():
            if positions(template.instructions, ins.Start):
                programs = edit_template(programs, program.rank, name, change)
    return programs


def opposite_channels(programs: Programs) -> Programs:
    """One rank reduces its weights in another order of channels than its peers: NORM first."""

    def change(body: tuple[Any, ...]) -> list[Any]:
        items = list(body)
        reduce = next(i for i, x in enumerate(items) if isinstance(x, Do)
                      and isinstance(x.instruction, ins.Reduce))  # fmt: skip
        norm = next(i for i, x in enumerate(items) if isinstance(x, Do)
                    and isinstance(x.instruction, ins.Norm))  # fmt: skip
        items[reduce], items[norm] = items[norm], items[reduce]
        return items

    return edit_body(programs, 0, change)


def dropped_receive(programs: Programs) -> Programs:
    def drop(transfers: tuple[ins.Transfer, ...]) -> list[ins.Transfer]:
        gone = next(t for t in transfers if not t.is_send)
        return [t for t in transfers if t is not gone]

    return edit_transfers(programs, drop)


def wrong_size(programs: Programs) -> Programs:
    return edit_transfers(
        programs, lambda ts: [replace(ts[0], num_elements=ts[0].num_elements + 1), *ts[1:]]
    )


def wrong_dtype(programs: Programs) -> Programs:
    return edit_transfers(programs, lambda ts: [replace(ts[0], dtype="scalar"), *ts[1:]])


def wrong_peer(programs: Programs) -> Programs:
    rank, _ = ring_template(programs)
    channel = programs.ranks[rank].templates[ring_template(programs)[1]]
    ring = next(
        item.transfers[0].channel for item in channel.instructions if isinstance(item, ins.Start)
    )
    members = next(c.members for c in programs.channels if c.name == ring)

    def turn(transfers: tuple[ins.Transfer, ...]) -> list[ins.Transfer]:
        other = next(m for m in members if m not in (rank, transfers[0].peer))
        return [replace(transfers[0], peer=other), *transfers[1:]]

    return edit_transfers(programs, turn)


def stranger_peer(programs: Programs) -> Programs:
    """A peer that is not in the channel at all."""
    return edit_transfers(
        programs, lambda ts: [replace(ts[0], peer=len(programs.ranks) - 1), *ts[1:]]
    )


def self_transfer(programs: Programs) -> Programs:
    rank, _ = ring_template(programs)
    return edit_transfers(programs, lambda ts: [replace(ts[0], peer=rank), *ts[1:]])


def extra_transfer(programs: Programs) -> Programs:
    return edit_transfers(programs, lambda ts: [*ts, ts[0]])


def wrong_block(programs: Programs) -> Programs:
    """Two blocks of one size swapped at the sender only."""
    return edit_transfers(programs, lambda ts: [replace(ts[0], block=99), *ts[1:]])


def wrong_heads(programs: Programs) -> Programs:
    return edit_transfers(
        programs, lambda ts: [replace(ts[0], heads=(7, 7 + ts[0].heads[1])), *ts[1:]]
    )


def swapped_starts(programs: Programs) -> Programs:
    """One rank sends two blocks of its channel in the other order."""
    rank, name = ring_template(programs)

    def swap(instructions: Instructions) -> list[Any]:
        items = list(instructions)
        first, second = positions(items, ins.Start)[:2]
        one, two = items[first], items[second]
        items[first] = replace(one, transfers=two.transfers)
        items[second] = replace(two, transfers=one.transfers)
        return items

    return edit_template(programs, rank, name, swap)


def missing_wait(programs: Programs) -> Programs:
    rank, name = ring_template(programs)

    def drop(instructions: Instructions) -> list[Any]:
        gone = positions(instructions, ins.Wait)[-1]
        return [item for idx, item in enumerate(instructions) if idx != gone]

    return edit_template(programs, rank, name, drop)


def wait_before_start(programs: Programs) -> Programs:
    rank, name = ring_template(programs)

    def swap(instructions: Instructions) -> list[Any]:
        items = list(instructions)
        start, wait = positions(items, ins.Start)[0], positions(items, ins.Wait)[0]
        items[start], items[wait] = items[wait], items[start]
        return items

    return edit_template(programs, rank, name, swap)


def other_template(programs: Programs) -> Programs:
    """One rank runs the template of another phase."""

    def change(body: tuple[Any, ...]) -> list[Any]:
        items = list(body)
        where = positions(items, Call)[0]
        backward = next(
            item for item in items if isinstance(item, Call) and item.phase != "forward"
        )
        items[where] = replace(items[where], template=backward.template)
        return items

    return edit_body(programs, ring_template(programs)[0], change)


def missing_template(programs: Programs) -> Programs:
    rank, name = ring_template(programs)
    program = programs.ranks[rank]
    rest = {key: value for key, value in program.templates.items() if key != name}
    return with_rank(programs, rank, replace(program, templates=rest))


def other_layers(programs: Programs) -> Programs:
    """One rank runs one layer less."""

    def change(body: tuple[Any, ...]) -> list[Any]:
        items = list(body)
        where = next(
            i for i in positions(items, Call) if items[i].layers[1] - items[i].layers[0] > 1
        )
        first, stop = items[where].layers
        items[where] = replace(items[where], layers=(first, stop - 1))
        return items

    return edit_body(programs, ring_template(programs)[0], change)


def swapped_chunks(programs: Programs) -> Programs:
    """One rank takes its chunks in another order than its stage."""

    def change(body: tuple[Any, ...]) -> list[Any]:
        items = list(body)
        calls = [i for i in positions(items, Call) if items[i].phase == "forward"]
        first = calls[0]
        other = next(i for i in calls if items[i].chunk != items[first].chunk)
        items[first], items[other] = items[other], items[first]
        return items

    return edit_body(programs, ring_template(programs)[0], change)


def unequal_splits(programs: Programs) -> Programs:
    """An all-to-all whose splits are not each other's transpose."""

    def change(instructions: Instructions) -> list[Any]:
        items = list(instructions)
        where = next(i for i in positions(items, ins.Exchange) if items[i].channel)
        sizes = items[where].send_elements
        items[where] = replace(items[where], send_elements=(sizes[0] + 1, *sizes[1:]))
        return items

    return edit_template(programs, *grouped_template(programs), change)


def skipped_exchange(programs: Programs) -> Programs:
    """An idle-minded rank leaves out a collective."""

    def change(instructions: Instructions) -> list[Any]:
        gone = next(i for i in positions(instructions, ins.Exchange) if instructions[i].channel)
        return [item for idx, item in enumerate(instructions) if idx != gone]

    return edit_template(programs, *grouped_template(programs), change)


def grouped_template(programs: Programs) -> tuple[int, str]:
    for program in programs.ranks:
        for name, template in program.templates.items():
            if any(isinstance(i, ins.Exchange) and i.channel for i in template.instructions):
                return program.rank, name
    raise LookupError("no head group")


def dropped_boundary(programs: Programs) -> Programs:
    """A stage boundary whose sender forgets one chunk."""

    def change(body: tuple[Any, ...]) -> list[Any]:
        items = list(body)
        start = next(i for i, x in enumerate(items) if isinstance(x, Do)
                     and isinstance(x.instruction, ins.Start))  # fmt: skip
        handle = items[start].instruction.handle
        return [x for idx, x in enumerate(items) if idx != start
                and not (isinstance(x, Do) and isinstance(x.instruction, ins.Wait)
                         and x.instruction.handle == handle)]  # fmt: skip

    return edit_body(programs, 0, change)


def blocking_boundaries(programs: Programs) -> Programs:
    """Wait for each boundary send at once, post each receive only when needed: 1F1B deadlocks."""
    for program in programs.ranks:

        def change(body: tuple[Any, ...]) -> list[Any]:
            items: list[Any] = []
            receives: dict[str, Any] = {}
            moved = set()
            for item in body:
                instruction = item.instruction if isinstance(item, Do) else None
                handle = getattr(instruction, "handle", "")
                if isinstance(instruction, ins.Start) and handle.startswith("receive"):
                    receives[handle] = item
                    continue
                if isinstance(instruction, ins.Wait) and handle in moved:
                    continue
                if isinstance(instruction, ins.Wait) and handle in receives:
                    items.append(receives.pop(handle))
                items.append(item)
                if isinstance(instruction, ins.Start) and handle.startswith("send"):
                    items.append(Do(item.chunk, ins.Wait(handle)))
                    moved.add(handle)
            return items

        programs = edit_body(programs, program.rank, change)
    return programs


def reduce_of_other_unit(programs: Programs) -> Programs:
    def change(body: tuple[Any, ...]) -> list[Any]:
        items = list(body)
        where = next(i for i, x in enumerate(items) if isinstance(x, Do)
                     and isinstance(x.instruction, ins.Reduce))  # fmt: skip
        items[where] = Do(items[where].chunk, replace(items[where].instruction, unit="final_norm"))
        return items

    return edit_body(programs, 0, change)


def renumbered_ranks(programs: Programs) -> Programs:
    first, second, *rest = programs.ranks
    return replace(programs, ranks=(second, first, *rest))


MUTANTS: dict[str, Callable[[Programs], Programs]] = {
    mutate.__name__: mutate
    for mutate in (
        all_send_first,
        opposite_channels,
        dropped_receive,
        wrong_size,
        wrong_dtype,
        wrong_peer,
        stranger_peer,
        self_transfer,
        extra_transfer,
        wrong_block,
        wrong_heads,
        swapped_starts,
        missing_wait,
        wait_before_start,
        other_template,
        missing_template,
        other_layers,
        swapped_chunks,
        unequal_splits,
        skipped_exchange,
        dropped_boundary,
        blocking_boundaries,
        reduce_of_other_unit,
        renumbered_ranks,
    )
}
