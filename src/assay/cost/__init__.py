"""What a recipe costs, before anything is built. No torch; tests hold it against the built model, tensor by tensor."""

from assay.cost import attention as _attention  # noqa: F401 - registers the rules of mixers and ffns
from assay.cost.budget import CONVENTIONS, DTYPE_BYTES, Budget, budget
from assay.cost.hardware import Hardware, find_hardware, hardware_names, utilization
from assay.cost.model import Start, cache_of, flops_of, layer_of, starts_of, tensors_of
from assay.cost.optimizers import find_optimizer, optimizer_names
from assay.cost.parallel import ParallelPlan, parse_plan
from assay.cost.rules import CacheSize, CostRule, Flops, Tensor, Work, register_cost
from assay.cost.scaling import CHINCHILLA

__all__ = [
    "CHINCHILLA",
    "CONVENTIONS",
    "DTYPE_BYTES",
    "Budget",
    "CacheSize",
    "CostRule",
    "Flops",
    "Hardware",
    "ParallelPlan",
    "Start",
    "Tensor",
    "Work",
    "budget",
    "cache_of",
    "find_hardware",
    "find_optimizer",
    "flops_of",
    "hardware_names",
    "layer_of",
    "optimizer_names",
    "parse_plan",
    "register_cost",
    "starts_of",
    "tensors_of",
    "utilization",
]
