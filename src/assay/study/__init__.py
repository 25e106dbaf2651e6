"""Studies: a plan fixed before it runs, runs shared by digest, and a verdict in words chosen in advance.

The names below are loaded when they are first used: a study that only lists its plans loads no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from assay.study.errors import PlanError, StudyError, StudyInterrupted
    from assay.study.plan import Plan, load_plan, parse_plan, plan_names
    from assay.study.result import StudyResult, load_result
    from assay.study.run import DryRun, dry_run, run_study
    from assay.study.runner import StudyEvent

__all__ = [
    "DryRun",
    "Plan",
    "PlanError",
    "StudyError",
    "StudyEvent",
    "StudyInterrupted",
    "StudyResult",
    "dry_run",
    "load_plan",
    "load_result",
    "parse_plan",
    "plan_names",
    "run_study",
]

_HOMES = {
    "errors": ("PlanError", "StudyError", "StudyInterrupted"),
    "plan": ("Plan", "load_plan", "parse_plan", "plan_names"),
    "result": ("StudyResult", "load_result"),
    "run": ("DryRun", "dry_run", "run_study"),
    "runner": ("StudyEvent",),
}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    for module, names in _HOMES.items():
        if name in names:
            value = getattr(import_module(f"assay.study.{module}"), name)
            globals()[name] = value  # found once
            return value
    raise AttributeError(f"module 'assay.study' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
