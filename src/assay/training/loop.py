"""The training loop."""

from __future__ import annotations

import math
import resource
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from assay.model import Decoder, UnsupportedBackend, build
from assay.recipe.errors import Problem
from assay.training import checkpoint as ckpt
from assay.training.config import RunConfig, RunError
from assay.training.data import Corpus, open_data
from assay.training.data.batches import batch
from assay.training.data.check import data_problems
from assay.training.ema import Ema
from assay.training.environment import environment, provenance
from assay.training.evaluate import Evaluation, evaluate
from assay.training.folder import FolderError, Metrics, finite, locked, write_json
from assay.training.loss import accumulate_gradients
from assay.training.numerics import apply
from assay.training.optim.groups import optimizer_groups, set_rates
from assay.training.qk_clip import HeadPeaks, clip_heads
from assay.training.record import MANIFEST, METRICS, RECORD, RunRecord, load_record
from assay.training.telemetry import LayerWatch

OnStep = Callable[[dict[str, Any]], None]


def train(
    config: RunConfig,
    folder: str | Path,
    *,
    resume: bool = True,
    corpus: Corpus | None = None,
    on_step: OnStep | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> RunRecord:
    """Train a run to its end in ``folder``, or on from where it stopped; a finished run is returned as it is.

    Args:
        resume: continue from the newest sound checkpoint; otherwise start over.
        corpus: an open corpus, to share between runs.
        on_step: called with the metrics row of each update.
        should_stop: asked after each update; True saves a checkpoint and returns an ``interrupted`` record.

    Raises:
        RunError: the configuration and the corpus or the machine do not fit.
        FolderError: the folder holds another run, is in use, or is damaged.
    """
    folder = Path(folder)
    corpus = corpus or open_data(config.data)
    check_fits(config, corpus)
    digest = config.digest(corpus.sha256)
    with locked(folder):
        _claim(folder, config, digest, corpus)
        if resume and (folder / RECORD).exists():
            record = load_record(folder)
            if record.status != "interrupted":
                return record
        run = _Run.start(config, folder, digest, corpus, resume)
        return run.go(on_step, should_stop)


def check_fits(config: RunConfig, corpus: Corpus) -> None:
    """Refuse, before the first update, what could only fail later; raises RunError."""
    samples = config.batches.samples(config.steps)
    problems = data_problems(config.data, corpus, config.recipe, config.seq_len, config.batch_size, samples)
    device = config.numerics.device
    if device.startswith("cuda") and not torch.cuda.is_available():
        problems.append(Problem("numerics.device", "no CUDA device here", device, "cpu", "", True))
    if problems:
        raise RunError(problems, "run")


def _claim(folder: Path, config: RunConfig, digest: str, corpus: Corpus) -> None:
    """Write the manifest of a new folder, or check that it is this run's."""
    import json

    path = folder / MANIFEST
    if path.exists():
        try:
            found = json.loads(path.read_text(encoding="utf-8"))["digest"]
        except (OSError, ValueError, KeyError, TypeError):
            raise FolderError(f"{path}: damaged; remove the folder or choose another") from None
        if found != digest:
            raise FolderError(f"{folder}: holds another run ({found[:12]}, this one is {digest[:12]}); choose another")
        return
    manifest = {
        "digest": digest,
        "recipe_digest": config.recipe.digest,
        "config": config.to_dict(),
        "corpus": corpus.describe(),
        "environment": {**environment(config.numerics.device, config.numerics.threads), **provenance()},
    }
    write_json(path, manifest)
    (folder / "recipe.toml").write_text(config.built.to_toml(), encoding="utf-8")


@dataclass
class _Run:
    """A run in progress."""

    config: RunConfig
    folder: Path
    digest: str
    corpus: Corpus
    decoder: Decoder
    optimizer: torch.optim.Optimizer
    metrics: Metrics
    ema: Ema | None = None
    step: int = 0
    carried_cpu: float = 0.0
    best: tuple[float, int] = (math.inf, 0)
    warnings: list[str] = field(default_factory=list)
    began: float = field(default_factory=time.process_time)

    @classmethod
    def start(cls, config: RunConfig, folder: Path, digest: str, corpus: Corpus, resume: bool) -> _Run:
        apply(config.numerics)
        device = torch.device(config.numerics.device)
        try:
            decoder = build(config.built, config.seed, device, torch.float32, config.numerics.attention)
        except UnsupportedBackend as error:
            raise RunError([Problem("numerics.attention", str(error))], "run") from None
        groups = optimizer_groups(decoder, config.optimizer, config.recipe, config.parametrization)
        optimizer = config.optimizer.make(groups, config.lr_at(1))
        ema = None if config.ema == "none" else Ema(decoder, config.ema)
        torch.manual_seed(config.seed)  # dropout; weights have their own streams
        run = cls(config, folder, digest, corpus, decoder, optimizer, Metrics(folder / METRICS), ema)
        found, problems = ckpt.latest(folder / "checkpoints") if resume else (None, [])
        run.warnings = problems
        if found is not None:
            run._restore(ckpt.load_checkpoint(found))
        run.metrics.resume(run.step)
        if config.numerics.compile:
            for block in decoder.layers:
                block.compile()
        return run

    def _restore(self, saved: ckpt.Checkpoint) -> None:
        with torch.no_grad():
            for name, param in self.decoder.named_parameters():
                param.copy_(saved.weights[name])
        ckpt.restore_optimizer(self.decoder, self.optimizer, saved.optimizer)
        ckpt.restore_rng(saved.rng)
        if self.ema is not None:
            self.ema.restore(saved.ema)
        self.step = saved.step
        self.carried_cpu = float(saved.state["cpu_seconds"])
        best = saved.state["best"]
        self.best = (math.inf if best[0] is None else float(best[0]), int(best[1]))

    def go(self, on_step: OnStep | None, should_stop: Callable[[], bool] | None) -> RunRecord:
        config = self.config
        self.decoder.train()
        while self.step < config.steps:
            row = self._update()
            last = self.step == config.steps
            sound = math.isfinite(row["loss"]) and math.isfinite(row["grad_norm"])
            if sound and (last or (config.eval_every and self.step % config.eval_every == 0)):
                self._evaluate(row)
            self.metrics.add(row)
            if on_step is not None:
                on_step(finite(row))
            if not sound:
                return self._finish("nonfinite")
            stop = should_stop is not None and not last and should_stop()
            if stop or (config.checkpoint_every and self.step % config.checkpoint_every == 0 and not last):
                self._save()
            if stop:
                return self._finish("interrupted")
        if config.keep != "nothing":
            self._save()
        return self._finish("finished")

    def _update(self) -> dict[str, Any]:
        config, optimizer = self.config, self.optimizer
        step = self.step + 1
        wall, cpu = time.perf_counter(), time.process_time()
        device = torch.device(config.numerics.device)
        own = config.batches.of(step)
        given = batch(self.corpus, own.first, own.size, config.seq_len, config.data_seed, config.data.packing)
        micro = given.to(device).split(config.batch_size // config.accumulate)
        every = config.telemetry_every
        watch = LayerWatch(config.recipe.n_layers) if every and (step % every == 0 or step == 1) else None
        heads = None if config.optimizer.qk_clip == "none" else HeadPeaks()
        loss = accumulate_gradients(
            self.decoder, micro, z_loss=config.z_loss, precision=config.precision, probe=watch, watch=heads
        )
        limit = math.inf if config.clip == "none" else config.clip
        norm = torch.nn.utils.clip_grad_norm_(self.decoder.parameters(), limit)
        lr = config.lr_at(step)
        clipped = self._descend(lr, heads) if math.isfinite(norm) else None  # else nothing moves
        optimizer.zero_grad(set_to_none=True)
        self.step = step
        row: dict[str, Any] = {
            "step": step,
            "loss": float(loss.nats),
            "lr": lr,
            "grad_norm": float(norm),
            "log_z": float(loss.log_z),
        }
        if config.z_loss:
            row["z_loss"] = config.z_loss * float(loss.z_squared)
        if config.ramp.kind_name != "none":
            row["batch_size"] = own.size
        if clipped is not None:
            row["heads_clipped"] = clipped
        if watch is not None:
            row.update(watch.row())
        spent = time.process_time() - cpu if device.type == "cpu" else time.perf_counter() - wall
        row["tokens_per_s"] = given.ids.numel() / max(time.perf_counter() - wall, 1e-9)
        row["step_ms"] = 1e3 * spent
        return row

    def _descend(self, lr: float, heads: HeadPeaks | None) -> int | None:
        """Move the weights, then what follows them; returns how many heads were clipped."""
        config = self.config
        set_rates(self.optimizer, lr, config.schedule.peak, config.optimizer.decay_by)
        self.optimizer.step()
        clipped = None
        if heads is not None and config.optimizer.qk_clip != "none":
            clipped = clip_heads(self.decoder, heads.peaks, config.optimizer.qk_clip)
        if self.ema is not None:
            self.ema.update()
        return clipped

    def _evaluate(self, row: dict[str, Any]) -> None:
        config = self.config
        packing, precision = config.data.packing, config.precision
        found: Evaluation = evaluate(self.decoder, self.corpus, config.seq_len, packing=packing, precision=precision)
        row["val_loss"], row["val_stderr"] = found.loss, found.stderr
        row["val_bits_per_byte"] = found.bits_per_byte
        if found.by_part:
            row["val_loss_by_part"] = found.by_part
        if self.ema is not None:
            with self.ema.in_place():
                mean = evaluate(self.decoder, self.corpus, config.seq_len, packing=packing, precision=precision)
            row["ema_val_loss"] = mean.loss
        if found.loss < self.best[0]:
            self.best = (found.loss, self.step)
            if self.config.keep == "best_and_last" and self.step < self.config.steps:
                self._save()

    def _save(self) -> None:
        self.metrics.flush()
        state = {"cpu_seconds": self._cpu_seconds(), "best": [finite(self.best[0]), self.best[1]]}
        root = self.folder / "checkpoints"
        ema = None if self.ema is None else self.ema.mean
        ckpt.save_checkpoint(root, self.step, self.decoder, self.optimizer, state, ema)
        ckpt.retain(root, {self.best[1]} if self.config.keep == "best_and_last" else set())

    def _cpu_seconds(self) -> float:
        return self.carried_cpu + time.process_time() - self.began

    def _finish(self, status: str) -> RunRecord:
        rows = self.metrics.rows
        self.metrics.flush()
        final = summary(rows, self.decoder, self.best)
        final["timing"] = timing(rows, self._cpu_seconds())
        if self.warnings:
            final["warnings"] = self.warnings
        write_json(self.folder / RECORD, {"digest": self.digest, "status": status, "final": final})
        return load_record(self.folder)


def summary(rows: list[dict[str, Any]], decoder: Decoder, best: tuple[float, int]) -> dict[str, Any]:
    """The numbers of a run that depend on nothing but its configuration."""
    evals = [row for row in rows if "val_loss" in row]
    peaks = [m for row in rows for m in row.get("max_logit", []) if m is not None]
    norms = [row["grad_norm"] for row in rows if row["grad_norm"] is not None]
    last = evals[-1] if evals and evals[-1]["step"] == rows[-1]["step"] else {}
    return {
        "val_loss": last.get("val_loss"),
        "val_stderr": last.get("val_stderr"),
        "val_bits_per_byte": last.get("val_bits_per_byte"),
        **({"ema_val_loss": last["ema_val_loss"]} if "ema_val_loss" in last else {}),
        "best_val_loss": finite(best[0]),
        "best_step": best[1],
        "initial_loss": rows[0]["loss"] if rows else None,
        "steps_done": len(rows),
        "params": sum(p.numel() for p in decoder.parameters()),
        "max_logit": max(peaks, default=None),
        "grad_norm_max": max(norms, default=None),
    }


def timing(rows: list[dict[str, Any]], cpu_seconds: float) -> dict[str, Any]:
    """What the run cost here: CPU-seconds, and the median update with its quartiles (CPU time on a CPU, else wall)."""
    steps = [row["step_ms"] for row in rows[2:] or rows]  # the first updates warm caches
    quartiles = statistics.quantiles(steps, n=4) if len(steps) > 1 else [steps[0]] * 3 if steps else [math.nan] * 3
    rates = [row["tokens_per_s"] for row in rows]
    return {
        "cpu_seconds": cpu_seconds,
        "step_ms": {"median": quartiles[1], "q25": quartiles[0], "q75": quartiles[2]},
        "tokens_per_s": statistics.median(rates) if rates else None,
        "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
