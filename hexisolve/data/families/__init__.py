"""Families of decoder-only models: from a Hugging Face config to a `ModelSpec`.

`read_config` is the door; `catalogue` lists the families; `decoder` reads all that resemble
Llama, `moe`, `mla`, `blocks` and `classic` what is particular to others.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hexisolve.data.families.catalogue import find_family
from hexisolve.data.families.source import open_config
from hexisolve.data.model_spec import ModelSpec

__all__ = ["read_config"]


def read_config(source: str | Path | Mapping[str, Any], name: str = "") -> ModelSpec:
    """Read a Hugging Face config: a ``config.json``, the folder around it, or its mapping.

    Raises
    ------
    InstanceError
        All problems at once, each with file, field, value and remedy.
    """
    document, reader = open_config(source, name)
    read = find_family(reader)
    model = read(reader)
    reader.finish()
    reader.log_notes()
    return dataclasses.replace(model, config=document)
