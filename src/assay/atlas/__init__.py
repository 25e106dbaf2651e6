"""Real models as facts, what the field does and on what evidence, and the shapes that follow. No torch.

``models`` and ``table`` read; ``recipe_for`` turns a model into a recipe; ``check`` holds a recipe against the rules;
``design`` proposes shapes for a size; ``scale`` and ``ladder`` shrink a recipe faithfully.
"""

from assay.atlas.authoring import (
    Inexpressible,
    Written,
    expressible,
    recipe_for,
    shipped,
    why_not,
    write_recipe,
)
from assay.atlas.cells import Cell, Table
from assay.atlas.checking import Finding, Findings, Skipped, check
from assay.atlas.counting import Recount, recount
from assay.atlas.designing import Design, design
from assay.atlas.device import Device, Estimate
from assay.atlas.export import atlas_data, model_dict
from assay.atlas.facts import TEXTS, UnknownModel, model, models
from assay.atlas.records import Model
from assay.atlas.ruleset import LABELS, SEVERITIES, Band, Evidence, Rule, RuleError, rules
from assay.atlas.scaling import Proxy, ladder, proxy, scale
from assay.atlas.shapes_tables import Correction, corrections
from assay.atlas.shrinking import register_shrink
from assay.atlas.subject import SETTINGS, Measure, Reading, Subject, measures, register_measure
from assay.atlas.tables import table, table_names
from assay.atlas.toml import to_toml

__all__ = [
    "LABELS",
    "SETTINGS",
    "SEVERITIES",
    "TEXTS",
    "Band",
    "Cell",
    "Correction",
    "Design",
    "Device",
    "Estimate",
    "Evidence",
    "Finding",
    "Findings",
    "Inexpressible",
    "Measure",
    "Model",
    "Proxy",
    "Reading",
    "Recount",
    "Rule",
    "RuleError",
    "Skipped",
    "Subject",
    "Table",
    "UnknownModel",
    "Written",
    "atlas_data",
    "check",
    "corrections",
    "design",
    "expressible",
    "ladder",
    "measures",
    "model",
    "model_dict",
    "models",
    "proxy",
    "recipe_for",
    "recount",
    "register_measure",
    "register_shrink",
    "rules",
    "scale",
    "shipped",
    "table",
    "table_names",
    "to_toml",
    "why_not",
    "write_recipe",
]
