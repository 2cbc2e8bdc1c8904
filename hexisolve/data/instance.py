"""One complete problem: cluster, model, workload and the constants of the cost model."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from hexisolve.data.cluster import Cluster
from hexisolve.data.constants import CostConstants
from hexisolve.data.model_spec import ModelSpec
from hexisolve.data.workload import Workload


@dataclass(frozen=True)
class Instance:
    """Cluster + model spec + workload; `cost` replaces defaults of the cost model."""

    cluster: Cluster
    model: ModelSpec
    workload: Workload
    cost: CostConstants = field(default_factory=CostConstants)

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
        """Inverse of `to_dict` (everything inline; names and paths: `instance_file.read`)."""
        model = document["model"]
        return cls(
            Cluster.from_dict(document["cluster"], file),
            ModelSpec.from_config(model["config"], model.get("name", "")),
            Workload.from_dict(document["workload"], file),
            CostConstants.from_dict(document.get("cost", {}), file),
        )

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the canonical JSON form: equal for equal problems."""
        text = json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()
