"""What a start is said to be is what is drawn: spread, cut and shape of each distribution; depth rules to the digit."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import stats

from assay.cost import Start, starts_of
from assay.model import build, named_params
from assay.recipe import Recipe, resolve
from assay.recipe.init import Draw
from assay.recipe.roles import ParamRole
from tests.strategies import Table

DISTRIBUTIONS: list[Table] = [
    {"kind": "normal", "std": 0.02},
    {"kind": "truncated_normal", "std": 0.02},
    {"kind": "truncated_normal", "std": 0.5, "cutoff": 1.0},
    {"kind": "fan_in"},
    {"kind": "fan_in", "gain": 0.7, "cutoff": 2.0},
    {"kind": "xavier"},
    {"kind": "xavier", "gain": 1.5, "shape": "uniform"},
    {"kind": "zero"},
]
DEPTHS = ["none", "total_depth", "layer_depth", "deepnorm", "fixup"]


def wide(**changes: object) -> Recipe:
    """Two layers of matrices large enough for statistics, no two shapes alike."""
    return resolve(
        {
            "d_model": 192,
            "vocab_size": 101,
            "max_seq_len": 40,
            "n_layers": 2,
            "embedding": {"tied": False, "projection": {"kind": "linear", "dim": 64}, "position": "learned"},
            "head": {"norm": "rmsnorm", "bias": True},
            "block": {
                "mixer": {"kind": "attention", "n_heads": 4, "n_kv_heads": 1, "head_dim": 32, "position": "rope"},
                "ffn": {"kind": "glu", "d_ff": 256, "activation": "silu"},
                "residual": {"rule": "layerscale", "norm": "layernorm"},
            },
            **changes,
        }
    )


def cdf(draw: Draw) -> stats.rv_continuous:
    """The distribution that a draw stands for."""
    if draw.kind == "uniform":
        bound = draw.std * math.sqrt(3)
        return stats.uniform(-bound, 2 * bound)
    if math.isinf(draw.cutoff):
        return stats.norm(0, draw.std)
    return stats.truncnorm(-draw.cutoff, draw.cutoff, 0, draw.std)


def check(start: Start, value: torch.Tensor) -> None:
    if start.draw is None:
        assert torch.equal(value, torch.full_like(value, float(start.tensor.start or 0.0)))
        return
    if str(start) == "0":
        assert not value.any()
        return
    law = cdf(start.draw)
    numbers = value.flatten().double().numpy()
    assert stats.kstest(numbers, law.cdf).pvalue > 1e-5, f"{start.tensor.name} is not {start}"
    # standard error of a variance: sqrt((kurtosis - 1) / n), at most that of the normal
    assert numbers.var() == pytest.approx(law.var(), rel=6 * math.sqrt(2 / numbers.size))
    assert abs(numbers.mean()) < 6 * law.std() / math.sqrt(numbers.size)
    low, high = law.support()
    assert numbers.min() >= low * (1 + 1e-6)
    assert numbers.max() <= high * (1 + 1e-6)


@pytest.mark.parametrize("distribution", DISTRIBUTIONS, ids=str)
def test_weights_are_drawn_from_what_the_recipe_says(distribution: Table) -> None:
    recipe = wide(init={"weights": distribution})
    built = {p.name: p.param.detach() for p in named_params(build(recipe, seed=3))}
    starts = starts_of(recipe)
    assert [s.tensor.name for s in starts] == list(dict.fromkeys(s.tensor.name for s in starts))
    assert {s.tensor.name for s in starts} == set(built)
    for start in starts:
        check(start, built[start.tensor.name])


@pytest.mark.parametrize("depth", DEPTHS)
def test_weights_shrink_as_the_depth_rule_says(depth: str) -> None:
    recipe = wide(init={"depth": depth})
    built = {p.name: p.param.detach() for p in named_params(build(recipe, seed=4))}
    for start in starts_of(recipe):
        check(start, built[start.tensor.name])


def test_each_role_has_its_own_distribution() -> None:
    """A different spread for every role: each tensor of a role has that role's, the fan-in being its columns."""
    roles = ["embedding", "position", "projection", "attn_in", "attn_value", "attn_out", "ffn_in", "ffn_out", "head"]
    init = {role: {"kind": "fan_in", "gain": 1.0 + i} for i, role in enumerate(roles)}
    recipe = wide(init=init)
    built = {p.name: (p.role, p.param.detach()) for p in named_params(build(recipe, seed=5))}
    for name, (role, value) in built.items():
        if role.is_matrix:
            std = (1.0 + roles.index(str(role))) / math.sqrt(value.shape[-1])
            assert float(value.std()) == pytest.approx(std, rel=6 / math.sqrt(2 * value.numel())), name


