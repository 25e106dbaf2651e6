"""Greedy decode against transformers and llama.cpp: the same weights, tokens and dtype, rounds interleaved.

make bench-decode                                     # makes the peers' environments under .bench/ once, then runs
python bench/decode.py --peers assay,transformers     # those whose environment is there

python bench/decode.py --busy                         # where others use the machine

Prints a line of JSON for each round and a table of medians and ratios. Shape B: d 512, 12 layers, 8 query and 4
key/value heads, SwiGLU 1408, vocabulary 32768: 35.4M parameters beside the tables. Every peer runs in a process of its
own, waiting while another is measured; a round is a prompt of 128 random tokens and 64 further steps; the prompt is not
in the rate. Peers must give the same tokens in float32 (but for ties: nine in ten of the first 16), or the run fails.
llama.cpp keeps its cache in float16, as it does by default.

Wall time needs a quiet machine: two threads that wait for each other lose milliseconds a step to anything else that
runs. With --busy threads wait asleep, and the rate is by the CPU time of the calling thread, which has its share of
every parallel piece and all that is serial: what the wall would show were the other thread never late. It leaves out
the cost of waking threads, for every peer.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
BENCH = ROOT / ".bench"
PROMPT, NEW, MAX_LEN = 128, 64, 256
ASLEEP = {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "0"}
# label -> (python, script, variant)
PEERS: dict[str, tuple[str, str, str]] = {
    "assay": (sys.executable, "assay_peer.py", ""),
    "transformers, dynamic": ("transformers", "transformers_peer.py", "dynamic"),
    "transformers, static": ("transformers", "transformers_peer.py", "static"),
    "llama.cpp": ("llama", "llama_cpp_peer.py", ""),
}
TABLE: dict[str, Any] = {
    "name": "shape-b",
    "d_model": 512,
    "vocab_size": 32_768,
    "max_seq_len": 1024,
    "n_layers": 12,
    "embedding": {"tied": False},
    "block": {
        "mixer": {"kind": "attention", "n_heads": 8, "n_kv_heads": 4, "head_dim": 64, "position": "rope"},
        "ffn": {"kind": "glu", "d_ff": 1408, "activation": "silu"},
        "residual": {"rule": "pre", "norm": "rmsnorm"},
    },
    "head": {"norm": "rmsnorm"},
    "init": {"weights": {"kind": "fan_in"}, "embedding": {"kind": "normal", "std": 1.0}},
}


def written(folder: Path) -> Path:
    """Shape B with random weights, as a Hugging Face folder."""
    import assay

    assay.to_hf(assay.build(assay.resolve(TABLE)), folder)
    return folder


def python_of(peer: str) -> Path:
    place = PEERS[peer][0]
    return Path(place) if os.sep in place else BENCH / place / "bin" / "python"


@dataclass
class Running:
    """One peer at work on one setting."""

    label: str
    process: subprocess.Popen[str]
    about: dict[str, Any]
    rounds: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def start(cls, label: str, folder: Path, dtype: str, batch: int, threads: int, busy: bool) -> Running:
        _, script, variant = PEERS[label]
        command = [str(python_of(label)), str(ROOT / "bench" / "peers" / script), str(folder)]
        command += ["--dtype", dtype, "--batch", str(batch), "--max-len", str(MAX_LEN), "--threads", str(threads)]
        command += ["--variant", variant] if variant else []
        env = {**os.environ, "OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1", **(ASLEEP if busy else {})}
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=env
        )
        running = cls(label, process, {})
        running.about = running._answer()
        return running

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(
                f"{self.label}: ended with code {self.process.wait()}; start its script by hand to see why"
            )
        return dict(json.loads(line))

    def round(self, prompts: list[list[int]]) -> dict[str, Any]:
        assert self.process.stdin is not None
        print(json.dumps({"prompts": prompts, "new": NEW}), file=self.process.stdin, flush=True)
        self.rounds.append(self._answer())
        return self.rounds[-1]

    def stop(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()

    def rate(self, batch: int, clock: str, tokens: int = NEW) -> float:
        return statistics.median(batch * tokens / each[clock] for each in self.rounds)


def prompts_of(batch: int) -> list[list[int]]:
    import random

    generator = random.Random(0)
    return [[generator.randrange(32_768) for _ in range(PROMPT)] for _ in range(batch)]


def setting(folder: Path, peers: list[str], dtype: str, batch: int, args: argparse.Namespace) -> list[dict[str, Any]]:
    """All rounds of one dtype and batch; one row a peer."""
    running = [Running.start(peer, folder, dtype, batch, args.threads, args.busy) for peer in peers]
    prompts = prompts_of(batch)
    for turn in range(args.rounds + 1):  # the first is not counted
        for each in running:
            result = each.round(prompts)
            shown = {k: v for k, v in result.items() if k != "tokens"}
            line = {"peer": each.label, "dtype": dtype, "batch": batch, "threads": args.threads, "round": turn, **shown}
            print(json.dumps({**line, "load": os.getloadavg()[0]}), flush=True)
    rows = []
    first, clock = running[0].rounds[0]["tokens"], "main_s" if args.busy else "s"
    for each in running:
        agree = agreement(each.rounds[0]["tokens"], first)
        each.rounds = each.rounds[1:]
        if dtype == "fp32" and agree < 0.9:
            raise SystemExit(f"{each.label}: {agree:.0%} of the tokens are those of {running[0].label}")
        rows.append({
            "peer": each.label, "dtype": dtype, "batch": batch, "threads": args.threads,
            "tokens_per_s": each.rate(batch, f"decode_{clock}"),
            "prefill_tokens_per_s": each.rate(batch, f"prefill_{clock}", PROMPT), "agreement": agree,
            "about": each.about,
        })  # fmt: skip
        each.stop()
    return rows


def agreement(got: list[list[int]], want: list[list[int]]) -> float:
    """The share of rows' first 16 tokens that are equal; a rounding at a tie sends a row another way for good."""
    pairs = [(a, b) for g, w in zip(got[:16], want[:16], strict=True) for a, b in zip(g, w, strict=True)]
    return sum(a == b for a, b in pairs) / len(pairs)


