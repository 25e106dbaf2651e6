"""The parts of a model against formulas written out, in float64."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from assay.model.backend import BACKENDS, Call, Legal
from assay.model.context import Context, positions_of
from assay.model.ffn import activation
from assay.model.loss import IGNORED, cross_entropy
from assay.model.norm import fix_rows, gain_norm
from assay.model.parts import Module, build_part
from assay.model.position import rope_frequencies, rope_tables, rotate, sinusoidal
from assay.model.span import allowed
from assay.recipe.base import kinds_of
from assay.recipe.ffn import Activation
from assay.recipe.norm import FixNorm, Norm
from assay.recipe.position import Rope, RopeScaling, SinusoidalPosition
from assay.recipe.span import FullSpan, WindowSpan
from tests.reference import positions
from tests.reference.activations import activate
from tests.reference.attention import attend, legal_by_rule
from tests.reference.norms import fix_norm, norm_vector
from tests.reference.support import distance

SEEDS = (0, 1, 2)


def part(base: Any, table: dict[str, Any]) -> Any:
    """A part of a slot from a complete table."""
    return kinds_of(base)[table["kind"]].model_validate(table)


def rope_of(table: dict[str, Any]) -> Rope:
    scaling = table.get("scaling", {"kind": "none"})
    return Rope.model_validate({**table, "scaling": part(RopeScaling, scaling)})


# --- norms ---

NORMS = [
    {"kind": "layernorm", "eps": 1e-5},
    {"kind": "layernorm", "eps": 0.5, "bias": False},
    {"kind": "layernorm", "eps": 1e-5, "gain": "one_plus"},
    {"kind": "layernorm", "eps": 1e-5, "gain": "none", "bias": False},
    {"kind": "layernorm", "eps": 1e-5, "gain": "none"},
    {"kind": "rmsnorm", "eps": 1e-6},
    {"kind": "rmsnorm", "eps": 0.5, "gain": "one_plus"},
    {"kind": "rmsnorm", "eps": 1e-6, "gain": "none"},
    {"kind": "scalenorm", "eps": 1e-5},
    {"kind": "shift"},
    {"kind": "none"},
]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("table", NORMS, ids=lambda t: "-".join(str(v) for v in t.values()))
def test_norm(table: dict[str, Any], seed: int) -> None:
    rng = np.random.default_rng(seed)
    width = int(rng.integers(2, 20))
    module = build_part(part(Norm, table), width).double()
    for p in module.parameters():
        torch.nn.init.normal_(p, generator=torch.Generator().manual_seed(seed))
    gain, bias = (None if p is None else p.detach().numpy() for p in (_of(module, "gain"), _of(module, "bias")))
    x = rng.normal(size=(5, width)) * np.array([[1e-4], [0.1], [1], [30], [1e3]])
    got = module(torch.from_numpy(x)).detach().numpy()
    for i in range(5):
        want = norm_vector(table, x[i], gain, bias)
        assert distance(got[i], want) < 1e-12


def _of(module: Any, name: str) -> Any:
    return getattr(module, name, None)


@pytest.mark.parametrize("table", NORMS[:8], ids=lambda t: "-".join(str(v) for v in t.values()))
def test_norm_with_a_gain_a_head(table: dict[str, Any]) -> None:
    rng = np.random.default_rng(7)
    module = gain_norm(part(Norm, table), (3, 6)).double()
    for p in module.parameters():
        torch.nn.init.normal_(p, generator=torch.Generator().manual_seed(7))
    x = rng.normal(size=(4, 3, 6))
    got = module(torch.from_numpy(x)).detach().numpy()
    for t in range(4):
        for h in range(3):
            gain, bias = (None if p is None else p[h].detach().numpy() for p in (module.gain, module.bias))
            assert distance(got[t, h], norm_vector(table, x[t, h], gain, bias)) < 1e-12


@pytest.mark.parametrize("name", ["layernorm", "rmsnorm", "scalenorm"])
def test_norm_of_zero_is_zero_without_its_bias(name: str) -> None:
    module = build_part(part(Norm, {"kind": name}), 8)
    for p in module.parameters():
        torch.nn.init.constant_(p, 1.0 if p is module.gain else 0.0)
    assert torch.equal(module(torch.zeros(2, 8)), torch.zeros(2, 8))


@pytest.mark.parametrize("seed", SEEDS)
def test_fixnorm_rows(seed: int) -> None:
    rows = np.random.default_rng(seed).normal(size=(6, 9))
    got = fix_rows(torch.from_numpy(rows), FixNorm(radius=2.5, eps=1e-5)).numpy()
    assert distance(got, [fix_norm(row, 2.5, 1e-5) for row in rows]) < 1e-12


# --- positions ---

SCALINGS = [
    {"kind": "none"},
    {"kind": "linear", "factor": 8.0},
    {"kind": "ntk", "factor": 3.0},
    {"kind": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_seq_len": 512},
    {"kind": "llama3", "factor": 3.0, "low_freq_factor": 2.0, "high_freq_factor": 5.0, "original_seq_len": 100},
    {"kind": "yarn", "factor": 8.0, "original_seq_len": 4096},
    {"kind": "yarn", "factor": 4.0, "original_seq_len": 100, "beta_fast": 16.0, "beta_slow": 2.0},
    {"kind": "yarn", "factor": 2.5, "original_seq_len": 300, "rounded": False, "attention_factor": 1.7},
    {"kind": "yarn", "factor": 0.5, "original_seq_len": 300},
]
ROPES = [
    {"kind": "rope", "theta": theta, "fraction": fraction, "layout": layout}
    for theta, fraction, layout in ((10_000.0, 1.0, "half"), (50.0, 0.5, "interleaved"), (5e5, 0.25, "half"))
]


@pytest.mark.parametrize("head_dim", [16, 64, 128])
@pytest.mark.parametrize("scaling", SCALINGS, ids=lambda s: "-".join(str(v) for v in s.values()))
@pytest.mark.parametrize("rope", ROPES, ids=lambda r: f"{r['theta']:g}-{r['fraction']}-{r['layout']}")
def test_rope_frequencies(rope: dict[str, Any], scaling: dict[str, Any], head_dim: int) -> None:
    table = {**rope, "scaling": scaling}
    got, amplitude = rope_frequencies(rope_of(table), head_dim)
    want, want_amplitude = positions.frequencies(table, head_dim)
    assert len(got) == len(want) == head_dim * rope["fraction"] / 2
    np.testing.assert_allclose(got.numpy(), want, rtol=1e-13)
    assert amplitude == pytest.approx(want_amplitude, rel=1e-15)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("scaling", SCALINGS[:1] + SCALINGS[5:6], ids=lambda s: s["kind"])
@pytest.mark.parametrize("rope", ROPES, ids=lambda r: f"{r['theta']:g}-{r['fraction']}-{r['layout']}")
def test_rotation(rope: dict[str, Any], scaling: dict[str, Any], seed: int) -> None:
    table, head_dim = {**rope, "scaling": scaling}, 16
    rng = np.random.default_rng(seed)
    at = [int(p) for p in rng.integers(0, 5000, 7)]
    x = rng.normal(size=(7, head_dim))
    cos, sin = rope_tables(rope_of(table), head_dim, torch.tensor(at), torch.float64)
    got = rotate(torch.from_numpy(x), cos, sin, rope["layout"]).numpy()
    # an angle of 5000 radians holds 5000 · 2^-53 of error before its cosine is taken
    assert distance(got, [positions.rotate(row, p, table) for row, p in zip(x, at, strict=True)]) < 1e-11


@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize("scaling", SCALINGS[:3], ids=lambda s: s["kind"])
def test_rope_products_depend_on_distance_alone(layout: str, scaling: dict[str, Any]) -> None:
    """The worked check of the lecture notes: one pair of vectors at (3, 7), (20, 24) and (50, 54)."""
    rope = rope_of({"kind": "rope", "theta": 10_000.0, "layout": layout, "scaling": scaling})
    q, k = torch.randn(2, 1, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def product(m: int, n: int) -> float:
        at = [rope_tables(rope, 8, torch.tensor([p]), torch.float64) for p in (m, n)]
        turned = [rotate(x, *table, layout) for x, table in zip((q, k), at, strict=True)]
        return float((turned[0] * turned[1]).sum())

    first = product(3, 7)
    for m, n in ((20, 24), (50, 54)):
        assert product(m, n) == pytest.approx(first, rel=1e-12)
    assert product(3, 8) != pytest.approx(first, rel=1e-3)
    assert product(7, 3) != pytest.approx(first, rel=1e-3)


@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize("d", [8, 9])
def test_sinusoidal_rows(d: int, layout: str) -> None:
    spec = SinusoidalPosition(theta=10_000.0, layout=layout)
    got = sinusoidal(spec, d, torch.tensor([0, 1, 2, 511]), torch.float64).numpy()
    want = [positions.sinusoidal_row(p, d, 10_000.0, layout) for p in (0, 1, 2, 511)]
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-12)


# --- spans and the attention core ---

SPANS = [
    {"kind": "full"},
    {"kind": "full", "causal": False},
    {"kind": "window", "size": 1},
    {"kind": "window", "size": 3},
    {"kind": "window", "size": 50},
    {"kind": "window", "size": 3, "causal": False},
]
SPAN_KINDS = {"full": FullSpan, "window": WindowSpan}


@pytest.mark.parametrize("table", SPANS, ids=lambda s: "-".join(str(v) for v in s.values()))
def test_span_mask(table: dict[str, Any]) -> None:
    span = SPAN_KINDS[table["kind"]].model_validate(table)
    at = torch.arange(9)
    got = allowed(span, at.unsqueeze(-1), at.unsqueeze(-2)).numpy()
    legal = legal_by_rule(table)
    assert got.tolist() == [[legal(i, j) for j in range(9)] for i in range(9)]


@pytest.mark.parametrize("table", SPANS, ids=lambda s: "-".join(str(v) for v in s.values()))
def test_legal_pairs_of_a_padded_and_packed_batch(table: dict[str, Any]) -> None:
    """Padding, documents and the span, by brute force over every pair of every row."""
    span = SPAN_KINDS[table["kind"]].model_validate(table)
    pads = torch.tensor([[0, 0, 1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 0, 0, 0], [0, 1, 1, 1, 1, 1, 1, 0], [0] * 8])
    documents = torch.tensor([[0, 0, 0, 0, 1, 1, 1, 2], [5, 5, 3, 3, 3, 9, 9, 9], [1, 1, 1, 2, 2, 2, 2, 2], [0] * 8])
    ids = torch.zeros(4, 8, dtype=torch.long)
    at = positions_of(8, ids.device, pads.bool(), documents)
    got = Context(ids, at, BACKENDS["auto"], pads.bool(), documents).legal(span).as_mask(8, 8, ids.device)
    legal = legal_by_rule(table)
    for b in range(4):
        place = {}
        for document in set(documents[b].tolist()):
            own = [i for i in range(8) if pads[b, i] and documents[b, i] == document]
            place |= {i: n for n, i in enumerate(own)}
        for i in range(8):
            for j in range(8):
                real = bool(pads[b, i] and pads[b, j])
                want = real and documents[b, i] == documents[b, j] and legal(place[i], place[j])
                assert bool(got[b, 0, i, j]) == bool(want), (b, i, j)


OPTIONS = {
    "plain": {},
    "scale": {"scale": 1.3},
    "cap": {"soft_cap": 0.7},
    "sinks": {"sinks": True},
    "cap and sinks": {"soft_cap": 0.7, "sinks": True},
}
PLAIN = ("plain", "scale")


# sdpa refuses caps and sinks (tests/pitfalls/test_23_soft_cap.py)
KERNELS = [
    (backend, o) for backend in ("reference", "sdpa", "auto") for o in OPTIONS if backend != "sdpa" or o in PLAIN
]


@pytest.mark.parametrize(("backend", "option"), KERNELS)
@pytest.mark.parametrize("heads", [(4, 4), (4, 2), (4, 1)], ids=["mha", "gqa", "mqa"])
@pytest.mark.parametrize("shape", ["causal", "fewer queries", "all", "mask with an empty row"])
def test_attention_core(shape: str, heads: tuple[int, int], option: str, backend: str) -> None:
    options = OPTIONS[option]
    h, g = heads
    t, s = (2, 7) if shape == "fewer queries" else (6, 6)
    rng = np.random.default_rng([h, g, t])
    q, k, v = rng.normal(size=(h, t, 5)), rng.normal(size=(g, s, 5)), rng.normal(size=(g, s, 5))
    sinks = rng.normal(size=h) if options.get("sinks") else None
    if shape.startswith("mask"):
        mask = rng.random((t, s)) < 0.5
        mask[2] = False
        legal = Legal("mask", torch.from_numpy(mask)[None, None], may_be_empty=True)
        rule = lambda i, j: bool(mask[i, j])  # noqa: E731
    elif shape == "all":
        legal, rule = Legal("all"), lambda i, j: True
    else:
        # the last query sees the last key
        legal, rule = Legal("causal"), lambda i, j: j <= i + s - t
    scale = options.get("scale", 5**-0.5)
    call = Call(legal, scale, options.get("soft_cap"), None if sinks is None else torch.from_numpy(sinks))
    batch = [torch.from_numpy(np.stack([a, 2 * a])) for a in (q, k, v)]
    got = BACKENDS[backend].attend(*batch, call)
    for b, times in enumerate((1, 2)):
        want = attend(
            times * q, times * k, times * v, scale=scale, legal=rule, soft_cap=options.get("soft_cap"), sinks=sinks
        )
        assert distance(got[b].numpy(), want) < 1e-12


# --- activations and the loss ---

ACTIVATIONS = [{"kind": kind} for kind in sorted(kinds_of(Activation)) if kind != "swish"]
ACTIVATIONS += [{"kind": "swish", "beta": 1.702}, {"kind": "elu", "alpha": 0.3}]


@pytest.mark.parametrize("table", ACTIVATIONS, ids=lambda t: "-".join(str(v) for v in t.values()))
def test_activation(table: dict[str, Any]) -> None:
    x = np.concatenate([np.linspace(-20, 20, 81), [0.0, -1e-3, 1e-3]])
    function = activation(part(Activation, table), len(x))
    if isinstance(function, Module):
        for name, info in function.param_info.items():
            getattr(function, name).data = torch.full((1,), info.start or 0.0, dtype=torch.float64)
    got = function(torch.from_numpy(x)).detach().numpy()
    np.testing.assert_allclose(got, activate(table, x), rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("chunk", [1, 3, 1000])
def test_cross_entropy(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sum and count over the targets that count, log Z and its square beside them, whatever the chunk."""
    rng = np.random.default_rng(0)
    hidden, table = rng.normal(size=(10, 4)), rng.normal(size=(6, 4))
    targets = [0, 5, IGNORED, 2, 2, IGNORED, 1, 3, 4, 0]
    monkeypatch.setattr("assay.model.loss.CHUNK_ELEMENTS", chunk * 6)
    got = cross_entropy(
        torch.from_numpy(hidden), torch.tensor(targets), lambda x: x @ torch.from_numpy(table).T, vocab_size=6
    )
    nll = z = z_squared = 0.0
    for row, target in zip(hidden, targets, strict=True):
        if target == IGNORED:
            continue
        scores = [float(row @ entry) for entry in table]
        log_z = math.log(sum(math.exp(s) for s in scores))
        nll, z, z_squared = nll + log_z - scores[target], z + log_z, z_squared + log_z**2
    assert float(got.sum) == pytest.approx(nll, rel=1e-12)
    assert int(got.count) == 8
    assert float(got.aux["log_z"]) == pytest.approx(z, rel=1e-12)
    assert float(got.aux["z_squared"]) == pytest.approx(z_squared, rel=1e-12)
