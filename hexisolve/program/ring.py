"""The ring: blocks of KV forwarded as they arrive, without a barrier per hop.

Transfers are laid out on common step numbers: every START of step t contains all that a rank
sends and receives in step t, sender and receiver use the same number, and what came or was computed
in step t goes on in step t + 2 at the earliest. So step t + 1 is posted before step t is waited for
and the links never wait for a kernel; by induction over t nothing can wait in a circle
(docs/programs.md). Where some group has a single block that would halve the pace: there it goes on
in step t + 1, and steps are posted one by one.

Within a step a group computes on what arrived before; its own keys fill the rest, so that each step
holds about the same work. Cost equation 5 (docs/cost-model.md).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from hexisolve.data.model_spec import AttentionSpec
from hexisolve.program.blocks import Block, RingWork
from hexisolve.program.exchange import GroupLayout
from hexisolve.program.instructions import (
    AttnBackwardBlock,
    AttnBlock,
    AttnPair,
    Drop,
    Instruction,
    Interval,
    Start,
    Transfer,
    TransferBuffer,
    Wait,
)


@dataclass
class GroupStep:
    """What one group does in one step (all of its ranks, each for its heads).

    A move is (block, the other group).
    """

    number: int
    kv_sends: list[tuple[Block, int]] = field(default_factory=list)
    kv_receives: list[tuple[Block, int]] = field(default_factory=list)
    dkv_sends: list[tuple[Block, int]] = field(default_factory=list)
    dkv_receives: list[tuple[Block, int]] = field(default_factory=list)
    pairs: tuple[AttnPair, ...] = ()
    kv_drops: tuple[int, ...] = ()
    dkv_drops: tuple[int, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Nothing to do."""
        moves = self.kv_sends or self.kv_receives or self.dkv_sends or self.dkv_receives
        return not (moves or self.pairs)


def ring_steps(work: RingWork, *, backward: bool) -> tuple[tuple[GroupStep, ...], ...]:
    """Lay moves and work on steps: ``[group]`` -> its steps, empty ones left out.

    Every step a group sends at most one KV block. Backward, the dK, dV sum of a block starts at
    the first group after its origin, leaves each group in the step after that group added its part
    and reaches the origin last.
    """
    delay = 2 if work.is_deep else 1
    groups = [_GroupState(idx, work, backward, delay) for idx in range(len(work.own))]
    for block in work.blocks:
        groups[block.chain[0]].queue.append((0, block))
    sends = [0] * len(groups)
    for block in work.blocks:
        for group_idx in block.chain[:-1]:
            sends[group_idx] += 1
    num_paced = max((max(s, len(a)) for s, a in zip(sends, work.arriving, strict=True)), default=0)
    steps: list[list[GroupStep]] = [[] for _ in groups]
    step_idx = 0
    while any(group.has_work for group in groups):
        now = [group.begin(step_idx, num_paced) for group in groups]
        for sender, step in zip(groups, now, strict=True):
            for block, destination in step.kv_sends:
                now[destination].kv_receives.append((block, sender.idx))
                groups[destination].receive(block, step_idx)
            for block, destination in step.dkv_sends:
                now[destination].dkv_receives.append((block, sender.idx))
                groups[destination].has_sum.add(block.number)
        for group, step in zip(groups, now, strict=True):
            group.end(step)
            if not step.is_empty:
                steps[group.idx].append(step)
        step_idx += 1
    return tuple(tuple(own) for own in steps)


class _GroupState:
    """One group while the steps are laid out."""

    def __init__(self, idx: int, work: RingWork, backward: bool, delay: int) -> None:
        self.idx = idx
        self.delay = delay
        self.backward = backward
        self.pairs_of = work.arriving[idx]
        self.own = deque(work.own[idx])
        self.num_portions = len(self.own) + len(self.pairs_of)
        self.num_done = 0
        self.queue: deque[tuple[int, Block]] = deque()
        """KV blocks to send, with the first step they may leave in."""
        self.arrived: deque[Block] = deque()
        """KV blocks to compute on."""
        self.held: dict[int, Block] = {}
        """Blocks of others that are in memory."""
        self.to_send: set[int] = set()
        self.computed: set[int] = set()
        self.has_sum: set[int] = set()
        self.open_sums: dict[int, Block] = {}
        self.ready_sums: deque[tuple[int, Block]] = deque()
        """Sums to send, with the step they leave in."""

    @property
    def has_work(self) -> bool:
        return bool(self.queue or self.own or self.arrived or self.ready_sums)

    def begin(self, step_idx: int, num_paced: int) -> GroupStep:
        """Choose what leaves and what is computed, from what was there before the step."""
        step = GroupStep(step_idx)
        if self.queue and self.queue[0][0] <= step_idx:
            _, block = self.queue.popleft()
            self.to_send.discard(block.number)
            step.kv_sends.append((block, block.chain[block.chain.index(self.idx) + 1]))
        while self.ready_sums and self.ready_sums[0][0] <= step_idx:
            _, block = self.ready_sums.popleft()
            following = block.after(self.idx)
            step.dkv_sends.append((block, block.chain[0] if following is None else following))
        step.dkv_drops = tuple(block.number for block, _ in step.dkv_sends)

        pairs: list[AttnPair] = []
        while self.arrived:
            block = self.arrived.popleft()
            pairs.extend(self.pairs_of[block.number])
            self.computed.add(block.number)
            self.num_done += 1
        due = self.num_portions * (step_idx + 1) / (num_paced + 1)
        while self.own and (self.num_done < due or step_idx >= num_paced):
            pairs.extend(self.own.popleft())
            self.num_done += 1
        step.pairs = tuple(pairs)
        return step

    def receive(self, block: Block, step_idx: int) -> None:
        self.arrived.append(block)
        self.held[block.number] = block
        if self.backward:
            self.open_sums[block.number] = block
        if block.after(self.idx) is not None:
            self.queue.append((step_idx + self.delay, block))
            self.to_send.add(block.number)

    def end(self, step: GroupStep) -> None:
        """Free what was used and sent; sums that are complete may leave."""
        done = [n for n in self.held if n in self.computed and n not in self.to_send]
        for number in done:
            del self.held[number]
        step.kv_drops = tuple(done)
        for number, block in list(self.open_sums.items()):
            is_first = block.chain[1] == self.idx
            if number in self.computed and (is_first or number in self.has_sum):
                del self.open_sums[number]
                self.ready_sums.append((step.number + self.delay, block))


