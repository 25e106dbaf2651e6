"""What is wrong with a plan or an output folder: the place, the value, what is allowed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from assay.recipe.errors import Problem, RecipeError


class StudyError(RecipeError):
    """A study that cannot start or go on; every fault with its place, value and what is allowed."""


class PlanError(StudyError):
    """A plan that is refused before anything runs."""


class StudyInterrupted(KeyboardInterrupt):
    """Ctrl-C: every worker has stopped, the folder resumes."""

    def __init__(self, folder: Path, done: int, total: int) -> None:
        self.folder, self.done, self.total = folder, done, total
        super().__init__(f"stopped with {done} of {total} runs done; the same command goes on from {folder}")


def fault(path: str, message: str, value: Any = None, allowed: str = "", suggestion: str = "") -> Problem:
    """A problem that shows its value where there is one."""
    return Problem(path, message, value, allowed, suggestion, has_value=value is not None)
