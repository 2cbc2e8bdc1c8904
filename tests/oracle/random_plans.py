"""Random legal plans of the layout's plan space, for instances of any size.

Made without any solver: drawn, then improved by random local moves under `evaluate`. What a bound
or a relaxed price says must hold for them too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from random import Random

from hexisolve.data.instance import Instance
from hexisolve.plan.check import check_plan
from hexisolve.plan.evaluate import evaluate
from hexisolve.plan.pieces import split_tokens
from hexisolve.plan.plan import HeadGroup, Plan, Policy, Rank, Stage
from tests.oracle.brute_force import POLICIES, StageOption, plan_of, zero_options

Unit = tuple[str, ...]
_MOST_STAGES = 6


@dataclass
class _Member:
    """A rank that is being drawn: its unit, token blocks and number of query heads."""

    device: str
    unit: int
    blocks: int = 0
    heads: int = 0


@dataclass
class _Draft:
    """A stage that is being drawn."""

    num_layers: int
    groups: list[list[_Member]]
    zero: tuple[int, str] = (0, "step")
    policies: list[int] = field(default_factory=list)

    @property
    def members(self) -> list[_Member]:
        """All ranks in ring order."""
        return [member for group in self.groups for member in group]


Drafts = list[_Draft]


def random_legal_plans(
    instance: Instance,
    rng: Random,
    *,
    number: int = 10,
    moves: int = 30,
    units: Sequence[Unit] | None = None,
    whole_groups: bool = False,
) -> Iterator[Plan]:
    """Legal plans: `number` draws that `check_plan` accepts, each followed by its improvement.

    Parameters
    ----------
    moves
        Local moves tried on every draw; one is kept when the plan stays legal and gets faster.
    units
        Devices that are used together, in one stage or not at all; every device alone by default.
    whole_groups
        Head groups hold whole units: none is cut between two groups.
    """
    space = _Space(
        instance, rng, units or [(d.id,) for d in instance.cluster.devices], whole_groups
    )
    for _ in range(number):
        drafts = space.legal_draw()
        if drafts is None:
            continue
        plan = space.plan(drafts)
        yield plan
        best_s = evaluate(instance, plan).step_time_s
        improved = plan
        for _ in range(moves):
            changed = space.moved(drafts)
            if changed is None:
                continue
            candidate = space.plan(changed)
            if check_plan(instance, candidate):
                continue
            price_s = evaluate(instance, candidate).step_time_s
            if price_s < best_s:
                drafts, improved, best_s = changed, candidate, price_s
        if improved is not plan:
            yield improved


class _Space:
    """Draws and moves in the plan space of one instance."""

    def __init__(
        self, instance: Instance, rng: Random, units: Sequence[Unit], whole_groups: bool
    ) -> None:
        self.instance = instance
        self.rng = rng
        self.units = units
        self.whole_groups = whole_groups
        self.num_heads = instance.model.layers[0].attention.num_q_heads
        longest = max(instance.workload.sequence_lengths)
        self.block = min(instance.workload.block_tokens, longest)
        self.num_blocks, self.rest = divmod(longest, self.block)
        self.zeros = zero_options(instance)
        self.moves: tuple[Callable[[Drafts], bool], ...] = (
            self._move_blocks, self._move_heads, self._move_layers, self._merge_groups,
            self._split_group, self._move_unit, self._swap_ranks, self._swap_groups,
            self._swap_stages, self._change_zero, self._change_policies, self._balance,
        )  # fmt: skip

    def legal_draw(self, attempts: int = 40) -> Drafts | None:
        """Draw until `check_plan` accepts one; every other attempt saves memory where it can."""
        for attempt in range(attempts):
            drafts = self._draw()
            if attempt % 2:
                for draft in drafts:
                    draft.zero = self.zeros[-1]
                    draft.policies = [0, 0, draft.num_layers]
            if not check_plan(self.instance, self.plan(drafts)):
                return drafts
        return None

    def moved(self, drafts: Drafts) -> Drafts | None:
        """A copy after one random move; None when that move is not possible here."""
        copy = deepcopy(drafts)
        return copy if self.rng.choice(self.moves)(copy) else None

    def plan(self, drafts: Drafts) -> Plan:
        """The plan of a draft."""
        options = []
        bounds = accumulate((draft.num_layers for draft in drafts), initial=0)
        for draft, layers in zip(drafts, pairwise(bounds), strict=True):
            fullest = max(draft.members, key=lambda member: member.blocks)
            ring = []
            for group in draft.groups:
                stops = accumulate((member.heads for member in group), initial=0)
                ring.append(
                    HeadGroup(
                        tuple(
                            Rank(
                                member.device,
                                member.blocks * self.block + self.rest * (member is fullest),
                                heads,
                            )
                            for member, heads in zip(group, pairwise(stops), strict=True)
                        )
                    )
                )
            policies: tuple[tuple[Policy, int], ...] = tuple(
                pair for pair in zip(POLICIES, draft.policies, strict=True) if pair[1]
            )
            stage = Stage(layers, tuple(ring), "kv", *draft.zero)  # type: ignore[arg-type]
            options.append(StageOption(stage, policies))
        return plan_of(self.instance, options)

    def _draw(self) -> Drafts:
        rng, num_layers = self.rng, self.instance.model.num_layers
        order = list(range(len(self.units)))
        if rng.random() < 0.5:
            rng.shuffle(order)
        if rng.random() < 0.3:
            order = order[: rng.randint(1, len(order))]
        order = self._connected(order)
        num_stages = rng.randint(1, min(len(order), num_layers, _MOST_STAGES))
        stops = sorted(rng.sample(range(1, len(order)), num_stages - 1))
        drafts = []
        for first, stop in pairwise([0, *stops, len(order)]):
            groups = [self._members(unit) for unit in order[first:stop]]
            drafts.append(_Draft(1, groups))
        speeds = [sum(map(self._speed, draft.members)) for draft in drafts]
        weights = speeds if rng.random() < 0.7 else [rng.random() + 0.01 for _ in drafts]
        for draft, layers in zip(drafts, _deal(num_layers - num_stages, weights), strict=True):
            draft.num_layers += layers
            self._regroup(draft)
            self._share(draft)
            draft.zero = rng.choice(self.zeros)
            self._choose_policies(draft)
        return drafts

    def _connected(self, order: list[int]) -> list[int]:
        """Units that the first one's devices reach."""
        cluster, home = self.instance.cluster, self.units[order[0]][0]
        return [
            unit
            for unit in order
            if all(device == home or cluster.connected(device, home) for device in self.units[unit])
        ]

    def _members(self, unit: int) -> list[_Member]:
        return [_Member(device, unit) for device in self.units[unit]]

    def _speed(self, member: _Member) -> float:
        return self.instance.cluster.device(member.device).dense_flop_per_s

    def _regroup(self, draft: _Draft) -> None:
        """Cut a stage into head groups at random."""
        atoms = draft.groups if self.whole_groups else [[member] for member in draft.members]
        keep = self.rng.choice([0.1, 0.5, 0.9])
        groups = [list(atoms[0])]
        for atom in atoms[1:]:
            if self.rng.random() < keep:
                groups[-1] += atom
            else:
                groups.append(list(atom))
        draft.groups = groups

    def _share(self, draft: _Draft) -> None:
        """Tokens and heads: by speed, even, or anyhow (empty shares too)."""
        style = self.rng.choice(["speed", "speed", "even", "any"])

        def weights(members: list[_Member]) -> list[float]:
            if style == "even":
                return [1.0] * len(members)
            if style == "speed":
                return [self._speed(member) for member in members]
            return [self.rng.choice([0.0, 1.0, self.rng.random()]) + 1e-6 for _ in members]

        members = draft.members
        for member, blocks in zip(members, _deal(self.num_blocks, weights(members)), strict=True):
            member.blocks = blocks
        for group in draft.groups:
            for member, heads in zip(group, _deal(self.num_heads, weights(group)), strict=True):
                member.heads = heads

    def _choose_policies(self, draft: _Draft) -> None:
        policies = [0, 0, 0]
        policies[self.rng.randrange(3)] = draft.num_layers
        if self.rng.random() < 0.4:
            source, target = self.rng.sample(range(3), 2)
            count = self.rng.randint(0, policies[source])
            policies[source] -= count
            policies[target] += count
        draft.policies = policies

    # The moves change a draft in place and say whether they did.

    def _move_blocks(self, drafts: Drafts) -> bool:
        members = self.rng.choice(drafts).members
        if len(members) < 2:
            return False
        source, target = self.rng.sample(members, 2)
        if not source.blocks:
            return False
        count = self.rng.choice([1, self.rng.randint(1, source.blocks)])
        source.blocks -= count
        target.blocks += count
        return True

    def _move_heads(self, drafts: Drafts) -> bool:
        group = self.rng.choice(self.rng.choice(drafts).groups)
        if len(group) < 2:
            return False
        source, target = self.rng.sample(group, 2)
        if not source.heads:
            return False
        source.heads -= 1
        target.heads += 1
        return True

    def _move_layers(self, drafts: Drafts) -> bool:
        if len(drafts) < 2:
            return False
        source, target = self.rng.sample(drafts, 2)
        if source.num_layers < 2:
            return False
        idx = self.rng.choice([idx for idx, count in enumerate(source.policies) if count])
        for draft, sign in ((source, -1), (target, 1)):
            draft.num_layers += sign
            draft.policies[idx] += sign
        return True

    def _merge_groups(self, drafts: Drafts) -> bool:
        draft = self.rng.choice(drafts)
        if len(draft.groups) < 2:
            return False
        idx = self.rng.randrange(len(draft.groups) - 1)
        draft.groups[idx : idx + 2] = [draft.groups[idx] + draft.groups[idx + 1]]
        self._share_heads(draft.groups[idx])
        return True

    def _split_group(self, drafts: Drafts) -> bool:
        draft = self.rng.choice(drafts)
        idx = self.rng.randrange(len(draft.groups))
        group = draft.groups[idx]
        places = [
            place
            for place in range(1, len(group))
            if not (self.whole_groups and _units(group[:place]) & _units(group[place:]))
        ]
        if not places:
            return False
        place = self.rng.choice(places)
        draft.groups[idx : idx + 1] = [group[:place], group[place:]]
        self._share_heads(draft.groups[idx])
        self._share_heads(draft.groups[idx + 1])
        return True

    def _share_heads(self, group: list[_Member]) -> None:
        counts = _deal(self.num_heads, [self._speed(member) for member in group])
        for member, heads in zip(group, counts, strict=True):
            member.heads = heads

    def _move_unit(self, drafts: Drafts) -> bool:
        """Move a unit to another stage, or between work and idleness."""
        used = {member.unit: draft for draft in drafts for member in draft.members}
        home = next(iter(used))
        near = set(self._connected([home, *range(len(self.units))]))
        unit = self.rng.choice(sorted(near))
        source = used.get(unit)
        if source is not None:
            if all(member.unit == unit for member in source.members):
                return False
            for group in source.groups:
                group[:] = [member for member in group if member.unit != unit]
            source.groups = [group for group in source.groups if group]
            self._share(source)
        targets = [draft for draft in drafts if draft is not source]
        if source is not None and (not targets or self.rng.random() < 0.2):
            return True
        target = self.rng.choice(targets)
        if self.rng.random() < 0.5:
            place = self.rng.randint(0, len(target.groups))
            target.groups.insert(place, self._members(unit))
        else:
            self.rng.choice(target.groups).extend(self._members(unit))
        self._share(target)
        return True

    def _swap_ranks(self, drafts: Drafts) -> bool:
        """Two ranks of a head group change places."""
        groups = [group for draft in drafts for group in draft.groups if len(group) > 1]
        if not groups:
            return False
        group = self.rng.choice(groups)
        a, b = self.rng.sample(range(len(group)), 2)
        group[a], group[b] = group[b], group[a]
        return True

    def _swap_groups(self, drafts: Drafts) -> bool:
        groups = self.rng.choice(drafts).groups
        if len(groups) < 2:
            return False
        a, b = self.rng.sample(range(len(groups)), 2)
        groups[a], groups[b] = groups[b], groups[a]
        return True

    def _swap_stages(self, drafts: Drafts) -> bool:
        if len(drafts) < 2:
            return False
        a, b = self.rng.sample(range(len(drafts)), 2)
        drafts[a], drafts[b] = drafts[b], drafts[a]
        return True

    def _change_zero(self, drafts: Drafts) -> bool:
        self.rng.choice(drafts).zero = self.rng.choice(self.zeros)
        return True

    def _change_policies(self, drafts: Drafts) -> bool:
        draft = self.rng.choice(drafts)
        source, target = self.rng.sample(range(3), 2)
        if not draft.policies[source]:
            return False
        count = self.rng.randint(1, draft.policies[source])
        draft.policies[source] -= count
        draft.policies[target] += count
        return True

    def _balance(self, drafts: Drafts) -> bool:
        self._share(self.rng.choice(drafts))
        return True


def _units(group: Sequence[_Member]) -> set[int]:
    return {member.unit for member in group}


def _deal(total: int, weights: Sequence[float]) -> tuple[int, ...]:
    """`total` in whole parts in proportion to positive weights."""
    largest = max(weights)
    return split_tokens(total, [int(1_000_000 * weight / largest) for weight in weights])
