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


CLOCKS: dict[str, Callable[[], float]] = {
    "s": time.perf_counter,
    "cpu_s": time.process_time,  # of all threads, those that wait by spinning too
    "main_s": time.thread_time,  # of the thread that calls and has its share of every parallel piece
}


def measure(peer: Peer, prompts: list[list[int]], new: int) -> dict[str, Any]:
    """One round: the prompt, then ``new`` further steps, on three clocks; and the tokens."""

    def now() -> dict[str, float]:
        return {name: clock() for name, clock in CLOCKS.items()}

    began = now()
    tokens = peer.read(prompts)
    read = now()
    out, kept = [peer.plain(tokens)], []
    start = now()
    for _ in range(new):
        tokens = peer.step(tokens)
        kept.append(tokens)
    end = now()
    times = {f"prefill_{name}": read[name] - began[name] for name in CLOCKS}
    times |= {f"decode_{name}": end[name] - start[name] for name in CLOCKS}
    return {**times, "tokens": out + [peer.plain(tokens) for tokens in kept]}


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
