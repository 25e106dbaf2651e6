"""muP and CompleteP: the tables of the papers to the digit, nothing changed at the base, refusals with their place."""

from __future__ import annotations

import math
from typing import Any

import pytest
from pydantic_core import PydanticCustomError

from assay.cost import tensors_of
from assay.recipe import Recipe, load
from assay.recipe.parametrization import CompleteP, Mup, Standard
from assay.recipe.roles import ParamRole
from assay.recipe.widen import widened
from assay.training import RunConfig, RunError
from assay.training.optim import AdamW, MuonSpec, Sgd
from assay.training.optim.groups import settings_of

HIDDEN = ("attn_in", "attn_value", "attn_out", "ffn_in", "ffn_out")


def starts(recipe: Recipe) -> dict[str, float]:
    """The drawn standard deviation of every kind of matrix."""
    out = {}
    for entry in recipe.init.roles:
        fan_in = 4 * recipe.d_model if entry.role == "ffn_out" else recipe.d_model
        out[str(entry.role)] = entry.distribution.draw(fan_in, fan_in).std
    return out


@pytest.mark.parametrize("name", ["tiny/base", "tiny/post-ln", "gpt2", "gemma3-4b", "command-a"])
def test_nothing_changes_at_the_base(name: str) -> None:
    recipe = load(name)
    assert Standard().applied(recipe) is recipe
    assert Mup(base_width=recipe.d_model).applied(recipe).digest == recipe.digest
    if recipe.init.depth.is_none:
        p = CompleteP(base_width=recipe.d_model, base_depth=recipe.n_layers)
        assert p.applied(recipe).digest == recipe.digest
        for t in tensors_of(recipe):
            assert p.scales(t.role, t.name.startswith("layers."), "adam", recipe) == (1.0, 1.0, 1.0)


@pytest.mark.parametrize("weights", ["normal", "truncated_normal", "fan_in"])
def test_table_8_of_the_mup_paper(weights: str) -> None:
    """At four times the base's width: hidden variance 1/4, all else as at the base; logits x 1/4."""
    option = {"normal": "std=0.02", "truncated_normal": "std=0.02", "fan_in": "gain=1.0"}[weights]
    sets = [f"init.weights={{kind='{weights}', {option}}}", "init.embedding={kind='normal', std=1.0}"]
    base = load("tiny/base", sets)
    wide = widened(base, 256)
    found, want = starts(Mup(base_width=64).applied(wide)), starts(base)
    for role, std in want.items():
        assert found[role] == pytest.approx(std / 2 if role in HIDDEN else std), role
    assert Mup(base_width=64).applied(wide).head.scale == 0.25
    assert Mup(base_width=64).applied(wide).layers == wide.layers  # heads of the same size


def test_attention_scale_goes_as_one_over_head_dim() -> None:
    wide = load("tiny/base", ["block.mixer.head_dim=64"])
    mixer = Mup(base_width=64, base_head_dim=16).applied(wide).layers[0].mixer
    assert mixer.scale_value == pytest.approx(math.sqrt(16) / 64)  # type: ignore[attr-defined]
    already = load("tiny/base", ["block.mixer.head_dim=64", "block.mixer.scale=inv_head_dim"])
    assert Mup(base_width=64, base_head_dim=16).applied(already).layers == already.layers


def test_multipliers_tied_to_the_width_stay_those_of_the_base() -> None:
    recipe = load("tiny/base", ["embedding.scale=sqrt_d_model", "head.scale=inv_sqrt_d_model"])
    built = Mup(base_width=16).applied(recipe)
    assert built.embedding.scale == 4.0
    assert built.head.scale == pytest.approx(0.25 / 4)


ROLES: list[tuple[str, str, tuple[int, ...]]] = [
    ("embedding.table", "embedding", (256, 64)),
    ("layers.0.mixer.q.weight", "attn_in", (64, 64)),
    ("layers.0.ffn.down.weight", "ffn_out", (64, 168)),
    ("layers.0.residual.mixer.input_norm.gain", "norm_gain", (64,)),
    ("head.norm.gain", "norm_gain", (64,)),
    ("head.table", "head", (256, 64)),
]


