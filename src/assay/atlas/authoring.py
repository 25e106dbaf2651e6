"""From a model's facts to the recipe that builds it: atlas and presets are one set of facts.

``recipe_for`` writes the authored table; the recipe room then resolves it. Why a model has no recipe is computed: the
kinds that it needs and this version does not register, the facts that were not found, what the recipe room refuses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from assay.atlas.drafting import Draft, Table, ffn_of, layers_of, mixer_of, norm_of, residual_of, stack_of
from assay.atlas.facts import model, models
from assay.atlas.records import Model
from assay.atlas.toml import to_toml
from assay.recipe import Recipe, RecipeError, preset_names, resolve
from assay.recipe.embedding import Head


class Inexpressible(ValueError):
    """A model that no recipe of this version can express; ``reasons`` says why."""

    def __init__(self, model_id: str, reasons: tuple[str, ...]) -> None:
        self.model_id = model_id
        self.reasons = reasons
        super().__init__(f"no recipe for {model_id}: {'; '.join(reasons)}")


@dataclass(frozen=True)
class Written:
    """A model's authored recipe, and what was assumed where its sources are silent."""

    model: Model
    table: Table
    recipe: Recipe
    assumed: tuple[str, ...]

    @property
    def toml(self) -> str:
        return to_toml(self.table)


def recipe_for(model_id: str, *, decoder_half: bool = False) -> Table:
    """The authored recipe table of a real model.

    Args:
        model_id: an id of the atlas, or the name of a shipped recipe.
        decoder_half: for an encoder-decoder, its decoder without cross attention.

    Raises:
        UnknownModel: no such model.
        Inexpressible: no recipe of this version can express it; ``reasons`` says why.
    """
    return write_recipe(model_id, decoder_half=decoder_half).table


def write_recipe(model_id: str, *, decoder_half: bool = False) -> Written:
    """Like :func:`recipe_for`, with what was assumed."""
    found, reasons = _attempt(model(model_id), decoder_half)
    if found is None:
        raise Inexpressible(model_id, reasons)
    return found


def why_not(model_id: str) -> tuple[str, ...]:
    """Why a model has no recipe in this version; empty where it has one."""
    return _attempt(model(model_id), False)[1]


def expressible(**where: Any) -> dict[str, tuple[str, ...]]:
    """Every model (see :func:`assay.atlas.models` for filters) with the reasons against its recipe: none, or some."""
    return {m.id: _attempt(m, False)[1] for m in models(**where)}


def _attempt(m: Model, decoder_half: bool) -> tuple[Written | None, tuple[str, ...]]:
    draft = Draft(m)
    if not (m.is_decoder or (decoder_half and m.kind == "encoder-decoder")):
        draft.reasons.append(f"{'an' if m.kind[0] == 'e' else 'a'} {m.kind}: a recipe describes a decoder")
        return None, tuple(draft.reasons)
    table = _table(draft)
    if draft.reasons:
        return None, tuple(dict.fromkeys(draft.reasons))
    try:
        recipe = resolve(table, m.id)
    except RecipeError as error:
        return None, tuple(f"the recipe is refused: {p.path}: {p.message}" for p in error.problems)
    return Written(m, table, recipe, tuple(draft.assumed)), ()


def _table(draft: Draft) -> Table:
    m = draft.model
    table: Table = {"name": m.preset or m.id, "sources": list(m.source.arch)}
    table["d_model"] = draft.fact("d_model")
    table["vocab_size"] = draft.fact("vocab_size")
    context = m.context_length if isinstance(m.context_length, int) else m.context_pretrain
    if context is None and "max_seq_len" not in m.recipe:
        draft.reasons.append("context_length was not found in a source")
    elif not isinstance(m.context_length, int) and "max_seq_len" not in m.recipe:
        draft.assumed.append("context_length was not found in a source: that of pretraining stands in")
    table["max_seq_len"] = context
    table.update(m.recipe)
    table.update(stack_of(draft))
    table["embedding"] = _embedding(draft)
    table["block"] = {"mixer": mixer_of(draft), "ffn": ffn_of(draft), "residual": residual_of(draft)}
    layers = layers_of(draft)
    if layers:
        table["layers"] = layers
    table["head"] = _head(draft)
    init = _init(draft)
    if init:
        table["init"] = init
    return table


# --- the two ends


def _embedding(draft: Draft) -> Table:
    m = draft.model
    table: Table = {"tied": draft.fact("tied_embeddings")}
    scale = draft.soft("embedding_scale", "1")
    if scale not in (None, "none"):
        table["scale"] = scale
    if isinstance(m.embedding_width, int):
        table["projection"] = {"kind": "linear", "dim": m.embedding_width}
    if m.position == "learned":
        table["position"] = {"kind": "learned", "offset": m.position_offset} if m.position_offset else "learned"
    elif m.position == "sinusoidal":
        table["position"] = "sinusoidal"
    if m.embedding_norm:
        table["norm"] = norm_of(draft)
    if m.training.dropout and "embedding" in m.training.dropout_on:
        table["dropout"] = m.training.dropout
    return table


def _head(draft: Draft) -> Table:
    m = draft.model
    table: Table = {"norm": norm_of(draft) if draft.fact("norm_final") else "none"}
    if isinstance(m.embedding_width, int):
        table["projection"] = {"kind": "linear", "dim": m.embedding_width}
    if "lm_head" in (m.biases or ()):
        table["bias"] = True
    if m.logit_scale is None:
        draft.soft("logit_scale", "1")
    elif m.logit_scale != "none":
        table["scale"] = m.logit_scale
    if isinstance(m.final_softcap, float):
        table["soft_cap"] = m.final_softcap
    if (m.norm_note or "").startswith("NormHead"):
        draft.need_field(Head, "table_norm", "normalised rows of the output table")
    return table


_INITS: dict[str, Callable[[], Table]] = {
    "N(0,0.02)": lambda: {"weights": {"kind": "normal", "std": 0.02}},
    "N(0,0.02), residual projections scaled by 1/sqrt(N)": lambda: {
        "weights": {"kind": "normal", "std": 0.02},
        "depth": "total_depth",
    },
    "std 0.008944": lambda: {"weights": {"kind": "normal", "std": 0.008944}},
    "std 0.006": lambda: {"weights": {"kind": "normal", "std": 0.006}},
    "fan-in for kernels, N(0,1) for embeddings": lambda: {
        "weights": "fan_in",
        "embedding": {"kind": "normal", "std": 1.0},
    },
}


def _init(draft: Draft) -> Table:
    known = draft.model.training.init
    if known in _INITS:
        return _INITS[known]()
    why = "was not found in a source" if known is None else f"is {known!r}, which is not written"
    draft.assumed.append(f"the start of the weights {why}: N(0, 0.02) stands in")
    return {}


def shipped() -> Iterator[tuple[str, Model]]:
    """Every shipped recipe that is a model of the atlas, with the model."""
    by_name = {name: m for m in models() for name in (m.id, m.preset) if name}
    for name in preset_names():
        if name in by_name:
            yield name, by_name[name]
