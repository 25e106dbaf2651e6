"""What can be wrong with a prompt, an option of sampling, a tokenizer or the weights, when a model is to write."""

from __future__ import annotations

from typing import Any

from assay.recipe.errors import Problem, RecipeError


class DecodingError(RecipeError):
    """A prompt, option, tokenizer or model that cannot be used; every fault with its place, value and the cure."""


def fault(path: str, message: str, value: Any = None, allowed: str = "", where: str = "generate") -> DecodingError:
    """An error of one fault; the value is shown where one is given."""
    return DecodingError([Problem(path, message, value, allowed, has_value=value is not None)], where)
