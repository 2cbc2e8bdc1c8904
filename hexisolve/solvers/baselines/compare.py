"""All baselines of one instance, by name."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from hexisolve.data.cluster import Device
from hexisolve.data.instance import Instance
from hexisolve.errors import InstanceError, PlanError
from hexisolve.plan.check import check_plan
from hexisolve.plan.plan import Plan
from hexisolve.solvers.baselines.families import (
    Family,
    even_4d_layouts,
    proportional_layouts,
    ring_layouts,
    ulysses_layouts,
    usp_layouts,
)
from hexisolve.solvers.baselines.hexiseq import hexiseq_layouts
from hexisolve.solvers.baselines.megatron import price_megatron
from hexisolve.solvers.baselines.search import Found, best_plan
from hexisolve.solvers.baselines.shapes import connected_parts, kinds_by_speed

log = logging.getLogger(__name__)

_FAMILIES: dict[str, Family] = {
    "ring": ring_layouts,
    "ulysses": ulysses_layouts,
    "usp": usp_layouts,
    "proportional": proportional_layouts,
    "hexiseq": hexiseq_layouts,
    "even": even_4d_layouts,
}
# On one kind of device ring, Ulysses and USP are members of the even family.
_SUBSET_FAMILIES = {
    "subset": ("even", "proportional", "hexiseq"),
    "subset_one_replica": ("usp", "proportional", "hexiseq"),
}
NAMES: tuple[str, ...] = (*_FAMILIES, "megatron", *_SUBSET_FAMILIES)


@dataclass(frozen=True)
class Baseline:
    """One baseline's answer.

    Parameters
    ----------
    name
        One of `NAMES`.
    plan
        A legal plan, or None: it does not fit, or the schema has no place for it (``megatron``).
    step_time_s
        The plan's price by `evaluate`; None when nothing fits. Never a win then.
    reason
        Why there is no plan, or what the answer is made of.
    one_replica
        Whether it uses one replica (and uncut sequences, as every baseline here does).
    """

    name: str
    plan: Plan | None
    step_time_s: float | None
    reason: str
    one_replica: bool


def baselines(instance: Instance, *, names: Sequence[str] | None = None) -> dict[str, Baseline]:
    """Price the baselines of an instance.

    Parameters
    ----------
    names
        Which of `NAMES`, in the order wanted; all by default.

    Raises
    ------
    InstanceError
        For a name that is no baseline.
    PlanError
        When a baseline's own plan is refused by the checker: a fault of this package.
    """
    wanted = NAMES if names is None else tuple(names)
    unknown = [name for name in wanted if name not in NAMES]
    if unknown:
        raise InstanceError.single(
            "baselines", ", ".join(unknown), "no such baseline", f"use some of {', '.join(NAMES)}"
        )
    search = _Search(instance)
    return {name: search.baseline(name) for name in wanted}


class _Search:
    """Searches of one instance, each (family, devices) done once."""

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self.parts = connected_parts(instance.cluster)
        self.known: dict[tuple[str, tuple[str, ...]], Found] = {}

    def baseline(self, name: str) -> Baseline:
        """The answer of one baseline on the best connected part of the cluster."""
        if name == "megatron":
            return self._megatron()
        if name in _FAMILIES:
            return _baseline(name, self._best([(name, part) for part in self.parts]))
        return _baseline(name, self._best(list(self._subset_searches(_SUBSET_FAMILIES[name]))))

    def _subsets(self) -> list[tuple[Device, ...]]:
        """Each kind alone, and each prefix of kinds by speed, of every connected part."""
        found: dict[tuple[Device, ...], None] = {}
        for part in self.parts:
            kinds = kinds_by_speed(part)
            for kind in kinds:
                found.setdefault(kind)
            for stop in range(2, len(kinds) + 1):
                chosen = {device.type for kind in kinds[:stop] for device in kind}
                found.setdefault(tuple(d for d in part if d.type in chosen))
        return list(found)

    def _subset_searches(self, families: Sequence[str]) -> Iterator[tuple[str, tuple[Device, ...]]]:
        """Families on subsets; on one kind the weighted ones are members of the even one."""
        for subset in self._subsets():
            is_mixed = len({device.type for device in subset}) > 1
            for family in families if is_mixed else families[:1]:
                yield family, subset

    def _best(self, searches: list[tuple[str, tuple[Device, ...]]]) -> Found:
        """The fastest of several searches; its reason says which."""
        best = Found(None, None, "no device")
        for family, devices in searches:
            found = self._search(family, devices)
            if best.reason == "no device" or found.is_better_than(best):
                best = found
        return best

    def _search(self, family: str, devices: tuple[Device, ...]) -> Found:
        key = (family, tuple(device.id for device in devices))
        if key not in self.known:
            found = best_plan(self.instance, _FAMILIES[family](self.instance, devices))
            if found.plan is not None:
                violations = check_plan(self.instance, found.plan)
                if violations:
                    raise PlanError(violations)
                found = replace(found, reason=f"{family} on {_words(devices)}")
            log.debug("baseline %s on %s: %s", family, _words(devices), found.step_time_s)
            self.known[key] = found
        return self.known[key]

    def _megatron(self) -> Baseline:
        prices = [price_megatron(self.instance, part) for part in self.parts]
        best = min(prices, key=lambda p: (p.step_time_s is None, p.step_time_s or 0.0))
        return Baseline("megatron", None, best.step_time_s, best.reason, best.one_replica)


def _baseline(name: str, found: Found) -> Baseline:
    if found.plan is None:
        return Baseline(name, None, None, found.reason, one_replica=True)
    is_single = len(found.plan.layout.replicas) == 1
    return Baseline(name, found.plan, found.step_time_s, found.reason, is_single)


def _words(devices: Sequence[Device]) -> str:
    """``16 H100-SXM-80GB, 8 L40S-48GB``."""
    counts: dict[str, int] = {}
    for device in devices:
        counts[device.type] = counts.get(device.type, 0) + 1
    return ", ".join(f"{count} {kind}" for kind, count in counts.items())
