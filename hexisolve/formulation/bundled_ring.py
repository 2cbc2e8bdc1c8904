"""A ring of whole shares from hosts that are joined in bundles (docs/plan-space.md)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from hexisolve.data.instance import Instance
from hexisolve.formulation.bundles import Suggestion
from hexisolve.formulation.whole_shares import evenly
from hexisolve.plan.plan import HeadGroup, Rank


def bundled_ring(
    instance: Instance, hosts: Sequence[Sequence[str]], suggestion: Suggestion
) -> tuple[HeadGroup, ...]:
    """The head groups of a suggestion, bundle after bundle in the turn of the ring.

    Parameters
    ----------
    hosts
        Device ids of every host of the column.
    suggestion
        Its shares; the last block of a length that is no multiple is the shorter one.
    """
    block = instance.workload.block_tokens
    longest = max(instance.workload.sequence_lengths)
    bundles, numbers, turn = suggestion.stage
    groups: list[list[Rank]] = []
    for idx in turn or range(len(bundles)):
        number = numbers[idx] or 1
        dealt = {host: evenly(suggestion.blocks[host], number) for host in bundles[idx]}
        for place in range(number):
            ranks: list[Rank] = []
            heads = [suggestion.heads[host] for host in bundles[idx]]
            firsts = dict(zip(bundles[idx], accumulate(heads, initial=0), strict=False))
            # There and back in turn: gathers around all ranks enter a host half as often, and the
            # last one least; K and V of many heads enter there beside them.
            order = sorted(bundles[idx], key=lambda host: suggestion.heads[host])
            for host in order[:: -1 if place % 2 else 1]:
                first = firsts[host]
                size = len(hosts[host]) // number
                own = hosts[host][place * size : (place + 1) * size]
                shares = zip(
                    own, evenly(dealt[host][place], size), evenly(suggestion.heads[host], size),
                    strict=True,
                )  # fmt: skip
                for device, count, few in shares:
                    ranks.append(Rank(device, count * block, (first, first + few)))
                    first += few
            groups.append(ranks)
    missing = sum(suggestion.blocks) * block - longest
    if missing:
        row, place = next(
            (row, place)
            for row in reversed(range(len(groups)))
            for place in reversed(range(len(groups[row])))
            if groups[row][place].tokens
        )
        last = groups[row][place]
        groups[row][place] = Rank(last.device, last.tokens - missing, last.q_heads)
    return tuple(HeadGroup(tuple(ranks)) for ranks in groups)
