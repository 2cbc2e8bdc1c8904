"""Which recompute fits a stage: the least time whose memory every device has.

Bytes are those of `hexisolve.cost.memory`, added up per layer kind and policy once for each
choice of shares; layers of a stage then only count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from hexisolve.cost.memory import (
    RankShare,
    backward_transient_bytes,
    boundary_buffer_bytes,
    exchange_buffer_bytes,
    kept_bytes,
    logits_bytes,
    ring_buffer_bytes,
    states_bytes,
)
from hexisolve.plan.plan import Policy
from hexisolve.plan.price_book import PriceBook
from hexisolve.plan.stage_price import Block
from hexisolve.solvers.realise_gauge import Floats

POLICIES: tuple[Policy, ...] = ("full", "layer", "none")


class ZeroChoice(NamedTuple):
    """A ZeRO mode and, for ZeRO-3, when gradients are reduced."""

    zero: int
    gradients: str


class ShareBytes(NamedTuple):
    """Bytes of one choice of shares.

    Parameters
    ----------
    kept
        ``[layer kind][policy][rank]``, of one layer and chunk.
    transient
        ``[policy][rank]``, the largest layer kind.
    fixed
        ``[rank]``: exchange, ring and boundary buffers, logits.
    """

    kept: Floats
    transient: Floats
    fixed: Floats


class Mix(NamedTuple):
    """Layers under each policy, seconds of F + B, and what every rank has left for states."""

    recompute: Mapping[Policy, int]
    seconds: float
    slack: Floats


def share_bytes(
    book: PriceBook,
    sizes: Sequence[int],
    tokens: Sequence[int],
    heads: Sequence[int],
    num_tokens: int,
    *,
    is_last: bool,
    has_boundary: bool,
) -> ShareBytes:
    """Bytes of every rank of a ring with these shares; `sizes` are those of its groups."""
    ranks = []
    first = 0
    for size in sizes:
        group_tokens = sum(tokens[first : first + size])
        stop = 0
        for idx in range(first, first + size):
            stop += heads[idx]
            own = (tokens[idx], group_tokens, stop - heads[idx], stop)
            ranks.append(_rank_bytes(book, own, size > 1, len(sizes) > 1, num_tokens))
        first += size
    model, cost = book.instance.model, book.instance.cost
    fixed = []
    for (_, _, buffers), count in zip(ranks, tokens, strict=True):
        total = buffers
        if has_boundary:
            total += boundary_buffer_bytes(RankShare(count, 0, 0, 0), model.hidden_size, book.e)
        if is_last:
            total += logits_bytes(count, model.vocab_size, book.e, cost.logits_tile_tokens)
        fixed.append(float(total))
    return ShareBytes(
        np.array([kept for kept, _, _ in ranks]).transpose(1, 2, 0),
        np.array([transient for _, transient, _ in ranks]).T,
        np.array(fixed),
    )


def _rank_bytes(
    book: PriceBook, own: tuple[int, int, int, int], in_group: bool, in_ring: bool, num_tokens: int
) -> tuple[list[list[float]], list[float], int]:
    """(kept of each kind and policy, transient of each policy, buffers) of one rank."""
    key = ("realise bytes", own, in_group, in_ring, num_tokens)
    known: tuple[list[list[float]], list[float], int] | None = book.entries.get(key)
    if known is not None:
        return known
    tokens, group_tokens, first, stop = own
    hidden, e, e_acc = book.instance.model.hidden_size, book.e, book.instance.cost.accumulator_bytes
    kept, transient = [], [0.0] * len(POLICIES)
    exchange = around = 0
    for layer in book.kind_layers:
        attention = layer.attention
        per_kv = max(attention.num_q_heads // max(attention.num_kv_heads, 1), 1)
        kv_heads = (stop - 1) // per_kv + 1 - first // per_kv if stop > first else 0
        share = RankShare(tokens, group_tokens, stop - first, kv_heads)
        kept.append([float(kept_bytes(p, share, layer, hidden, e)) for p in POLICIES])
        for idx, policy in enumerate(POLICIES):
            again = backward_transient_bytes(policy, share, layer, hidden, e, e_acc)
            transient[idx] = max(transient[idx], float(again))
        if in_group:
            exchange = max(exchange, exchange_buffer_bytes(share, layer, e))
        if in_ring:
            around = max(around, ring_buffer_bytes(num_tokens, share, layer, e, e_acc))
    known = book.entries[key] = (kept, transient, exchange + around)
    return known


def gathered_bytes(book: PriceBook, blocks: Sequence[Block], choice: ZeroChoice) -> int:
    """ZeRO-3: two neighbouring blocks of weights, and one whole gradient per chunk."""
    if choice.zero != 3:
        return 0
    sizes = [block.gathered for block in blocks]
    pair = max((a + b for a, b in pairwise(sizes)), default=sizes[0])
    gradient = 0
    if choice.gradients == "chunk":
        gradient = max(block.parameters for block in blocks) * book.instance.cost.gradient_bytes
    return pair * book.e + gradient


def state_bytes(book: PriceBook, parameters: int, choice: ZeroChoice) -> tuple[float, float]:
    """(bytes on every rank, bytes that the ranks share out) of model states."""
    cost = book.instance.cost
    own = states_bytes(parameters, 0.0, choice.zero, choice.gradients, book.e, cost)
    whole = states_bytes(parameters, 1.0, choice.zero, choice.gradients, book.e, cost)
    return own, whole - own


def best_mix(
    memory: ShareBytes,
    kinds: Sequence[int],
    seconds: Floats,
    free: Floats,
    shared: float,
    chunks_in_flight: int,
) -> Mix | None:
    """The fastest numbers of `full`, `layer` and `none` layers that fit, None when none do.

    A stage of l layers takes `full` on its first f, `none` on its last n, `layer` between. For
    every f the largest n is found by bisection, all f at once: kept bytes grow with n.

    Parameters
    ----------
    kinds
        Layer kind of every layer of the stage.
    seconds
        ``[kind][policy]``: F + B of one layer.
    free
        Usable bytes of every rank, less states that are not shared out and less gathered weights.
    shared
        Bytes of states that the ranks share out as their memory allows.
    """
    num_layers = len(kinds)
    rows = np.array(kinds)
    budget = free - memory.fixed
    # Prefix sums over layers: kept[policy] is (layers + 1, ranks), taken[policy] (layers + 1).
    kept = [np.vstack([0 * budget, np.cumsum(memory.kept[rows, p], axis=0)]) for p in range(3)]
    taken = [np.concatenate([[0.0], np.cumsum(seconds[rows, p])]) for p in range(3)]

    def slack(full: np.ndarray, none: np.ndarray) -> Floats:  # type: ignore[type-arg]
        last = num_layers - none
        held = kept[0][full] + kept[1][last] - kept[1][full] + kept[2][-1] - kept[2][last]
        has = [full > 0, last > full, none > 0]
        working = np.zeros_like(held)
        for p in range(3):
            working = np.maximum(working, has[p][:, None] * memory.transient[p])
        left: Floats = budget - chunks_in_flight * held - working
        return left

    def fits(left: Floats) -> np.ndarray:  # type: ignore[type-arg]
        ok: np.ndarray = (left >= 0.0).all(axis=1) & (left.sum(axis=1) >= shared)  # type: ignore[type-arg]
        return ok

    def mix(full: int, none: int, left: Floats) -> Mix:
        last = num_layers - none
        total = taken[0][full] + taken[1][last] - taken[1][full] + taken[2][-1] - taken[2][last]
        counts: dict[Policy, int] = {"full": full, "layer": last - full, "none": none}
        return Mix({p: count for p, count in counts.items() if count}, float(total), left)

    lightest = slack(np.array([0]), np.array([num_layers]))
    if fits(lightest)[0]:
        return mix(0, num_layers, lightest[0])
    full = np.arange(num_layers + 1)
    low = np.full(num_layers + 1, -1)
    high = num_layers - full  # n = l - f leaves no `layer`: looked at on its own
    with_layer = high > 0
    while (with_layer & (high - low > 1)).any():
        middle = np.where(with_layer, np.maximum((low + high) // 2, 0), 0)
        ok = fits(slack(full, middle)) & with_layer & (high - low > 1)
        moved = with_layer & (high - low > 1)
        low, high = np.where(ok, middle, low), np.where(moved & ~ok, middle, high)
    without = fits(slack(full, num_layers - full))
    pairs = [(int(f), int(low[f])) for f in full if with_layer[f] and low[f] >= 0]
    pairs += [(int(f), num_layers - int(f)) for f in full if without[f]]
    if not pairs:
        return None
    found = [mix(f, n, lightest[0]) for f, n in pairs]
    best = min(range(len(found)), key=lambda idx: found[idx].seconds)
    f, n = pairs[best]
    return found[best]._replace(slack=slack(np.array([f]), np.array([n]))[0])


def state_weights(slack: Floats, shared: float) -> tuple[int, ...]:
    """State shares as even as the ranks' slack allows (water-filling); all 1 where even fits."""
    num_ranks = len(slack)
    if not shared or (slack >= shared / num_ranks).all():
        return (1,) * num_ranks
    rest, level = shared, 0.0
    for done, room in enumerate(np.sort(slack)):
        level = rest / (num_ranks - done)
        if room >= level:
            break
        rest -= float(room)
    # Units of 2^-40 of the whole: coarse enough for whole numbers, finer than a byte.
    return tuple(int(min(float(room), level) / shared * 2.0**40) for room in slack)


