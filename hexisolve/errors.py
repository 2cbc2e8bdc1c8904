"""Every error a user can meet, with what was wrong, where, and the way out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


class HexisolveError(Exception):
    """Base of all errors raised on purpose by hexisolve."""


@dataclass(frozen=True)
class Problem:
    """One thing wrong with an input, in the words of the person who wrote it.

    Parameters
    ----------
    field
        Dotted path of the field, for example ``hosts.h100.count``.
    value
        What was found there (already formatted for reading).
    message
        What is wrong with it.
    remedy
        What to write instead.
    file
        The file it was read from, when there is one.
    """

    field: str
    value: str
    message: str
    remedy: str = ""
    file: str | None = None

    def __str__(self) -> str:
        where = f"{self.file}: " if self.file else ""
        found = f" (found {self.value})" if self.value else ""
        way_out = f"; {self.remedy}" if self.remedy else ""
        return f"{where}{self.field}: {self.message}{found}{way_out}"


class InstanceError(HexisolveError, ValueError):
    """Input that cannot be used; carries *all* problems found, not only the first."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))

    @classmethod
    def single(
        cls, field: str, value: object, message: str, remedy: str = "", file: str | None = None
    ) -> InstanceError:
        """Make the error for one problem."""
        return cls([Problem(field, "" if value is None else str(value), message, remedy, file)])


class PlanError(HexisolveError, ValueError):
    """A plan that breaks at least one rule; carries the violations in words."""

    def __init__(self, violations: Iterable[object]) -> None:
        self.violations = tuple(violations)
        super().__init__("\n".join(str(violation) for violation in self.violations))


class NoPlanError(HexisolveError):
    """A result without a plan was asked for its plan."""


class BackendUnavailableError(HexisolveError, ImportError):
    """A solver library is not installed; names the extra that brings it."""


class BackendError(HexisolveError):
    """A solver library failed; keeps its native status."""

    def __init__(self, message: str, native_status: str = "") -> None:
        self.native_status = native_status
        super().__init__(message if not native_status else f"{message} ({native_status})")


class RuntimeMismatchError(HexisolveError):
    """The processes that run a plan disagree with it or with each other."""


class UnsupportedPlanError(HexisolveError):
    """A legal plan uses a part that this executor cannot run yet; names the part."""
