"""Optimizers: specs that a run names, and the classes that need torch, loaded when first used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from assay.training.optim.matrix_spec import MuonSpec, SoapSpec
from assay.training.optim.spec import AdamL2, AdamW, OptimizerSlot, OptimizerSpec, Sgd

if TYPE_CHECKING:
    from assay.training.optim.adam import CautiousAdamW
    from assay.training.optim.muon import Muon
    from assay.training.optim.soap import SOAP, NonFiniteGradient

__all__ = [
    "SOAP",
    "AdamL2",
    "AdamW",
    "CautiousAdamW",
    "Muon",
    "MuonSpec",
    "NonFiniteGradient",
    "OptimizerSlot",
    "OptimizerSpec",
    "Sgd",
    "SoapSpec",
]

_HOMES = {"CautiousAdamW": "adam", "Muon": "muon", "NonFiniteGradient": "soap", "SOAP": "soap"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'assay.training.optim' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"assay.training.optim.{_HOMES[name]}"), name)
    globals()[name] = value  # found once
    return value
