"""Typed reading of config keys: aliases, ranges, and all problems collected in one go."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from hexisolve.errors import InstanceError, Problem

logger = logging.getLogger(__name__)

MAX_SIZE = 2**31 - 1
"""No dimension of a real model comes near it; larger values are typing errors."""
MAX_LAYERS = 10_000

ALIASES: dict[str, tuple[str, ...]] = {
    "hidden_size": ("hidden_size", "n_embd", "d_model", "n_embed"),
    "num_hidden_layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "num_attention_heads": ("num_attention_heads", "n_head", "n_heads"),
    "num_key_value_heads": ("num_key_value_heads", "num_kv_heads", "n_head_kv"),
    "head_dim": ("head_dim", "kv_channels"),
    "intermediate_size": ("intermediate_size", "ffn_hidden_size", "ffn_dim", "n_inner"),
    "max_position_embeddings": ("max_position_embeddings", "n_positions"),
    "num_experts": ("num_experts", "num_local_experts", "n_routed_experts"),
    "num_experts_per_tok": ("num_experts_per_tok", "experts_per_token", "num_experts_per_token"),
}
"""Canonical name -> the keys it goes by in config files, the canonical one first."""

REMEDY = {"vocab_size": " (the rows of the embedding table)"}
"""What to write for a key, where its name alone does not say it."""


class ConfigReader:
    """Reads one (text) config and remembers every problem instead of stopping at the first.

    A size that cannot be read is reported and comes back as 0, so that reading goes on;
    `finish` raises all problems at once, before anybody sees the zeros.

    Parameters
    ----------
    config
        The text config itself, already unwrapped.
    name
        Name of the model for people.
    file
        File it was read from, for messages.
    path
        Dotted path of the text config inside the file, ``text_config`` for example.
    outer
        The config around it (for ``tie_word_embeddings``); empty when there is none.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        name: str = "",
        file: str | None = None,
        path: str = "",
        outer: Mapping[str, Any] | None = None,
    ) -> None:
        self.config = config
        self.name = name
        self.file = file
        self.path = path
        self.outer: Mapping[str, Any] = outer or {}
        self.family = ""  # found by `catalogue.find_family`
        self.problems: list[Problem] = []
        self.notes: list[str] = []

    def field(self, key: str) -> str:
        """Dotted path of `key` as the person who wrote the file sees it."""
        return f"{self.path}.{key}" if self.path else key

    def report(self, key: str, value: object, message: str, remedy: str = "") -> None:
        """Remember one problem."""
        shown = "" if value is None else repr(value)
        shown = shown if len(shown) <= 80 else f"{shown[:77]}..."
        self.problems.append(Problem(self.field(key), shown, message, remedy, self.file))

    def finish(self) -> None:
        """Raise InstanceError with every problem, or return when there is none."""
        if self.problems:
            # Reading a key twice may report it twice.
            raise InstanceError(dict.fromkeys(self.problems))

    def note(self, key: str, message: str) -> None:
        """Remember something the user should know although it is no error."""
        where = f"{self.file or self.name or 'config'}: {self.field(key)}"
        self.notes.append(f"{where} {message}")

    def log_notes(self) -> None:
        """Log the notes, once each, as warnings."""
        for note in dict.fromkeys(self.notes):
            logger.warning(note)

    def keys(self, name: str) -> tuple[str, ...]:
        """List the keys `name` goes by."""
        return ALIASES.get(name, (name,))

    def find(self, name: str) -> tuple[str, Any]:
        """Key and value of the first alias with a value; the canonical key and None otherwise."""
        present = [(k, self.config[k]) for k in self.keys(name) if self.config.get(k) is not None]
        if not present:
            return name, None
        if any(value != present[0][1] for _, value in present):
            given = ", ".join(f"{key} = {value!r}" for key, value in present)
            self.report(present[0][0], None, f"contradicting values: {given}", "keep one of them")
        return present[0]

    def size(self, name: str, minimum: int = 1, maximum: int = MAX_SIZE, remedy: str = "") -> int:
        """Read a dimension that must be there; 0 after reporting when it is not."""
        if self.find(name)[1] is None:
            searched = ", ".join(self.field(key) for key in self.keys(name))
            self.report(
                name,
                None,
                f"missing (searched: {searched})",
                remedy or f"add {self.field(name)}{REMEDY.get(name, '')}; it is never guessed",
            )
            return 0
        return self.optional_size(name, minimum, maximum) or 0

    def optional_size(self, name: str, minimum: int = 1, maximum: int = MAX_SIZE) -> int | None:
        """Read a dimension; None when absent or null, 0 after reporting one that cannot be."""
        key, value = self.find(name)
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool):
            self.report(key, value, "must be a whole number", "write it without quotes or dot")
            return 0
        if not minimum <= value <= maximum:
            self.report(key, value, f"must be between {minimum} and {maximum}")
            return 0
        return value

    def number(self, name: str) -> float:
        """Read a positive number that must be there; 0 after reporting when it is not."""
        value = self.config.get(name)
        if value is None:
            return self.size(name)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not 0 < value < MAX_SIZE:
            self.report(name, value, "must be a positive number")
            return 0.0
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        """Read a true/false key; `default` (the family's own) when absent or null."""
        value = self.config.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            self.report(name, value, "must be true or false")
            return default
        return value

    def sequence(self, name: str) -> list[Any] | None:
        """Read a list; None when the key is absent or null."""
        value = self.config.get(name)
        if value is not None and not isinstance(value, list | tuple):
            self.report(name, value, "must be a list")
            return None
        return None if value is None else list(value)

    def per_layer(self, name: str, num_layers: int) -> list[Any] | None:
        """Read a list with one entry per layer; None when absent or null."""
        values = self.sequence(name)
        if values is not None and num_layers and len(values) != num_layers:
            self.report(
                name,
                None,
                f"has {len(values)} entries for {num_layers} layers",
                "give one entry per layer",
            )
            return None
        return values

    def tied(self, family_default: bool) -> bool:
        """Tell whether embedding and head are one table.

        The text config's own key decides, then the outer config's, then the family's default.
        """
        key = "tie_word_embeddings"
        if self.config.get(key) is None and isinstance(self.outer.get(key), bool):
            return bool(self.outer[key])
        return self.flag(key, family_default)
