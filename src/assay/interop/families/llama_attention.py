"""Llamas with another attention: DiffLlama subtracts maps, Ministral 3 sharpens queries as the context grows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from assay.interop.config import Config
from assay.interop.families.llama import PLAIN_ROPE, like_llama
from assay.interop.families.parts import ALL_BIAS, HEAD_DIM, LAYER, LLAMA_TENSORS, attention, glu, rms
from assay.interop.family import Family
from assay.interop.holes import Key, Start, Window
from assay.interop.rope import RopeHole, rope
from assay.interop.template import At, Entries, Hole, Spot, matches, put
from assay.interop.tensors import Move

LAMBDAS = ("lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2")
DIFFLLAMA = Family(
    "diffllama",
    "DiffLlamaForCausalLM",
    like_llama(
        attention(
            PLAIN_ROPE, bias=ALL_BIAS, differential={"kind": "pairs", "norm": rms(gain="none"), "start": "by_depth"}
        ),
        glu(),
        init={"weights": Start(), "lambda": Start("lambda_std_dev")},
    ),
    (
        *LLAMA_TENSORS,
        Move(LAYER + "self_attn", ("layers.{i}.mixer.difference",), dict(zip(LAMBDAS, LAMBDAS, strict=True))),
    ),
)

BETA, PERIOD = "llama_4_scaling_beta", "original_max_position_embeddings"


@dataclass(frozen=True)
class StepScale(Hole):
    """The factor on queries by position, which Ministral 3 keeps in its RoPE table; a beta of 0 is none."""

    rope: RopeHole

    @property
    def keys(self) -> tuple[str, ...]:  # type: ignore[override]
        return self.rope.keys

    def read(self, cfg: Config, at: At) -> Any:
        table = self.rope.table(cfg, None)
        beta, period = table.get(BETA), table.get(PERIOD)
        if isinstance(beta, bool) or not isinstance(beta, int | float):
            raise cfg.fault(f"rope {BETA}", beta, "a number; 0 leaves queries as they are")
        if not beta:
            return "none"
        if isinstance(period, bool) or not isinstance(period, int) or period < 1:
            raise cfg.fault(f"rope {PERIOD}", period, "a positive whole number")
        return {"kind": "by_position", "beta": float(beta), "period": period}

    def accepts(self, node: Any, parent: Mapping[str, Any]) -> bool:
        return matches("none", node) or matches({"kind": "by_position", "first": 0}, node)

    def write(self, node: Any, spot: Spot, out: Entries) -> None:
        none = matches("none", node)
        told = {BETA: 0.0 if none else node["beta"], PERIOD: spot.top["max_seq_len"] if none else node["period"]}
        put(out, "rope_parameters", told)
        if "rope_scaling" in out:
            put(out, "rope_scaling", told)


M3_ROPE = rope(
    theta=1e6,
    beside=(BETA, "max_position_embeddings"),
    silent=(
        ("rope_type", "yarn"),
        ("factor", 16.0),
        (PERIOD, 16384),
        ("beta_fast", 32.0),
        ("beta_slow", 1.0),
        ("mscale_all_dim", 1.0),
        ("mscale", 1.0),
        (BETA, 0.1),
    ),
)
MINISTRAL3 = Family(
    "ministral3",
    "Ministral3ForCausalLM",
    like_llama(
        attention(
            M3_ROPE,
            head_dim=Key("head_dim", otherwise=HEAD_DIM.otherwise),
            span=Window(),
            query_scale=StepScale(M3_ROPE),
        ),
        glu(),
    ),
    LLAMA_TENSORS,
)
LLAMA_ATTENTION = (DIFFLLAMA, MINISTRAL3)