def table_of(rows: list[dict[str, Any]]) -> str:
    """Tokens a second, and assay over each peer."""
    out = ["| | " + " | ".join(f"batch {b} {d}" for d, b in _settings(rows)) + " |"]
    out.append("|---" * (len(_settings(rows)) + 1) + "|")
    for peer in dict.fromkeys(row["peer"] for row in rows):
        cells = []
        for dtype, batch in _settings(rows):
            found = {r["peer"]: r for r in rows if (r["dtype"], r["batch"]) == (dtype, batch)}
            if peer not in found:
                cells.append("")
                continue
            row, own = found[peer], found.get("assay")
            cell = f"{row['tokens_per_s']:.0f}"
            if own is not None and peer != "assay":
                cell += f" ({own['tokens_per_s'] / row['tokens_per_s']:.2f}x)"
            cells.append(cell)
        out.append(f"| {peer} | " + " | ".join(cells) + " |")
    return "\n".join(out)


def _settings(rows: list[dict[str, Any]]) -> list[tuple[str, int]]:
    return list(dict.fromkeys((row["dtype"], row["batch"]) for row in rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--busy", action="store_true", help="rates by the calling thread's CPU time")
    parser.add_argument("--peers", default="all", help="labels by their first word, comma-separated")
    parser.add_argument("--settings", default="1-fp32,1-bf16,8-fp32,8-bf16", help="batch-dtype, comma-separated")
    args = parser.parse_args()
    words = args.peers.split(",")
    peers = [p for p in PEERS if args.peers == "all" or p.split(",")[0].strip() in words]
    missing = [p for p in peers if not python_of(p).exists()]
    if missing:
        raise SystemExit(f"no environment for {', '.join(missing)}: run `make bench-decode`, or name --peers")
    rows = []
    with tempfile.TemporaryDirectory() as place:
        folder = written(Path(place) / "shape-b")
        for each in args.settings.split(","):
            batch, dtype = each.split("-")
            rows += setting(folder, peers, dtype, int(batch), args)
    for row in rows:
        print(json.dumps(row))
    machine = f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, {args.threads} threads"
    clock = "CPU time of the calling thread" if args.busy else "wall time"
    print(f"\n{machine}, {time.strftime('%Y-%m-%d')}, {clock}: tokens/s, and assay's over the peer's\n")
    print(table_of(rows))


if __name__ == "__main__":
    main()
