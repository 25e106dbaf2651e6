"""What tells one model's output from another's."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from assay.model import Decoder

_SAMPLES = 64  # values read of each tensor


def fingerprint(decoder: Decoder) -> str:
    """Sixteen digits of recipe, dtype and a spread of every tensor's values: another checkpoint has others."""
    import torch

    from assay.model import named_params

    sha = hashlib.sha256(decoder.recipe.digest.encode())
    for p in named_params(decoder):
        flat = p.param.detach().flatten()
        at = torch.linspace(0, flat.numel() - 1, min(_SAMPLES, flat.numel()), dtype=torch.float64).long()
        values = flat[at.to(flat.device)].cpu().double().numpy().tobytes()
        sha.update(f"{p.name}/{flat.dtype}/".encode() + values)
    return sha.hexdigest()[:16]