@pytest.mark.parametrize(
    ("optimizer", "lr"),
    [
        (AdamW(), (1, 1 / 4, 1 / 4, 1, 1, 1)),
        (MuonSpec(), (1, 1 / 4, 1 / 4, 1, 1, 1)),
        (MuonSpec(adjust="original"), (1, 1, 1, 1, 1, 1)),
        (Sgd(), (4, 1, 1, 4, 4, 4)),
    ],
    ids=["adamw", "muon as adamw", "muon original", "sgd"],
)
def test_rates_by_role(optimizer: Any, lr: tuple[float, ...]) -> None:
    """Table 8's rates at m = 4; a hidden matrix keeps the product of rate and decay under Adam."""
    recipe = load("tiny/base")
    for (name, role, shape), factor in zip(ROLES, lr, strict=True):
        found = settings_of(name, ParamRole(role), shape, optimizer, recipe, Mup(base_width=16))
        assert found.lr_scale == factor, name
        if role in HIDDEN and factor != 1:
            assert found.lr_scale * found.weight_decay == pytest.approx(optimizer.weight_decay)


@pytest.mark.parametrize("alpha", [0.5, 1.0])
def test_table_1_of_the_completep_paper(alpha: float) -> None:
    """m = 4, k = 2: branches k^-alpha; rates k^(alpha - 1) in layers, 1/m more for hidden matrices; eps; decay m."""
    recipe = load("tiny/base")
    p = CompleteP(base_width=16, base_depth=2, alpha=alpha)
    built = p.applied(recipe)
    for layer in built.layers:
        for side in ("mixer", "ffn"):
            assert getattr(layer.residual, side).branch.value == pytest.approx(2**-alpha)
    want = {
        "embedding.table": (1, 1, 1 / 4),
        "layers.0.mixer.q.weight": (2 ** (alpha - 1) / 4, 4, 2**-alpha / 4),
        "layers.0.ffn.down.weight": (2 ** (alpha - 1) / 4, 4, 2**-alpha / 4),
        "layers.0.residual.mixer.input_norm.gain": (2 ** (alpha - 1), 1, 2**-alpha / 4),
        "head.norm.gain": (1, 1, 1 / 4),
        "head.table": (1, 1, 1 / 4),
    }
    for name, role, _ in ROLES:
        assert p.scales(ParamRole(role), name.startswith("layers."), "adam", recipe) == pytest.approx(want[name]), name


def test_a_layer_without_a_sublayer_has_no_branch_to_shrink() -> None:
    recipe = load("tiny/base", ["layers.bare.ffn=none", "stack=['2 bare', '2 block']"])
    built = CompleteP(base_width=64, base_depth=2).applied(recipe)
    assert built.layers[0].residual.ffn == recipe.layers[0].residual.ffn  # type: ignore[attr-defined]
    assert built.layers[0].residual.mixer.branch.value == 0.5  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("name", "parametrization", "words"),
    [
        ("opt-350m", Mup(base_width=64), "projection"),
        ("gpt2", CompleteP(base_width=64, base_depth=2), "shrinks the branches"),
        ("tiny/rezero", CompleteP(base_width=64, base_depth=2), "by a constant"),
    ],
)
def test_what_it_does_not_know_is_refused(name: str, parametrization: Mup, words: str) -> None:
    with pytest.raises(PydanticCustomError):
        parametrization.applied(load(name))
    table = {"recipe": name, "seq_len": 8, "batch_size": 1, "steps": 1, "schedule": {"kind": "constant", "lr": 1e-3}}
    with pytest.raises(RunError, match=words):
        RunConfig.from_dict({**table, "parametrization": parametrization.model_dump(mode="json")})


def test_completep_is_for_adam() -> None:
    table = {"recipe": "tiny/base", "seq_len": 8, "batch_size": 1, "steps": 1}
    table = {**table, "schedule": {"kind": "constant", "lr": 1e-3}, "optimizer": {"kind": "sgd"}}
    with pytest.raises(RunError, match="those of Adam"):
        RunConfig.from_dict({**table, "parametrization": {"kind": "completep", "base_width": 32, "base_depth": 2}})


@pytest.mark.parametrize("name", ["tiny/base", "tiny/local-global", "gemma3-4b", "gpt2", "opt-350m", "command-a"])
def test_widened_keeps_everything_but_widths(name: str) -> None:
    recipe = load(name)
    wide = widened(recipe, 2 * recipe.d_model)
    assert wide.d_model == 2 * recipe.d_model
    assert (wide.n_layers, wide.vocab_size, wide.init) == (recipe.n_layers, recipe.vocab_size, recipe.init)
    assert wide.embedding_width == 2 * recipe.embedding_width
    for a, b in zip(recipe.layers, wide.layers, strict=True):
        assert (b.mixer.n_heads, b.mixer.head_dim) == (2 * a.mixer.n_heads, a.mixer.head_dim)  # type: ignore[attr-defined]
        assert b.ffn.d_ff == 2 * a.ffn.d_ff  # type: ignore[attr-defined]
    assert widened(wide, recipe.d_model).digest == recipe.digest
