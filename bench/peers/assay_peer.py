"""assay's engine."""

from __future__ import annotations

from typing import Any

from protocol import arguments, serve

ARGS = arguments()

import torch  # noqa: E402

import assay  # noqa: E402
from assay.decoding import Engine  # noqa: E402


class AssayPeer:
    def __init__(self) -> None:
        decoder = assay.from_hf(ARGS.model, dtype=torch.float32 if ARGS.dtype == "fp32" else torch.bfloat16)
        self.engine = Engine(decoder, ARGS.batch, ARGS.max_len, layout=ARGS.variant or "auto")

    def read(self, prompts: list[list[int]]) -> Any:
        self.engine.reset()
        return self.engine.prefill(torch.tensor(prompts)).argmax(-1)

    def step(self, tokens: Any) -> Any:
        return self.engine.step(tokens).argmax(-1)

    def plain(self, tokens: Any) -> list[int]:
        return tokens.tolist()


def make() -> tuple[AssayPeer, dict[str, Any]]:
    torch.set_num_threads(ARGS.threads)
    peer = AssayPeer()
    peer.read([[1, 2, 3]] * ARGS.batch)
    peer.step(torch.ones(ARGS.batch, dtype=torch.long))
    about = {"name": "assay", "version": assay.__version__, "torch": torch.__version__}
    engine = peer.engine
    layouts = sorted({f"{p.shape[1]}x{p.shape[0]} {p.layout}" for p in engine.products})
    weights = sum(p.nbytes for p in engine.decoder.parameters())
    bytes_ = {"weights": weights, "packed": engine.packed_bytes, "cache": engine.cache.nbytes}
    return peer, {**about, "layouts": layouts, "bytes": bytes_}


serve(make)
