"""Strict reading of what people write: documents, fields, units; every problem at once."""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from hexisolve.errors import InstanceError, Problem

_MAX_DEPTH = 100
_MAX_VALUES = 5_000_000
_MAX_FILE_BYTES = 256 * 2**20


class _StrictLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Safe YAML in which a key written twice is an error, not the last one wins."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Build one mapping; raises ConstructorError at the second of two equal keys."""
        seen: set[tuple[str, str]] = set()
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(
                    None, None, "a key must be a plain word", key_node.start_mark
                )
            key = (key_node.tag, key_node.value)
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key_node.value!r} is written twice", key_node.start_mark
                )
            seen.add(key)
        result: dict[Any, Any] = super().construct_mapping(node, deep)
        return result


def read_document(path: str | Path) -> dict[str, Any]:
    """Read the mapping in a YAML or JSON file, loaded safely.

    Raises
    ------
    InstanceError
        For a file that is missing, a folder, empty, binary, malformed (with its line), or whose
        top level is not a mapping.
    """
    file = str(path)
    text = _read_text(Path(path), file)
    if not text.strip():
        raise InstanceError.single("file", None, "is empty", "write a YAML mapping", file)
    document = _parse(text, file)
    if not isinstance(document, dict):
        kind = type(document).__name__
        raise InstanceError.single(
            "file", kind, "must hold a mapping at its top level", "write `key: value` lines", file
        )
    _check_size(document, file)
    return document


def refuse_special(path: Path, file: str) -> None:
    """Refuse folders, pipes, sockets and devices: reading one could wait for ever.

    Raises
    ------
    InstanceError
        Naming the file and what it is; a missing file is left to whoever opens it.
    OSError
        When the file system refuses to tell.
    """
    if path.is_dir():
        raise InstanceError.single("file", None, "is a folder", "name a file inside it", file)
    if path.exists() and not path.is_file():
        raise InstanceError.single(
            "file", None, "is a pipe, a socket or a device", "write it to a file first", file
        )


def _read_text(path: Path, file: str) -> str:
    try:
        refuse_special(path, file)
        raw = path.read_bytes() if path.stat().st_size <= _MAX_FILE_BYTES else None
    except FileNotFoundError:
        raise InstanceError.single("file", None, "does not exist", "check the path", file) from None
    except InstanceError:
        raise
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InstanceError.single("file", reason, "cannot be read", "", file) from None
    if raw is None:
        raise InstanceError.single("file", None, "is larger than 256 MiB", "", file)
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise InstanceError.single(
            f"line {line}", None, "is not UTF-8 text", "name a YAML or JSON text file", file
        ) from None


def _parse(text: str, file: str) -> Any:
    if file.endswith(".json"):
        try:
            return json.loads(text, object_pairs_hook=_unique_pairs)
        except json.JSONDecodeError as error:
            raise InstanceError.single(
                f"line {error.lineno}", None, f"is not valid JSON: {error.msg}", "", file
            ) from None
        except ValueError as error:  # an integer of too many digits
            raise InstanceError.single(
                "file", None, f"holds a value that cannot be read: {error}", "", file
            ) from None
        except _DuplicateKeyError as error:
            raise InstanceError.single(
                str(error), None, "is written twice in one object", "keep one of them", file
            ) from None
        except RecursionError:
            raise InstanceError.single("file", None, "is nested too deeply", "", file) from None
    try:
        return yaml.load(text, Loader=_StrictLoader)  # noqa: S506 - a safe loader
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}" if mark else "file"
        raise InstanceError.single(
            where, None, f"is not valid YAML: {error.problem or error.context}", "", file
        ) from None
    except yaml.YAMLError as error:
        reason = str(error).splitlines()[0]
        raise InstanceError.single("file", None, f"is not valid YAML: {reason}", "", file) from None
    # An impossible date, an integer of too many digits, `!!bool foo`.
    except (ValueError, AttributeError, LookupError, TypeError, OverflowError) as error:
        raise InstanceError.single(
            "file", None, f"holds a value that cannot be read: {error}", "quote it", file
        ) from None
    except RecursionError:
        raise InstanceError.single("file", None, "is nested too deeply", "", file) from None


class _DuplicateKeyError(Exception):
    """A JSON object with the same key twice."""


def _unique_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise _DuplicateKeyError(key)
        result[key] = value
    return result


