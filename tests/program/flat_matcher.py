"""A slow and simple matcher: the flat streams of all ranks, scanned until nothing moves.

Written from the rules of docs/programs.md, not from `hexisolve.program.rendezvous`.
"""

from __future__ import annotations

from typing import Any

from hexisolve.program import instructions as ins
from hexisolve.program.rank_program import Programs, expand

COLLECTIVES = (ins.Exchange, ins.Gather, ins.Reduce, ins.Norm)
PAYLOADS = {"kv_own": "kv_block", "dkv_block": "dkv_own"}


class FlatRank:
    def __init__(self, rank: int, stream: list[Any]) -> None:
        self.rank = rank
        self.stream = stream
        self.at = 0
        # Posted groups, oldest first: [handle, channel, [transfer or None when met], context]
        self.groups: list[list[Any]] = []

    def heads(self) -> list[list[Any]]:
        """The oldest open group of every channel."""
        seen: set[str] = set()
        heads = []
        for group in self.groups:
            if any(part is not None for part in group[2]) and group[1] not in seen:
                seen.add(group[1])
                heads.append(group)
        return heads

    def is_open(self, handle: str) -> bool:
        return any(g[0] == handle and any(p is not None for p in g[2]) for g in self.groups)

    def channel_is_busy(self, channel: str) -> bool:
        return any(g[1] == channel and any(p is not None for p in g[2]) for g in self.groups)


def flat_match(programs: Programs) -> bool:
    """True when all ranks run to their end and every pair agrees."""
    members = {channel.name: channel.members for channel in programs.channels}
    try:
        ranks = [FlatRank(p.rank, list(expand(p))) for p in programs.ranks]
    except KeyError:  # a call of a template that is not there
        return False
    if [r.rank for r in ranks] != list(range(len(ranks))):
        return False
    moved = True
    while moved:
        moved = False
        for own in ranks:
            step = _advance(own, members)
            if step is None:
                return False
            moved |= step
        for sender in ranks:
            for group in sender.heads():
                for idx, part in enumerate(group[2]):
                    if part is None or not part.is_send:
                        continue
                    met = _meet(sender, group, idx, ranks)
                    if met is None:
                        return False
                    moved |= met
        for channel, ring in members.items():
            met = _collective(channel, ring, ranks)
            if met is None:
                return False
            moved |= met
    return all(own.at == len(own.stream) and not own.groups for own in ranks)


def _advance(own: FlatRank, members: dict[str, Any]) -> bool | None:
    moved = False
    while own.at < len(own.stream):
        instruction, chunk, layer = own.stream[own.at]
        if isinstance(instruction, ins.Start):
            if not instruction.transfers or any(g[0] == instruction.handle for g in own.groups):
                return None
            for part in instruction.transfers:
                ring = members.get(part.channel, ())
                if own.rank not in ring or part.peer not in ring or part.peer == own.rank:
                    return None
                if part.num_elements < 1:
                    return None
            for channel in dict.fromkeys(part.channel for part in instruction.transfers):
                parts = [part for part in instruction.transfers if part.channel == channel]
                own.groups.append([instruction.handle, channel, parts, (chunk, layer)])
        elif isinstance(instruction, ins.Wait):
            if not any(g[0] == instruction.handle for g in own.groups):
                return None
            if own.is_open(instruction.handle):
                return moved
            own.groups = [g for g in own.groups if g[0] != instruction.handle]
        elif isinstance(instruction, COLLECTIVES):
            if instruction.channel:
                return None if own.rank not in members.get(instruction.channel, ()) else moved
            if instruction.members != (own.rank,):
                return None
        own.at += 1
        moved = True
    return moved


def _meet(sender: FlatRank, group: list[Any], idx: int, ranks: list[FlatRank]) -> bool | None:
    send = group[2][idx]
    earlier = [p for p in group[2][:idx] if p and p.is_send and p.peer == send.peer]
    if earlier:
        return False
    for other in ranks[send.peer].heads():
        if other[1] != send.channel:
            continue
        for place, part in enumerate(other[2]):
            if part is None or part.is_send or part.peer != sender.rank:
                continue
            ours = PAYLOADS.get(send.buffer, send.buffer)
            theirs = PAYLOADS.get(part.buffer, part.buffer)
            same = ("num_elements", "dtype", "heads", "block", "unit")
            if ours != theirs or any(getattr(send, f) != getattr(part, f) for f in same):
                return None
            if group[3] != other[3]:
                return None
            group[2][idx] = other[2][place] = None
            return True
    return False


def _collective(channel: str, ring: Any, ranks: list[FlatRank]) -> bool | None:
    calls = []
    for number in ring:
        own = ranks[number]
        if own.at >= len(own.stream) or own.channel_is_busy(channel):
            return False
        instruction, chunk, layer = own.stream[own.at]
        if not isinstance(instruction, COLLECTIVES) or instruction.channel != channel:
            return False
        calls.append((instruction, chunk, layer))
    first = calls[0]
    for idx, (call, chunk, layer) in enumerate(calls):
        if type(call) is not type(first[0]) or (chunk, layer) != first[1:]:
            return None
        if call.members != tuple(ring):
            return None
        if isinstance(call, ins.Gather | ins.Reduce) and call != first[0]:
            return None
        if isinstance(call, ins.Exchange):
            if call.member_idx != idx or call.kind != first[0].kind or call.dtype != first[0].dtype:
                return None
            for field in ("rows", "q_heads", "kv_heads"):
                if getattr(call, field) != getattr(first[0], field):
                    return None
            if [c[0].send_elements[idx] for c in calls] != list(call.receive_elements):
                return None
    for number in ring:
        ranks[number].at += 1
    return True
