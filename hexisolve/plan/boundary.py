"""What moves between two stages: hidden states from each shard to the shards that overlap it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from hexisolve.cost.exchange import boundary_bytes
from hexisolve.plan.attention_traffic import transposed
from hexisolve.plan.plan import Stage
from hexisolve.plan.price_book import Exchange, PriceBook
from hexisolve.plan.stage_price import tokens_of
from hexisolve.plan.tokens import ChunkShape, StageTokens


class Boundary(NamedTuple):
    """One chunk between two stages: hidden states forward, their gradients backward."""

    forward: Exchange
    backward: Exchange


def boundary(
    book: PriceBook, sender: Stage, receiver: Stage, sender_idx: int, shape: ChunkShape
) -> Boundary:
    """Price the transfer of one chunk between stage `sender_idx` and the next (equation 8)."""
    position = sender_idx if shape[1] is not None else -1
    key = ("boundary", book.stage_key(sender), book.stage_key(receiver), position, shape)
    known: Boundary | None = book.entries.get(key)
    if known is None:
        before = tokens_of(book, sender, sender_idx, shape)
        after = tokens_of(book, receiver, sender_idx + 1, shape)
        hidden = book.instance.model.hidden_size
        traffic: dict[tuple[str, str], float] = {}
        for source, target, num_tokens in _moves(sender, receiver, before, after):
            num_bytes = boundary_bytes(num_tokens, hidden, book.e)
            traffic[source, target] = traffic.get((source, target), 0.0) + num_bytes
        known = Boundary(book.exchange(traffic), book.exchange(transposed(traffic)))
        book.entries[key] = known
    return known


def _moves(
    sender: Stage, receiver: Stage, before: StageTokens, after: StageTokens
) -> Iterator[tuple[str, str, int]]:
    """(sender, receiver, tokens) of every overlap of their pieces."""
    ours, theirs = _sorted_pieces(sender, before), _sorted_pieces(receiver, after)
    i = j = 0
    while i < len(ours) and j < len(theirs):
        sequence, start, stop, source = ours[i]
        other, first, last, target = theirs[j]
        if sequence == other:
            num_tokens = min(stop, last) - max(start, first)
            if num_tokens > 0:
                yield source, target, num_tokens
        if (sequence, stop) < (other, last):
            i += 1
        else:
            j += 1


def _sorted_pieces(stage: Stage, tokens: StageTokens) -> list[tuple[int, int, int, str]]:
    pieces = []
    own = (own for group in tokens.pieces for own in group)
    for rank, parts in zip(stage.ranks, own, strict=True):
        pieces += [(p.sequence, p.start, p.stop, rank.device) for p in parts]
    return sorted(pieces)