def _check_size(document: Any, file: str) -> None:
    """Refuse documents that aliases blow up, or that contain themselves."""
    remaining = _MAX_VALUES
    level: list[Any] = [document]
    for _ in range(_MAX_DEPTH):
        children: list[Any] = []
        for value in level:
            if isinstance(value, dict):
                children.extend(value.values())
            elif isinstance(value, list):
                children.extend(value)
            if len(children) > remaining:
                raise InstanceError.single("file", None, "holds too many values", "", file)
        if not children:
            return
        remaining -= len(children)
        level = children
    raise InstanceError.single("file", None, "is nested too deeply", "", file)


def nearest(word: str, known: Iterable[str], count: int = 3) -> str:
    """Word a remedy that names the known words closest to `word`, or all when few."""
    candidates = list(known)
    lowered = {name.lower(): name for name in candidates}
    close = difflib.get_close_matches(word.lower(), lowered, n=count, cutoff=0.4)
    names = [lowered[name] for name in close] or sorted(candidates)[:12]
    return f"use one of {', '.join(names)}" if names else ""


class Fields:
    """Reads typed fields of a parsed document and gathers every problem on the way.

    A reader that fails notes the problem and returns a harmless value of the right type, so that
    reading goes on; `finish` raises what was gathered.
    """

    def __init__(self, file: str | None = None) -> None:
        self.file = file
        self.problems: list[Problem] = []
        self.doubts: list[str] = []

    def problem(self, field: str, value: object, message: str, remedy: str = "") -> None:
        """Note one problem."""
        shown = "" if value is None else str(value)
        shown = shown if len(shown) <= 80 else shown[:77] + "..."
        self.problems.append(Problem(field, shown, message, remedy, self.file))

    def finish(self) -> None:
        """Raise InstanceError with every problem noted, if any."""
        if self.problems:
            raise InstanceError(self.problems)

    def mapping(self, value: object, field: str, known: Collection[str] = ()) -> dict[str, Any]:
        """`value` as a mapping with text keys; keys outside `known` (when given) are problems."""
        if not isinstance(value, Mapping):
            self.problem(field, value, "must be a mapping", "write `key: value` lines")
            return {}
        result = {str(key): entry for key, entry in value.items()}
        for key in result:
            if known and key not in known:
                where = f"{field}.{key}" if field else key
                self.problem(where, result[key], "unknown key", nearest(key, known))
        return result

    def items(self, value: object, field: str) -> list[Any]:
        """`value` as a list."""
        if isinstance(value, list | tuple):
            return list(value)
        self.problem(field, value, "must be a list", "write `- item` lines or [a, b]")
        return []

    def quantity(
        self,
        value: object,
        field: str,
        parse: Callable[[object], float],
        *,
        low: float = 0.0,
        high: float = float("inf"),
        strict: bool = True,
        shown_range: str = "",
    ) -> float:
        """Read a number with a unit, as `parse` from `hexisolve.units` reads it, above `low`.

        `strict` excludes `low` itself; `high` is allowed.
        """
        try:
            number = parse(value)
        except (ValueError, OverflowError) as error:
            self.problem(field, value, f"cannot be read: {error}")
            return 1.0
        if number < low or (strict and number == low) or number > high:
            wanted = shown_range or ("must be above 0" if strict else "must not be negative")
            self.problem(field, value, f"is out of range: {wanted}")
            return 1.0
        return number

    def number(
        self, value: object, field: str, *, low: float, high: float, low_allowed: bool = False
    ) -> float:
        """Read a plain number in (low, high], or [low, high] when `low_allowed`."""
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not (low < value <= high or (low_allowed and value == low)):  # type: ignore[operator]
            bounds = f"{'at least' if low_allowed else 'above'} {low:g} and at most {high:g}"
            self.problem(field, value, f"must be a number {bounds}")
            return high if high != float("inf") else 1.0
        return float(value)  # type: ignore[arg-type]

    def count(self, value: object, field: str, *, low: int = 1, high: int = 1_000_000) -> int:
        """Read a whole number in [low, high]."""
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            self.problem(field, value, f"must be a whole number from {low} to {high}")
            return low
        return value

    def text(self, value: object, field: str) -> str:
        """Non-empty text; numbers are taken as their text (ids are always strings)."""
        if isinstance(value, bool) or not isinstance(value, str | int | float) or value == "":
            self.problem(field, value, "must be a name")
            return "?"
        return str(value)

    def choice(self, value: object, field: str, known: Collection[str]) -> str:
        """One of the known words."""
        if isinstance(value, str) and value in known:
            return value
        self.problem(field, value, "unknown", nearest(str(value), known))
        return next(iter(known))

    def flag(self, value: object, field: str) -> bool:
        """Read true or false."""
        if not isinstance(value, bool):
            self.problem(field, value, "must be true or false")
        return value is True
