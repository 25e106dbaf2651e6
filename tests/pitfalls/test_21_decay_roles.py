"""21. Weight decay that reaches gains, biases or embeddings (ServiceNow/Fast-LLM#542).

The table of every tensor of a model that has everything: what decays is said by the role, never by shape or name.
"""

from __future__ import annotations

import pytest

from assay.model import Decoder, build, named_params
from assay.recipe.roles import ParamRole
from tests.pitfalls.support import recipe

DECAYS = {
    "embedding.table": False,
    "embedding.position.table": False,
    "embedding.projection.weight": True,
    "embedding.projection.bias": False,
    "embedding.norm.gain": False,
    "embedding.norm.bias": False,
    "layers.0.mixer.q.weight": True,
    "layers.0.mixer.q.bias": False,
    "layers.0.mixer.k.weight": True,
    "layers.0.mixer.k.bias": False,
    "layers.0.mixer.v.weight": True,
    "layers.0.mixer.v.bias": False,
    "layers.0.mixer.gate.weight": True,
    "layers.0.mixer.gate.bias": False,
    "layers.0.mixer.o.weight": True,
    "layers.0.mixer.o.bias": False,
    "layers.0.mixer.sinks": False,
    "layers.0.mixer.q_norm.gain": False,  # two-dimensional: one gain a head
    "layers.0.mixer.k_norm.gain": False,
    "layers.0.mixer.inner_norm.gain": False,
    "layers.0.ffn.gate.weight": True,
    "layers.0.ffn.gate.bias": False,
    "layers.0.ffn.up.weight": True,
    "layers.0.ffn.up.bias": False,
    "layers.0.ffn.down.weight": True,
    "layers.0.ffn.down.bias": False,
    "layers.0.residual.mixer.input_norm.gain": False,
    "layers.0.residual.mixer.branch.scale": False,
    "layers.0.residual.ffn.input_norm.gain": False,
    "layers.0.residual.ffn.branch.scale": False,
    "head.norm.gain": False,
    "head.projection.weight": True,
    "head.projection.bias": False,
    "head.table": True,
    "head.bias": False,
}


def everything(tied: bool) -> Decoder:
    narrow = {"kind": "linear", "dim": 8, "bias": True}
    over = {
        "n_layers": 1,
        "embedding": {"tied": tied, "projection": narrow, "position": "learned", "norm": "layernorm"},
        "block": {"residual": {"rule": "layerscale"}, "ffn": {"bias": "all"}},
        "head": {"projection": narrow, "bias": True},
    }
    qk = {"over": "head", "gain_per": "head", "norm": {"kind": "rmsnorm", "gain": "one_plus"}}
    mixer = {"sinks": "per_head", "output_gate": "head", "bias": "all", "inner_norm": "rmsnorm", "qk_norm": qk}
    return build(recipe(over, position="none", **mixer))


@pytest.mark.parametrize("tied", [False, True])
def test_table(tied: bool) -> None:
    found = {p.name: p.role.decays for p in named_params(everything(tied))}
    assert found == {name: decays for name, decays in DECAYS.items() if not (tied and name == "head.table")}


def test_each_role_is_decided_and_only_matrices_decay() -> None:
    assert {role for role in ParamRole if role.decays} <= {role for role in ParamRole if role.is_matrix}
    still = {"embedding", "position", "norm_gain", "bias", "scale", "sink"}
    assert {str(role) for role in ParamRole if str(role) in still and role.decays} == set()
    assert all(role.decays for role in ParamRole if role.is_hidden_matrix)
