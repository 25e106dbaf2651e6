"""Write ``src/assay/atlas/data/models.json`` from a YAML table of facts.

``python tools/atlas_facts.py FACTS.yaml [REPLACE.toml]``; the second file holds ``replace = [["pattern", "text"]]``:
replacements made in every text, in turn.

The YAML's fields are kept; values are normalised (``"1/sqrt(d_model)"`` -> ``inv_sqrt_d_model``), a field that holds
its default (``DEFAULTS``) is left out, and an explicit null means "not found in a source that was read".
Needs PyYAML; the package itself does not.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import yaml

OUT = Path(__file__).resolve().parents[1] / "src" / "assay" / "atlas" / "data" / "models.json"

DEFAULTS: dict[str, Any] = {
    "hf_model_type": None, "hf_note": None, "hf_id": None, "kind": "dense", "n_encoder_layers": "na",
    "gated": True, "activation_note": None, "norm_kind": "rmsnorm", "norm_placement": "pre", "norm_final": True,
    "norm_zero_centred": False, "norm_bias": False, "norm_note": None, "position": "rope", "rope_theta_local": "na",
    "rope_scaling": "none", "partial_rotary": 1.0, "rope_layout": "half", "nope_layers": "none", "attention": "gqa",
    "attention_pattern": "full", "sliding_window": "none", "local_to_global": "na", "attention_note": None,
    "qk_norm": "none", "attn_softcap": "none", "final_softcap": "none", "attn_scale": "default",
    "attn_scale_note": None, "logit_scale": "none", "residual_scale": "none", "biases": [], "block": "serial",
    "parallel_norms": "na", "embedding_scale": "none", "vocab_note": None, "context_pretrain": None, "moe": "na",
    "mla": "na", "hybrid": "na", "layer_overrides": "na", "extra_params": [], "disagreements": [], "notes": [],
    "recipe": {}, "preset": None, "sinks": "none", "output_gate": "none",
    "position_offset": 0, "embedding_norm": False, "embedding_width": "na",
}  # fmt: skip

# what two parties state differently and a recipe must choose between; the choice is said with the entry
RECIPE: dict[str, dict[str, Any]] = {
    "transformer-base": {"max_seq_len": 512},
    "transformer-big": {"max_seq_len": 512},
    "gemma3-4b": {"vocab_size": 262_208},
    "gemma3-12b": {"vocab_size": 262_208},
    "gemma3-27b": {"vocab_size": 262_208},
}
PRESET = {"gemma2-9b": "gemma-2-9b", "gpt-j-6b": "gptj-6b", "transformer-base": "transformer-2017"}
ALSO = {  # the other published count, and the rows of the table that it counts
    "gemma3-4b": (262_208, 3_880_263_168),
    "gemma3-12b": (262_208, 11_766_034_176),
    "gemma3-27b": (262_208, 27_009_346_304),
}
CORRECTED: dict[str, tuple[dict[str, Any], str]] = {
    "gpt-neox-20b": (
        {"activation": "gelu_tanh"},
        "activation: GPTNeoXConfig default gelu; the released config has gelu_fast, the tanh form, as trained",
    ),
}
DROPOUT_ON = {  # where the papers put it
    "transformer-base": ["embedding", "residual"],
    "transformer-big": ["embedding", "residual"],
    "gpt-1": ["embedding", "residual", "attention"],
    "opt-175b": ["residual", "attention"],
    "opt-350m": ["residual", "attention"],
}
AUDIT = "parameter audit of released checkpoints, 262208 rows"

REPLACE: list[tuple[str, str]] = []  # pattern, new text; from the second file


def text(value: Any) -> Any:
    """A string with the replacements made."""
    if isinstance(value, list):
        return [text(v) for v in value]
    if isinstance(value, dict):
        return {k: text(v) for k, v in value.items()}
    if isinstance(value, str):
        for pattern, new in REPLACE:
            value = re.sub(pattern, new, value)
    return value


def split_note(value: Any) -> tuple[Any, str | None]:
    """``silu (clamp 10)`` -> silu, clamp 10."""
    match = re.fullmatch(r"([\w-]+) \((.*)\)", value) if isinstance(value, str) else None
    return (match[1], match[2]) if match else (value, None)


def scale(value: Any) -> Any:
    """A factor as a number, ``sqrt_d_model`` or ``inv_sqrt_d_model``."""
    if not isinstance(value, str):
        return value
    if value.startswith(("d_model^-0.5", "1/sqrt(d_model)")):
        return "inv_sqrt_d_model"
    if value == "sqrt(d_model)":
        return "sqrt_d_model"
    if match := re.fullmatch(r"divide by (\d+)", value):
        return 1 / int(match[1])
    if match := re.match(r"1/sqrt\((\d+)\)", value):
        return int(match[1]) ** -0.5
    if match := re.fullmatch(r"1/(\d+)", value):
        return 1 / int(match[1])
    if "1.0" in value:
        return 1.0
    return value


def qk_norm(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    per_head = "separate gain" in value["scope"]
    out = {
        "norm": "l2" if value["kind"].startswith("l2") else value["kind"].split()[0],
        "over": "width" if value["scope"] == "full_width" else "head",
        "gain": value["gain"],
        "gain_per": "head" if per_head else "shared",
        "zero_centred": "zero-centred" in value["kind"],
        "order": "after_rope" if "after RoPE" in value["where"] else "before_rope",
        "note": None,
    }
    note = re.sub(r"^(before RoPE(; )?)", "", value["where"])
    out["note"] = note.removesuffix(", after RoPE") or None
    return out


def rope_scaling(value: Any, model: dict[str, Any]) -> Any:
    if not isinstance(value, dict):
        return value
    out = {k: v for k, v in value.items() if k != "type"}
    out["kind"] = value["type"]
    if "original_max_position" in out:
        out["original_seq_len"] = out.pop("original_max_position")
    if model["id"].startswith("olmo-3"):  # hf:allenai/Olmo-3-1025-7B and -1125-32B config, rope_scaling
        out |= {"factor": 8.0, "original_seq_len": 8192}
    return out


def sources(model: dict[str, Any]) -> dict[str, list[str]]:
    out = {}
    for key in ("arch", "count", "training"):
        found = text(model["source"].get(key) or [])
        out[key] = [s for s in found if s not in ("same",)] or (out.get("arch", []) if found else [])
    return out


def ends(m: dict[str, Any]) -> dict[str, Any]:
    """What ``extra_params`` says of the embedding, as fields."""
    out: dict[str, Any] = {"position_offset": 0, "embedding_norm": False, "embedding_width": "na"}
    for item in m["extra_params"]:
        if offset := re.fullmatch(r"\(\d+\+(\d+)\)\*d_model", item["formula"]):
            out["position_offset"] = int(offset[1])
        if width := re.match(r"word_embed_proj_dim (\d+)", item["what"]):
            out["embedding_width"] = int(width[1])
        if item["what"] == "embedding LayerNorm":
            out["embedding_norm"] = True
    return out


def entry(model: dict[str, Any]) -> dict[str, Any]:
    m = dict(model)
    if m["id"] in CORRECTED:
        right, why = CORRECTED[m["id"]]
        m |= right | {"disagreements": [*m["disagreements"], why]}
    m["activation"], m["activation_note"] = split_note(m["activation"])
    if m["norm_kind"] == "layernorm_nonparametric":
        m["norm_note"] = "no gain and no bias"
    if m["position"] == "none in MLA layers (NoPE)":
        m["position"] = "none"
    expression = isinstance(m["attn_scale"], str) and m["attn_scale"] != "default"
    m["attn_scale_note"] = m["attn_scale"] if expression else None
    for key in ("attn_scale", "logit_scale", "embedding_scale"):
        m[key] = scale(m[key])
    m["attention"], note = split_note(m["attention"])
    m["attention_note"] = "; ".join(n for n in (note, m["attention_note"]) if n) or None
    m["qk_norm"] = qk_norm(m["qk_norm"])
    m["rope_scaling"] = rope_scaling(m["rope_scaling"], m)
    m["source"] = sources(m)
    m["training"] = {k: v for k, v in m["training"].items() if v is not None}
    m["params"] = {k: v for k, v in m["params"].items() if v is not None}
    if m["id"] in ALSO:
        rows, total = ALSO[m["id"]]
        m["params"]["also"] = [{"total": total, "vocab_size": rows, "source": AUDIT}]
    m["sinks"] = "per_head" if "learned sink logit per head" in (m["attention_note"] or "") else "none"
    m["output_gate"] = "channel" if "sigmoid output gate" in (m["attention_note"] or "") else "none"
    m["training"] |= {"dropout_on": DROPOUT_ON[m["id"]]} if m["id"] in DROPOUT_ON else {}
    m |= ends(m)
    m["recipe"] = RECIPE.get(m["id"], {})
    m["preset"] = PRESET.get(m["id"])
    m["date"] = None if m["date"] is None else str(m["date"])
    m = {k: (v if k == "source" else text(v)) for k, v in m.items()}
    return {k: v for k, v in m.items() if not (k in DEFAULTS and v == DEFAULTS[k])}


def main(path: str, replacements: str | None = None) -> None:
    if replacements is not None:
        REPLACE.extend(tomllib.loads(Path(replacements).read_text(encoding="utf-8"))["replace"])
    models = [entry(m) for m in yaml.safe_load(Path(path).read_text(encoding="utf-8"))]
    known: list[str] = []
    for m in models:
        for key, found in m["source"].items():
            known += [s for s in found if s not in known]
            m["source"][key] = [known.index(s) for s in found]
    dump = lambda v: json.dumps(v, ensure_ascii=False, separators=(",", ":"))  # noqa: E731
    lines = ",\n".join(dump(m) for m in models)
    refs = ",\n".join(dump(s) for s in known)
    OUT.write_text(
        f'{{"defaults":{dump(DEFAULTS)},\n"sources":[\n{refs}\n],\n"models":[\n{lines}\n]}}\n', encoding="utf-8"
    )
    print(f"{OUT.name}: {len(models)} models, {len(known)} sources, {OUT.stat().st_size:,} bytes")


if __name__ == "__main__":
    main(*sys.argv[1:])
