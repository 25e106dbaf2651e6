"""What a model is. No torch here: a recipe is read, checked and compared before anything is built."""

from assay.recipe import phrases as _phrases  # noqa: F401 - registers the words of every kind
from assay.recipe import phrases_frame as _phrases_frame  # noqa: F401
from assay.recipe.base import Part, Sizes, Spec
from assay.recipe.errors import Problem, RecipeError
from assay.recipe.layer import Layer
from assay.recipe.load import load, preset_names, read_authored
from assay.recipe.recipe import Recipe
from assay.recipe.resolve import resolve
from assay.recipe.roles import ParamRole

__all__ = [
    "Layer",
    "ParamRole",
    "Part",
    "Problem",
    "Recipe",
    "RecipeError",
    "Sizes",
    "Spec",
    "load",
    "preset_names",
    "read_authored",
    "resolve",
]
