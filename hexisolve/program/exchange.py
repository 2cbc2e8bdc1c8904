"""Head groups: who holds which heads and rows, and what the all-to-all moves.

Cost equation 4 (docs/cost-model.md): rank r sends to q ``s_r (h_q a_qk + k_q (a_qk + a_v))``
elements before attention and ``s_q h_r a_v`` after it; backward the transposed flows.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from hexisolve.data.model_spec import AttentionSpec
from hexisolve.plan.pieces import Pieces
from hexisolve.plan.plan import HeadGroup
from hexisolve.program.instructions import Exchange, ExchangeKind, Interval


@dataclass(frozen=True)
class GroupLayout:
    """One head group in one chunk shape, for layers with the given attention.

    Parameters
    ----------
    members
        Global rank numbers.
    rows
        T of every member.
    pieces
        The group's tokens in group order (pieces of the members one after another).
    q_heads, kv_heads
        Head intervals of every member; empty ones are (0, 0).
    """

    members: tuple[int, ...]
    rows: tuple[int, ...]
    pieces: Pieces
    q_heads: tuple[Interval, ...]
    kv_heads: tuple[Interval, ...]

    @property
    def num_rows(self) -> int:
        """S."""
        return sum(self.rows)

    def row_intervals(self) -> tuple[Interval, ...]:
        """Every member's interval of the group order."""
        ends = tuple(accumulate(self.rows))
        return tuple((end - rows, end) for end, rows in zip(ends, self.rows, strict=True))

    @cached_property
    def owned_kv_heads(self) -> tuple[tuple[Interval, ...], ...]:
        """KV head intervals that each member owns: every KV head held has exactly one owner.

        The owner of a KV head is the first member that holds it.
        """
        owner: dict[int, int] = {}
        for member_idx, (first, stop) in enumerate(self.kv_heads):
            for head in range(first, stop):
                owner.setdefault(head, member_idx)
        owned: list[list[Interval]] = [[] for _ in self.members]
        for head in sorted(owner):
            own = owned[owner[head]]
            if own and own[-1][1] == head:
                own[-1] = (own[-1][0], head + 1)
            else:
                own.append((head, head + 1))
        return tuple(map(tuple, owned))


def kv_head_range(q_heads: Interval, attention: AttentionSpec) -> Interval:
    """KV heads that a range of query heads reads; (0, 0) for an empty range.

    >>> from types import SimpleNamespace
    >>> kv_head_range((3, 6), SimpleNamespace(num_q_heads=8, num_kv_heads=4))
    (1, 3)
    """
    first, stop = q_heads
    if first >= stop:
        return 0, 0
    heads_per_kv = attention.num_q_heads // attention.num_kv_heads
    return first // heads_per_kv, (stop - 1) // heads_per_kv + 1


def group_layout(
    group: HeadGroup, first_rank: int, pieces: tuple[Pieces, ...], attention: AttentionSpec
) -> GroupLayout:
    """Lay out `group`, whose first rank has number `first_rank`."""
    q_heads = tuple(
        rank.q_heads if rank.q_heads[0] < rank.q_heads[1] else (0, 0) for rank in group.ranks
    )
    return GroupLayout(
        members=tuple(range(first_rank, first_rank + len(group.ranks))),
        rows=tuple(sum(part.num_tokens for part in own) for own in pieces),
        pieces=tuple(part for own in pieces for part in own),
        q_heads=q_heads,
        kv_heads=tuple(kv_head_range(heads, attention) for heads in q_heads),
    )


def exchange(
    kind: ExchangeKind, layout: GroupLayout, member_idx: int, channel: str, attention: AttentionSpec
) -> Exchange:
    """Write the all-to-all of one member, empty parts included."""
    to_heads = kind in ("qkv", "d_out")
    per_row = tuple(
        _elements_per_row(kind, q_heads, kv_heads, attention)
        for q_heads, kv_heads in zip(layout.q_heads, layout.kv_heads, strict=True)
    )
    own_rows, own_per_row = layout.rows[member_idx], per_row[member_idx]
    by_heads = tuple(own_rows * elements for elements in per_row)
    by_rows = tuple(rows * own_per_row for rows in layout.rows)
    return Exchange(
        kind=kind,
        channel=channel if len(layout.members) > 1 else "",
        members=layout.members,
        member_idx=member_idx,
        rows=layout.rows,
        q_heads=layout.q_heads,
        kv_heads=layout.kv_heads,
        send_elements=by_heads if to_heads else by_rows,
        receive_elements=by_rows if to_heads else by_heads,
    )


def _elements_per_row(
    kind: ExchangeKind, q_heads: Interval, kv_heads: Interval, attention: AttentionSpec
) -> int:
    """Elements of one token for a holder of these heads."""
    num_q, num_kv = q_heads[1] - q_heads[0], kv_heads[1] - kv_heads[0]
    if kind in ("out", "d_out"):
        return num_q * attention.v_head_dim
    width = attention.qk_head_dim + attention.v_head_dim
    return num_q * attention.qk_head_dim + num_kv * width
