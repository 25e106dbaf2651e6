"""27. Scaling or base of global layers given to local layers, or to none (Blaizzy/mlx-vlm PR#1709).

6 layers, every 6th global: 0-4 local (base 1e4, no scaling), 5 global (base 1e6, linear 8). First-pair angle at
position 8: 8.0 rad local, 1.0 rad global. 26 layers: globals 5, 11, 17, 23. A layer without positions turns nothing.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from assay.model.position import rope_tables
from assay.recipe import Recipe, load, resolve
from tests.pitfalls.support import decoder, ids, recipe, record

LOCAL = {"kind": "rope", "theta": 1e4}
GLOBAL = {"kind": "rope", "theta": 1e6, "scaling": {"kind": "linear", "factor": 8}}
LAYERS: dict[str, Any] = {
    "local": {"mixer": {"span": {"kind": "window", "size": 4}, "position": LOCAL}},
    "global": {"mixer": {"position": GLOBAL}},
}


def alternating(n_layers: int) -> dict[str, Any]:
    stack = [{"cycle": ["5 local", "global"], "n_layers": n_layers}]
    return {"n_layers": n_layers, "stack": stack, "layers": LAYERS}


def facts(found: Recipe) -> list[tuple[float, str, str]]:
    specs = [layer.mixer for layer in found.layers]
    return [(s.position.theta, s.position.scaling.kind, s.span.kind) for s in specs]


WANT = [(1e4, "none", "window")] * 5 + [(1e6, "linear", "full")]


def test_which_layers() -> None:
    assert facts(recipe(alternating(6))) == WANT
    found = facts(recipe(alternating(26)))
    assert [i for i, fact in enumerate(found) if fact == WANT[5]] == [5, 11, 17, 23]
    assert [i for i, layer in enumerate(load("gemma3-4b").layers) if layer.mixer.span.kind == "full"] == [
        5, 11, 17, 23, 29,
    ]  # fmt: skip


def test_written_and_read_again() -> None:
    found = recipe(alternating(26))
    again = resolve(found.to_dict())
    assert facts(again) == facts(found)
    assert again.digest == found.digest


def test_exported_and_read_again() -> None:
    """Gemma 3 at 26 layers: in transformers' own words, and back."""
    transformers = pytest.importorskip("transformers")
    from assay.interop.export import choose

    found = load("gemma3-4b", ['stack=[{cycle = ["5 local", "global"], n_layers = 26}]'])
    family, config = choose(found)
    theirs = transformers.AutoConfig.for_model(**config)
    assert [i for i, kind in enumerate(theirs.layer_types) if kind == "full_attention"] == [5, 11, 17, 23]
    local, whole = (theirs.rope_parameters[kind] for kind in ("sliding_attention", "full_attention"))
    assert (local["rope_theta"], local["rope_type"]) == (1e4, "default")
    assert (whole["rope_theta"], whole["rope_type"], whole["factor"]) == (1e6, "linear", 8.0)
    assert facts(family.read(family.config(config))) == facts(found)


def test_angles_at_position_8() -> None:
    at = torch.tensor([8])
    for i, layer in enumerate(recipe(alternating(6)).layers):
        cos, sin = rope_tables(layer.mixer.position, 8, at, torch.float64)
        angle = torch.tensor(1.0 if i == 5 else 8.0, dtype=torch.float64)
        assert float(cos[0, 0]) == pytest.approx(float(angle.cos()), abs=1e-12)
        assert float(sin[0, 0]) == pytest.approx(float(angle.sin()), abs=1e-12)


def test_the_model_turns_each_layer_by_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Queries held at [1, 0, ...]: what reaches the kernel at position 8 is (cos, sin) of the layer's angle."""
    layers = {**LAYERS, "nope": {"mixer": {"position": "none"}}}
    model = decoder({"n_layers": 7, "stack": ["5 local", "global", "nope"], "layers": layers}, bias=["q"])
    with torch.no_grad():
        for layer in model.layers:
            layer.mixer.q.weight.zero_()
            layer.mixer.q.bias.zero_()
            layer.mixer.q.bias[0::8] = 1.0  # channel 0 of every head
        recording = record(monkeypatch, model)
        model(ids(0, 1, 9))
    got = [call[0][0, :, 8] for call in recording.calls]
    angles = [8.0] * 5 + [1.0, 0.0]
    for q, angle in zip(got, angles, strict=True):
        a = torch.tensor(angle, dtype=torch.float64)
        assert torch.allclose(q[:, 0], a.cos(), atol=1e-12)
        assert torch.allclose(q[:, 4], a.sin(), atol=1e-12)
