"""Optimizers that see a matrix as a matrix: for the hidden ones; all others follow AdamW."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from assay.recipe.roles import ParamRole
from assay.training.optim.spec import Beta, Betas, Family, OptimizerSpec, adamw_of

if TYPE_CHECKING:
    import torch

    from assay.training.optim.groups import Group


class _MatrixOptimizer(OptimizerSpec):
    """A rule for hidden matrices, AdamW with ``betas`` and ``eps`` for embeddings, head, gains, biases and the rest."""

    betas: Betas = (0.9, 0.95)
    eps: PositiveFloat = 1e-8

    def rule_for(self, role: ParamRole, shape: tuple[int, ...]) -> str:
        return self.kind_name if role.is_hidden_matrix and len(shape) >= 2 else "adamw"

    def make(self, groups: tuple[Group, ...], lr: float) -> torch.optim.Optimizer:
        from assay.training.optim.together import Together

        own = tuple(g for g in groups if g.params and g.rule == self.kind_name)
        rest = tuple(g for g in groups if g.params and g.rule != self.kind_name)
        parts = [self._matrices(own, lr)] if own else []
        if rest:
            parts.append(adamw_of(rest, lr, self.betas, self.eps, self.decay_where))
        return parts[0] if len(parts) == 1 else Together(parts)

    def _matrices(self, groups: tuple[Group, ...], lr: float) -> torch.optim.Optimizer:
        raise NotImplementedError


class MuonSpec(_MatrixOptimizer):
    """Muon; see :class:`assay.training.optim.muon.Muon`.

    ``adjust = "match_rms_adamw"`` lets one learning rate serve both halves; ``neuron_beta`` makes it NorMuon.
    """

    kind: Literal["muon"] = "muon"
    momentum: Beta = 0.95
    nesterov: bool = True
    adjust: Literal["original", "match_rms_adamw"] = "match_rms_adamw"
    ns_dtype: Literal["bfloat16", "float32"] = "bfloat16"
    ns_steps: Annotated[PositiveInt, Field(le=20)] = 5
    neuron_beta: Beta | Literal["none"] = "none"

    @property
    def ledger(self) -> str:
        return "muon" if self.neuron_beta == "none" else "normuon"

    def family(self, rule: str) -> Family:
        return "spectral" if rule == "muon" and self.adjust == "original" else "adam"

    def _matrices(self, groups: tuple[Group, ...], lr: float) -> torch.optim.Optimizer:
        from assay.training.optim.muon import Muon

        return Muon(
            [g.for_torch() for g in groups],
            lr=lr,
            momentum=self.momentum,
            nesterov=self.nesterov,
            adjust=self.adjust,
            ns_dtype=self.ns_dtype,
            ns_steps=self.ns_steps,
            neuron_beta=None if self.neuron_beta == "none" else self.neuron_beta,
            decay_where=self.decay_where,
        )


class SoapSpec(_MatrixOptimizer):
    """SOAP; see :class:`assay.training.optim.soap.SOAP`. ``soap_betas`` are those of hidden matrices."""

    kind: Literal["soap"] = "soap"
    soap_betas: Betas = (0.95, 0.95)
    precondition_frequency: PositiveInt = 10

    def _matrices(self, groups: tuple[Group, ...], lr: float) -> torch.optim.Optimizer:
        from assay.training.optim.soap import SOAP

        return SOAP(
            [g.for_torch(eps=self.eps * g.eps_scale, decay_where=self.decay_where) for g in groups],
            lr=lr,
            betas=self.soap_betas,
            eps=self.eps,
            precondition_frequency=self.precondition_frequency,
        )
