"""How ``bench/decode.py`` talks to what it measures: a line of JSON in, a line of JSON out. Standard library only.

A peer is a process of its own, in its own environment, that loads its model once and waits between rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any, Protocol


class Peer(Protocol):
    """``read`` takes prompts of one length, forgetting all before, and gives a first token a row; ``step`` the next."""

    def read(self, prompts: list[list[int]]) -> Any: ...

    def step(self, tokens: Any) -> Any: ...

    def plain(self, tokens: Any) -> list[int]: ...


def arguments() -> argparse.Namespace:
    """What every peer is started with."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model", help="folder with model.safetensors (Hugging Face), or a GGUF file")
    parser.add_argument("--dtype", choices=["fp32", "bf16"], required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--max-len", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--variant", default="")
    args = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(args.threads)
    return args


def measure(peer: Peer, prompts: list[list[int]], new: int) -> dict[str, Any]:
    """One round: seconds and CPU seconds of the prompt, and of ``new`` further steps; and the tokens."""
    began, cpu = time.perf_counter(), time.process_time()
    tokens = peer.read(prompts)
    read, read_cpu = time.perf_counter() - began, time.process_time() - cpu
    out = [peer.plain(tokens)]
    began, cpu = time.perf_counter(), time.process_time()
    kept = []
    for _ in range(new):
        tokens = peer.step(tokens)
        kept.append(tokens)
    seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - cpu
    out += [peer.plain(tokens) for tokens in kept]
    return {
        "prefill_s": read,
        "prefill_cpu_s": read_cpu,
        "decode_s": seconds,
        "decode_cpu_s": cpu_seconds,
        "tokens": out,
    }


def serve(make: Callable[[], tuple[Peer, dict[str, Any]]]) -> None:
    """Answer rounds on stdin until it ends; anything a library prints goes to stderr."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    peer, about = make()

    def answer(value: dict[str, Any]) -> None:
        print(json.dumps(value), file=answers, flush=True)

    answer({"ready": True, **about})
    for line in sys.stdin:
        asked = json.loads(line)
        answer(measure(peer, asked["prompts"], asked["new"]))
