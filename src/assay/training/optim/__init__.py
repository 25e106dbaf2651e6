"""Optimizers: their specs here, parameter groups in :mod:`assay.training.optim.groups`, which needs torch."""

from assay.training.optim.spec import AdamW, OptimizerSlot, OptimizerSpec

__all__ = ["AdamW", "OptimizerSlot", "OptimizerSpec"]
