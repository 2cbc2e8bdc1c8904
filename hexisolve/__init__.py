"""Places LLM training on mixed clusters: solved to a proven gap, compiled, executed and verified.

The public names load their modules when first used, so that ``import hexisolve`` stays cheap.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hexisolve.data.cluster import Cluster
    from hexisolve.data.constants import CostConstants
    from hexisolve.data.instance import Instance
    from hexisolve.data.instance_file import read_instance
    from hexisolve.data.model_spec import ModelSpec
    from hexisolve.data.workload import Workload
    from hexisolve.errors import (
        BackendError,
        BackendUnavailableError,
        HexisolveError,
        InstanceError,
        NoPlanError,
        PlanError,
        Problem,
        RuntimeMismatchError,
        UnsupportedPlanError,
    )
    from hexisolve.plan.check import check_plan
    from hexisolve.plan.evaluate import evaluate
    from hexisolve.plan.io import read_plan, write_plan
    from hexisolve.plan.plan import Plan
    from hexisolve.program.clock import simulate
    from hexisolve.program.compile import compile_plan
    from hexisolve.program.match import match
    from hexisolve.program.miniature import miniature
    from hexisolve.runtime.launch import train
    from hexisolve.runtime.verify import verify_processes, verify_virtual
    from hexisolve.solvers.baselines import baselines
    from hexisolve.solvers.elastic.planner import BatchPlanner
    from hexisolve.solvers.solve import solve

__version__ = "0.1.0"

_NAME2MODULE = {
    "Cluster": "data.cluster",
    "CostConstants": "data.constants",
    "Instance": "data.instance",
    "read_instance": "data.instance_file",
    "ModelSpec": "data.model_spec",
    "Workload": "data.workload",
    "BackendError": "errors",
    "BackendUnavailableError": "errors",
    "HexisolveError": "errors",
    "InstanceError": "errors",
    "NoPlanError": "errors",
    "PlanError": "errors",
    "Problem": "errors",
    "RuntimeMismatchError": "errors",
    "UnsupportedPlanError": "errors",
    "check_plan": "plan.check",
    "evaluate": "plan.evaluate",
    "read_plan": "plan.io",
    "write_plan": "plan.io",
    "Plan": "plan.plan",
    "simulate": "program.clock",
    "compile_plan": "program.compile",
    "match": "program.match",
    "miniature": "program.miniature",
    "train": "runtime.launch",
    "verify_processes": "runtime.verify",
    "verify_virtual": "runtime.verify",
    "baselines": "solvers.baselines",
    "BatchPlanner": "solvers.elastic.planner",
    "solve": "solvers.solve",
}

__all__ = [
    "BackendError",
    "BackendUnavailableError",
    "BatchPlanner",
    "Cluster",
    "CostConstants",
    "HexisolveError",
    "Instance",
    "InstanceError",
    "ModelSpec",
    "NoPlanError",
    "Plan",
    "PlanError",
    "Problem",
    "RuntimeMismatchError",
    "UnsupportedPlanError",
    "Workload",
    "__version__",
    "baselines",
    "check_plan",
    "compile_plan",
    "evaluate",
    "match",
    "miniature",
    "read_instance",
    "read_plan",
    "simulate",
    "solve",
    "train",
    "verify_processes",
    "verify_virtual",
    "write_plan",
]


def __getattr__(name: str) -> Any:
    module = _NAME2MODULE.get(name)
    if module is None:
        raise AttributeError(f"module 'hexisolve' has no attribute {name!r}")
    value = getattr(import_module(f"hexisolve.{module}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
