"""One complete problem: cluster, model, workload and the constants of the cost model."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from hexisolve.data.cluster import Cluster, check_dtype
from hexisolve.data.constants import CostConstants
from hexisolve.data.model_spec import ModelSpec
from hexisolve.data.workload import Workload
from hexisolve.errors import InstanceError


@dataclass(frozen=True)
class Instance:
    """Cluster + model spec + workload; `cost` replaces defaults of the cost model."""

    cluster: Cluster
    model: ModelSpec
    workload: Workload
    cost: CostConstants = field(default_factory=CostConstants)

    def __post_init__(self) -> None:
        problems = check_dtype(self.cluster, self.workload.dtype)
        if problems:
            raise InstanceError(problems)

    def to_dict(self) -> dict[str, Any]:
        """JSON form that carries everything inline."""
        return {
            "cluster": self.cluster.to_dict(),
            "model": {"name": self.model.name, "config": dict(self.model.config)},
            "workload": self.workload.to_dict(),
            "cost": self.cost.to_dict(),
        }

    @classmethod
    def from_dict(cls, document: Mapping[str, Any], file: str | None = None) -> Instance:
        """Inverse of `to_dict`; raises InstanceError with every problem of every section."""
        from hexisolve.data.instance_file import instance_from_dict

        return instance_from_dict(document, file)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the canonical JSON form: equal for equal problems."""
        text = json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()
