"""Families of decoder-only models: from a Hugging Face config to a `ModelSpec`.

`read_config` is the door; `catalogue` finds the reader of a family; `decoder` reads all that
resemble Llama by the rows of `traits_table`; `moe`, `mla`, `layer_kinds`, `nas` and `classic` read
what is particular to some.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hexisolve.data.families.catalogue import find_family
from hexisolve.data.families.reader import ConfigReader
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
    _note_what_is_left_out(reader, document)
    reader.log_notes()
    return dataclasses.replace(model, config=document)


def _note_what_is_left_out(reader: ConfigReader, document: Mapping[str, Any]) -> None:
    quantised = reader.config.get("quantization_config") or document.get("quantization_config")
    if isinstance(quantised, Mapping):
        method = quantised.get("quant_method", "an unnamed method")
        reader.note(
            "quantization_config",
            f"says {method}: ignored, weights are counted at the width of the workload's dtype",
        )
    if reader.config.get("num_nextn_predict_layers"):
        reader.note(
            "num_nextn_predict_layers",
            "gives extra prediction layers: not part of the model that is placed",
        )
