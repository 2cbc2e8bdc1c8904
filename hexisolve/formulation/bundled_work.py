"""What is bounded by bundles: layers of a mix of policies on the hosts of a column."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from hexisolve.formulation.bundle_hosts import Hosts, Margins
from hexisolve.formulation.pipeline_table import FloatArray
from hexisolve.formulation.work import LayerLoad
from hexisolve.plan.plan import Policy

Bundle = tuple[int, ...]


class BundledStage(NamedTuple):
    """What is fixed of a stage: its bundles, and what may still be open.

    Parameters
    ----------
    bundles
        Hosts of each.
    groups
        Head groups of each; None: open.
    turn
        Bundles in the order of the ring; None: open. One or two bundles have only one order.
    """

    bundles: tuple[Bundle, ...]
    groups: tuple[int | None, ...]
    turn: tuple[int, ...] | None


class HostMemory(NamedTuple):
    """Bytes that all layers of a stage keep on the devices of each host.

    Parameters
    ----------
    needs
        Bytes per share X_h of the tokens, and per share X_S eta_h of tokens and heads.
    exchange
        The same for the buffers of an all-to-all, where groups have several ranks.
    room
        ``[host]`` bytes there are.
    logits
        Bytes of logits for all tokens.
    logits_tile
        Share of the tokens that a device has logits of at once.
    """

    needs: tuple[float, ...]
    exchange: tuple[float, ...]
    room: FloatArray
    logits: float = 0.0
    logits_tile: float = 0.0


class Ends(NamedTuple):
    """Layers at the ends of a stage, of one policy, with nothing beside them."""

    policy: Policy
    forwards: float
    backwards: float


@dataclass(frozen=True, eq=False)
class BundledWork:
    """A mix of layers on a column: seconds count `weights` times under each policy.

    Parameters
    ----------
    load
        One layer.
    weights
        Layers of each policy; their backwards count.
    forwards
        How many forwards count; None for as many as layers.
    hosts
        The hosts under each of these policies.
    margins
        What rounding changes.
    num_blocks
        Blocks that tokens are dealt in.
    moved
        Bytes that enter every device beside forward and backward, around a ring of all devices.
    hop_s
        Launches of a hop of the ring, F and B, by policy.
    pass_launch_s
        Launches of a forward without hops. Seconds of passes do not count launches.
    ends
        Policy, and how many forwards and backwards of it have nothing moving beside them.
    memory
        None: enough.
    known
        Rows that were written before for works that differ in weights and memory only.
    """

    load: LayerLoad
    weights: Mapping[Policy, float]
    hosts: Mapping[Policy, Hosts]
    margins: Margins
    num_blocks: int
    moved: tuple[float, float]
    hop_s: Mapping[Policy, float]
    pass_launch_s: float
    forwards: float | None = None
    ends: Ends | None = None
    memory: HostMemory | None = None
    known: dict[object, Any] = field(default_factory=dict)

    @property
    def any_hosts(self) -> Hosts:
        """What does not depend on the policy."""
        return next(iter(self.hosts.values()))

    @property
    def weighted_hop_s(self) -> float:
        """Launches of a hop of the ring of all layers."""
        if self.forwards is not None:
            return 0.0  # of one pass alone they are not known apart
        return sum(weight * self.hop_s[policy] for policy, weight in self.weights.items())


class Variables:
    """Numbers of the variables of a program.

    Parameters
    ----------
    num_hosts, bundles, policies, has_ends
        Sizes.

    Notes
    -----
    Per host: ``tokens`` X, ``heads`` eta, ``busiest`` K, ``blocks`` (the tokens of the busiest
    device times the devices); products ``pairs`` X_S eta, ``own`` X eta, and ``busiest_pairs``, K
    times the tokens of the busiest group times the groups. ``crossing[h, k]``: X_h eta_k of two
    hosts of a bundle.

    Per bundle: ``bundle`` X_S, ``busiest_group`` times the groups, ``dense``, ``attention`` and
    ``absent`` (what its group with most tokens misses).

    Then seconds of the passes without all-to-all; backward for each policy. ``swap`` and
    ``swap_back``: seconds of all-to-all if q, K, V and the outputs all moved from tokens to heads,
    or all the other way.
    """

    def __init__(
        self, num_hosts: int, bundles: Sequence[Bundle], policies: Sequence[Policy], has_ends: bool
    ) -> None:
        numbers = itertools.count()

        def take(count: int) -> list[int]:
            return list(itertools.islice(numbers, count))

        (
            self.tokens, self.heads, self.busiest, self.blocks, self.pairs, self.busiest_pairs,
            self.own,
        ) = (take(num_hosts) for _ in range(7))  # fmt: skip
        changes = [pair for own in bundles for pair in itertools.permutations(own, 2)]
        self.crossing = dict(zip(changes, take(len(changes)), strict=True))
        num_bundles = len(bundles)
        self.bundle, self.busiest_group, self.absent = (
            take(num_bundles), take(num_bundles), take(num_bundles)
        )  # fmt: skip
        self.num_shares = self.absent[-1] + 1
        self.dense, self.attention = take(num_bundles), take(num_bundles)
        self.forward, self.slowest_dense, self.ring, self.ring_back = take(4)
        self.swap, self.swap_back = take(2)
        self.backward = dict(zip(policies, take(len(policies)), strict=True))
        self.attention_back = {policy: take(num_bundles) for policy in policies}
        # Passes at the ends, with nothing beside them.
        self.plain = take(2) if has_ends else []  # forward and backward
        self.count = next(numbers)


Weights = dict[int, float]


class Port(NamedTuple):
    """A border inside or around a host, seen from behind it.

    Parameters
    ----------
    is_host
        Whether it is the border of the host.
    rate, rate_out
        Bytes/s in and out.
    share
        Of the host's heads in a group that are behind it.
    heads
        Variables: heads, and the bundle's tokens times heads, that count at this port.
    into, out
        Others' tokens times the own heads, and own tokens times the others' heads, at least.
    into_least, out_least
        Constants of these.
    """

    is_host: bool
    rate: float
    rate_out: float
    share: float
    heads: tuple[int, int]
    into: Weights
    out: Weights
    into_least: float
    out_least: float


def less(terms: Weights) -> list[tuple[int, float]]:
    """What is needed, on the other side of a row."""
    return [(variable, -weight) for variable, weight in terms.items()]
