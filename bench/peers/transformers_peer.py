"""transformers' Llama with one of its caches, in a loop without its sampling; ``generate`` is slower than this."""

from __future__ import annotations

from typing import Any

from protocol import arguments, serve

ARGS = arguments()

import torch  # noqa: E402
import transformers  # noqa: E402


class TransformersPeer:
    def __init__(self) -> None:
        dtype = torch.float32 if ARGS.dtype == "fp32" else torch.bfloat16
        attention = "sdpa" if not ARGS.variant.endswith("eager") else "eager"
        self.model = transformers.AutoModelForCausalLM.from_pretrained(
            ARGS.model, dtype=dtype, attn_implementation=attention
        ).eval()
        self.static = ARGS.variant.startswith("static")

    @torch.inference_mode()
    def read(self, prompts: list[list[int]]) -> Any:
        config = self.model.config
        cache = (
            transformers.StaticCache(config=config, max_cache_len=ARGS.max_len)
            if self.static
            else transformers.DynamicCache(config=config)
        )
        ids = torch.tensor(prompts)
        out = self.model(ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
        self.cache = out.past_key_values
        return out.logits[:, -1].argmax(-1)

    @torch.inference_mode()
    def step(self, tokens: Any) -> Any:
        out = self.model(tokens[:, None], past_key_values=self.cache, use_cache=True)
        return out.logits[:, -1].argmax(-1)

    def plain(self, tokens: Any) -> list[int]:
        return tokens.tolist()


def make() -> tuple[TransformersPeer, dict[str, Any]]:
    torch.set_num_threads(ARGS.threads)
    peer = TransformersPeer()
    peer.step(peer.read([[1, 2, 3]] * ARGS.batch))
    return peer, {"name": "transformers", "version": transformers.__version__, "torch": torch.__version__}


serve(make)
