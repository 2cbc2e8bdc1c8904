"""One broken rule of a plan, in words with numbers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Violation:
    """A rule that a plan breaks.

    Parameters
    ----------
    rule
        Name of the rule, one of `hexisolve.plan.check.RULES`.
    where
        The place in the plan, for example ``replica 0, stage 1``.
    message
        What is wrong there, with numbers and the nearest values that satisfy the rule.
    """

    rule: str
    where: str
    message: str

    def __str__(self) -> str:
        return f"{self.where}: {self.message} [{self.rule}]"


def is_whole(value: object, low: int = 0) -> bool:
    """Whether a value is a whole number of at least `low`."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= low
