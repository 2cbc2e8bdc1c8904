"""Stage boundaries move every token once, from its sender to its receiver."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from hexisolve.plan.pieces import stage_pieces
from hexisolve.plan.plan import Chunk, HeadGroup, Rank, Slice, Stage
from hexisolve.program.boundary import overlaps

GROUPS = st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=3), min_size=1, max_size=3)


def pieces(groups, chunk):  # type: ignore[no-untyped-def]
    ring = tuple(HeadGroup(tuple(Rank("d", n, (0, 1)) for n in group)) for group in groups)
    return stage_pieces(Stage((0, 1), ring), chunk)


def held(stage, first):  # type: ignore[no-untyped-def]
    """(rank, row) -> token."""
    tokens = {}
    for rank, own in enumerate((own for group in stage for own in group), first):
        flat = [(p.sequence, i) for p in own for i in range(p.start, p.stop)]
        tokens.update({(rank, row): token for row, token in enumerate(flat)})
    return tokens


@settings(deadline=None)
@given(GROUPS, GROUPS, st.lists(st.integers(1, 40), min_size=1, max_size=4))
def test_every_token_moves_once_to_where_it_belongs(before, after, lengths):  # type: ignore[no-untyped-def]
    if not any(map(sum, before)) or not any(map(sum, after)):
        return
    chunk = Chunk(tuple(Slice(seq, 0, length) for seq, length in enumerate(lengths)))
    left, right = pieces(before, chunk), pieces(after, chunk)
    first = sum(len(group) for group in before)
    sources, targets = held(left, 0), held(right, first)
    filled = []
    for (sender, receiver), (out, into) in overlaps(left, 0, right, first).items():
        out_rows = [row for interval in out for row in range(*interval)]
        in_rows = [row for interval in into for row in range(*interval)]
        assert len(out_rows) == len(in_rows)
        for one, two in zip(out_rows, in_rows, strict=True):
            assert sources[sender, one] == targets[receiver, two]
            filled.append((receiver, two))
    assert sorted(filled) == sorted(targets)
