"""The whole atlas as plain data, for a page or a file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from assay.atlas.authoring import expressible
from assay.atlas.counting import recount
from assay.atlas.facts import TEXTS, models
from assay.atlas.records import Model
from assay.atlas.ruleset import shipped_rules
from assay.atlas.tables import table, table_names


def model_dict(m: Model) -> dict[str, Any]:
    """A model's facts, ratios and counts as plain values."""
    out = {f.name: _plain(getattr(m, f.name)) for f in fields(m)}
    out["year"] = m.year
    out["ratios"] = {
        "ffn": m.ffn_ratio, "attention": m.attention_ratio, "aspect": m.aspect_ratio, "kv_group": m.kv_group,
    }  # fmt: skip
    count = recount(m)
    out["recount"] = {
        "total": count.total or None,
        "active": count.active or None,
        "active_without_input_embedding": count.active_without_input_embedding or None,
        "non_embedding": count.non_embedding or None,
        "parts": dict(count.parts),
        "missing": list(count.missing),
    }
    return out


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(v) for v in value]
    return value


def atlas_data() -> dict[str, Any]:
    """Models, tables, rules and texts: all that a page of the atlas shows."""
    reasons = expressible()
    return {
        "models": [{**model_dict(m), "recipe_reasons": list(reasons[m.id])} for m in models()],
        "tables": {name: table(name).to_dict() for name in table_names()},
        "rules": [
            {**rule.model_dump(mode="json"), "band_text": str(rule.band), "evidence_text": str(rule.evidence)}
            for rule in shipped_rules()
        ],
        "texts": dict(TEXTS),
    }