@dataclass(frozen=True)
class RingRank:
    """One rank's view of the ring: which heads it exchanges with whom.

    Parameters
    ----------
    layouts
        All head groups, in ring order.
    group_idx, member_idx
        This rank.
    channel
        The ring's process group.
    is_deep
        Whether a step is posted before the one before it is waited for.
    """

    layouts: tuple[GroupLayout, ...]
    group_idx: int
    member_idx: int
    channel: str
    attention: AttentionSpec
    is_deep: bool

    @property
    def kv_heads(self) -> Interval:
        """KV heads this rank holds."""
        return self.layouts[self.group_idx].kv_heads[self.member_idx]

    def instructions(self, steps: Sequence[GroupStep], *, backward: bool) -> Iterator[Instruction]:
        """Write the ring's part of attention: {START of the next step; ATTN_BLOCK; WAIT; DROP}."""
        first, stop = self.kv_heads
        if first == stop:
            return
        kv_out: dict[int, list[tuple[int, Interval]]] = {}
        kv_in: dict[int, list[tuple[int, Interval]]] = {}
        all_out: dict[int, list[tuple[int, Interval]]] = {}
        all_in: dict[int, list[tuple[int, Interval]]] = {}
        owned = self.layouts[self.group_idx].owned_kv_heads[self.member_idx]
        for other_idx, other in enumerate(self.layouts):
            if other_idx == self.group_idx:
                continue
            kv_out[other_idx] = _overlaps(owned, other.members, other.kv_heads)
            all_in[other_idx] = kv_out[other_idx]
            kv_in[other_idx] = [
                (peer, heads)
                for peer, intervals in zip(other.members, other.owned_kv_heads, strict=True)
                for interval in intervals
                for _, heads in _overlaps([interval], (peer,), (self.kv_heads,))
            ]
            all_out[other_idx] = kv_in[other_idx]
        starts: dict[int, Start] = {}
        for step in steps:
            transfers = (
                *self._moves("kv", True, step.kv_sends, kv_out),
                *self._moves("kv", False, step.kv_receives, kv_in),
                *self._moves("dkv", True, step.dkv_sends, all_out),
                *self._moves("dkv", False, step.dkv_receives, all_in),
            )
            if transfers:
                starts[step.number] = Start(f"ring {step.number}", transfers)
        not_posted = dict(starts)
        for step in steps:
            for number in (step.number, step.number + 1)[: 1 + self.is_deep]:
                if number in not_posted:
                    yield not_posted.pop(number)
            if step.pairs:
                yield AttnBackwardBlock(step.pairs) if backward else AttnBlock(step.pairs)
            if step.number in starts:
                yield Wait(starts[step.number].handle)
            if step.kv_drops:
                yield Drop("kv_block", step.kv_drops)
            if step.dkv_drops:
                yield Drop("dkv_block", step.dkv_drops)

    def _moves(
        self,
        what: str,
        is_send: bool,
        moves: Sequence[tuple[Block, int]],
        partners: dict[int, list[tuple[int, Interval]]],
    ) -> Iterator[Transfer]:
        """Transfers of group moves: KV from its owner, sums from every holder to the owner."""
        width = self.attention.qk_head_dim + self.attention.v_head_dim
        for block, other in sorted(moves, key=lambda move: move[0].number):
            is_origin = block.chain[0] == self.group_idx
            buffer: TransferBuffer
            if what == "kv":
                buffer = "kv_own" if is_origin else "kv_block"
            else:
                buffer = "dkv_own" if is_origin else "dkv_block"
            rows = block.rows if is_origin else ((0, block.num_rows),)
            for peer, heads in partners[other]:
                yield Transfer(
                    channel=self.channel,
                    peer=peer,
                    is_send=is_send,
                    buffer=buffer,
                    num_elements=block.num_rows * (heads[1] - heads[0]) * width,
                    dtype="activation" if what == "kv" else "accumulator",
                    rows=rows,
                    heads=heads,
                    block=block.number,
                    adds=what == "dkv" and not is_send,
                )


def _overlaps(
    intervals: Sequence[Interval], peers: Sequence[int], heads: Sequence[Interval]
) -> list[tuple[int, Interval]]:
    """(peer, common head interval) of everyone who shares heads with `intervals`."""
    return [
        (peer, (max(own[0], theirs[0]), min(own[1], theirs[1])))
        for own in intervals
        for peer, theirs in zip(peers, heads, strict=True)
        if max(own[0], theirs[0]) < min(own[1], theirs[1])
    ]