def test_no_two_tensors_are_drawn_alike() -> None:
    """Each has a stream of its own: the first numbers of any two are unrelated."""
    built = [p for p in named_params(build(wide(n_layers=6), seed=6)) if p.role.is_matrix]
    rows = torch.stack([p.param.detach().flatten()[:2000] for p in built]).double()
    related = torch.corrcoef(rows) - torch.eye(len(built))
    assert float(related.abs().max()) < 6 / math.sqrt(2000)


def stds(recipe: Recipe) -> dict[tuple[str, int], float]:
    """The spread of every drawn matrix by role and depth."""
    out = {}
    for start in starts_of(recipe):
        if start.draw is not None:
            parts = start.tensor.name.split(".")
            out[str(start.tensor.role), int(parts[1]) if parts[0] == "layers" else -1] = start.draw.std
    return out


def test_depth_rules_to_the_digit() -> None:
    """Twelve layers at std 0.02; the rules' own factors, by hand."""
    stack = {"n_layers": 12}
    found = {depth: stds(wide(**stack, init={"depth": depth})) for depth in DEPTHS}
    small = {"attn_out", "ffn_out"}
    for (role, layer), std in found["total_depth"].items():
        assert std == (pytest.approx(0.02 / math.sqrt(24), rel=1e-12) if role in small else 0.02), (role, layer)
    assert f"{found['total_depth']['attn_out', 5]:.5g}" == "0.0040825"
    for (role, layer), std in found["layer_depth"].items():
        want = 0.02 / math.sqrt(2 * (layer + 1)) if role in small else 0.02
        assert std == pytest.approx(want, rel=1e-12), (role, layer)
    for (role, layer), std in found["deepnorm"].items():
        want = 0.02 * (8 * 12) ** -0.25 if role in {"attn_value", "attn_out", "ffn_in", "ffn_out"} else 0.02
        assert std == pytest.approx(want, rel=1e-12), (role, layer)
    for (role, layer), std in found["fixup"].items():
        want = 0.0 if role in {*small, "head"} else 0.02 / math.sqrt(24) if role in {"attn_value", "ffn_in"} else 0.02
        assert std == pytest.approx(want, rel=1e-12), (role, layer)
    assert set(found["none"].values()) == {0.02}


def test_a_missing_sublayer_is_no_branch() -> None:
    """Depth is counted in what writes to the stream: twelve layers of one sublayer each are twelve branches."""
    block = {"mixer": "none", "ffn": {"kind": "mlp", "d_ff": 8, "activation": "relu"}, "residual": "pre"}
    recipe = wide(block=block, n_layers=12, init={"depth": "total_depth"})
    assert recipe.n_branches == 12
    assert stds(recipe)["ffn_out", 0] == pytest.approx(0.02 / math.sqrt(12), rel=1e-12)


def test_constants_are_those_of_the_recipe() -> None:
    """Gains at 1, or at 0 where 1 is added to them; ScaleNorm's at √d; learned scales at their own number."""
    norms: Table = {"kind": "rmsnorm", "gain": "one_plus"}
    recipe = wide(head={"norm": {"kind": "scalenorm"}}, embedding={"tied": True, "norm": norms})
    values = {s.tensor.name: s.tensor.start for s in starts_of(recipe) if s.draw is None}
    assert values["head.norm.gain"] == math.sqrt(192)
    assert values["embedding.norm.gain"] == 0.0
    assert values["layers.0.residual.mixer.input_norm.gain"] == 1.0
    assert values["layers.0.residual.mixer.input_norm.bias"] == 0.0
    assert values["layers.1.residual.ffn.branch.scale"] == 1e-4
    assert {s.tensor.role for s in starts_of(recipe) if s.draw is None} <= {
        ParamRole.NORM_GAIN, ParamRole.BIAS, ParamRole.SCALE, ParamRole.SINK,
    }  # fmt: skip
