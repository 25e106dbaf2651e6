"""The numerics plan put into effect: process-wide settings of torch that decide the last bits."""

from __future__ import annotations

import os
import warnings

import torch

from assay.training.config import Numerics

_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"


def apply(numerics: Numerics) -> None:
    """Threads, and whether only deterministic kernels may run.

    cuBLAS reads its workspace setting when it starts: in a process that has used CUDA before, it is too late, and a
    warning says so (https://docs.nvidia.com/cuda/cublas, "Results reproducibility").
    """
    torch.set_num_threads(numerics.threads)
    wanted = numerics.deterministic
    if wanted and os.environ.get(_WORKSPACE) not in (":4096:8", ":16:8"):
        if torch.cuda.is_initialized():
            warnings.warn(f"{_WORKSPACE} is set after CUDA started; set it to :4096:8 before", stacklevel=2)
        os.environ[_WORKSPACE] = ":4096:8"
    torch.use_deterministic_algorithms(wanted)
    torch.backends.cudnn.deterministic = wanted
    if wanted:
        torch.backends.cudnn.benchmark = False
