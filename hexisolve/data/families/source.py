"""Where a config comes from: a file, a checkpoint folder or a mapping; and the text part of it."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hexisolve.data.families.reader import ConfigReader
from hexisolve.data.reading import refuse_special
from hexisolve.errors import InstanceError

NESTED_KEYS: tuple[tuple[str, ...], ...] = (
    ("thinker_config", "text_config"),
    ("text_config",),
    ("llm_config",),
    ("language_config",),
)
"""Where multimodal configs keep their language model; the vision tower is never looked at."""

MAX_CONFIG_BYTES = 64 * 2**20
"""A config is a few KB; anything above this is some other file."""


def open_config(
    source: str | Path | Mapping[str, Any], name: str = ""
) -> tuple[Mapping[str, Any], ConfigReader]:
    """Open the whole document, and a reader for its language model.

    Raises
    ------
    InstanceError
        When the source is not a JSON object or its nested language model is not one.
    """
    document: Mapping[str, Any]
    file: str | None = None
    if isinstance(source, Mapping):
        # A copy: the model spec stays as it was read, whatever becomes of the mapping.
        document = copy.deepcopy(dict(source))
    else:
        path = Path(source)
        path = path / "config.json" if path.is_dir() else path
        document, file = read_json_object(path), str(path)
        name = name or (path.parent.name if path.stem == "config" else path.stem)
    text, path_inside, outer = _text_config(document, file)
    return document, ConfigReader(text, name, file, path_inside, outer)


def read_json_object(path: Path) -> Mapping[str, Any]:
    """Parse the JSON object in a file; InstanceError with file, place and remedy otherwise."""
    file = str(path)
    refuse_special(path, file)
    try:
        if path.stat().st_size > MAX_CONFIG_BYTES:
            raise InstanceError.single(
                "file", None, "is too large to be a config", "give the model's config.json", file
            )
        document = json.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        reason = error.strerror or type(error).__name__
        remedy = "give the path of a config.json or the name of a bundled model"
        raise InstanceError.single(
            "file", None, f"cannot be read: {reason}", remedy, file
        ) from None
    except RecursionError:
        raise InstanceError.single(
            "file", None, "is nested too deeply", "give the model's config.json", file
        ) from None
    except json.JSONDecodeError as error:
        raise InstanceError.single(
            f"line {error.lineno}, column {error.colno}",
            None,
            f"is not valid JSON: {error.msg}",
            "repair the file or download config.json again",
            file,
        ) from None
    except ValueError:
        # Not UTF-8, or an integer of thousands of digits.
        raise InstanceError.single(
            "file", None, "is not a JSON text file", "give the model's config.json", file
        ) from None
    return _as_object(document, "config", file)


def _text_config(
    document: Mapping[str, Any], file: str | None
) -> tuple[Mapping[str, Any], str, Mapping[str, Any]]:
    for keys in NESTED_KEYS:
        node: Any = document
        outer = document
        for depth, key in enumerate(keys):
            outer = node
            node = node.get(key)
            if node is None:
                break
            node = _as_object(node, ".".join(keys[: depth + 1]), file)
        if node is not None:
            return node, ".".join(keys), outer
    return document, "", {}


def _as_object(value: Any, field: str, file: str | None) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise InstanceError.single(
            field,
            f"a {type(value).__name__}",
            "must be a JSON object with the keys of a Hugging Face config",
            "give the model's config.json",
            file,
        )
    return value
