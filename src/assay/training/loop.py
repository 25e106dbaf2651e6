"""The training loop."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from assay.model import Decoder, UnsupportedBackend, build
from assay.recipe.errors import Problem
from assay.training import checkpoint as ckpt
from assay.training import disk
from assay.training.config import InitFrom, RunConfig, RunError
from assay.training.data import Corpus, open_data
from assay.training.data.batches import batch
from assay.training.data.check import data_problems
from assay.training.ema import Ema
from assay.training.environment import environment, provenance
from assay.training.evaluate import Evaluation, evaluate
from assay.training.folder import DiskError, FolderError, Metrics, finite, locked, write_json
from assay.training.loss import accumulate_gradients
from assay.training.numerics import apply
from assay.training.optim.groups import Group, optimizer_groups, set_rates
from assay.training.qk_clip import HeadPeaks, clip_heads
from assay.training.record import MANIFEST, METRICS, RECORD, RunRecord, load_record
from assay.training.samples import SAMPLES, Sampler, Writer
from assay.training.sinks import Sinks, check_installed
from assay.training.speed import ceiling_of, train_flops
from assay.training.start import Start
from assay.training.summary import groups_summary, summary, timing
from assay.training.telemetry import LayerWatch
from assay.training.watch import Pace, Watch

OnStep = Callable[[dict[str, Any]], None]


def train(
    config: RunConfig,
    folder: str | Path,
    *,
    resume: bool = True,
    corpus: Corpus | None = None,
    start: Start | None = None,
    sampler: Sampler | None = None,
    on_step: OnStep | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> RunRecord:
    """Train a run to its end in ``folder``, or on from where it stopped; a finished run is returned as it is.

    Args:
        resume: continue from the newest sound checkpoint; otherwise start over.
        corpus: an open corpus, to share between runs.
        start: weights to begin from; their digest becomes part of the run's identity.
        sampler: writes the texts that ``config.samples`` asks for; without it there are none.
        on_step: called with the metrics row of each update, and ``warnings``: what there is to say, in words.
        should_stop: asked after each update; True saves a checkpoint and returns an ``interrupted`` record.

    Raises:
        RunError: the configuration and the corpus, the weights or the machine do not fit.
        FolderError: the folder holds another run, is in use, or is damaged.
        DiskError, SaveError: the folder could not be written; the last good state is kept.
    """
    folder = Path(folder)
    corpus = corpus or open_data(config.data)
    if start is not None:
        config = config.changed(init_from=start.spec)
        start.check(build(config.built, device="meta"))
    check_fits(config, corpus)
    digest = config.digest(corpus.sha256)
    try:
        with locked(folder):
            _claim(folder, config, digest, corpus)
            if not resume:
                _start_over(folder)
            elif (folder / RECORD).exists():
                record = load_record(folder)
                if record.status != "interrupted":
                    return record
                (folder / RECORD).unlink()  # it says how far the run was, and the run goes on
            run = _Run.start(config, folder, digest, corpus, start, sampler)
            try:
                return run.go(on_step, should_stop)
            finally:
                run.sinks.close()
    except OSError as error:
        place = error.filename if isinstance(error.filename, str) else folder
        message = f"{place}: cannot be written: {disk.said(error)}; the last good state is kept"
        raise DiskError(f"{message}, the same command goes on from it") from error


def _start_over(folder: Path) -> None:
    """Take away what an earlier try left; a kill between leaves a run that resumes."""
    (folder / RECORD).unlink(missing_ok=True)
    for old in ckpt.checkpoints(folder / "checkpoints"):
        disk.discard(old)
    for name in (METRICS, SAMPLES):
        (folder / name).unlink(missing_ok=True)


def check_fits(config: RunConfig, corpus: Corpus) -> None:
    """Refuse, before the first update, what could only fail later; raises RunError."""
    samples = config.batches.samples(config.steps)
    problems = data_problems(config.data, corpus, config.recipe, config.seq_len, config.batch_size, samples)
    fault = _device_fault(config.numerics.device)
    if fault is not None:
        problems.append(Problem("numerics.device", fault, config.numerics.device, "cpu", "", True))
    if problems:
        raise RunError(problems, "run")
    check_installed(config.log)


def _device_fault(device: str) -> str | None:
    """Why nothing can be computed there. CUDA is asked without being started: its settings come later."""
    try:
        found = torch.device(device)
        if found.type != "cuda":
            torch.zeros(1, device=found).item()
            return None
    except (RuntimeError, AssertionError) as error:
        return f"nothing can be computed there: {str(error).splitlines()[0]}"
    n = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return None if (found.index or 0) < n else f"only {n} CUDA devices here" if n else "no CUDA device here"


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
    if corpus.tokenizer_file is not None:
        (folder / "tokenizer.json").write_bytes(corpus.tokenizer_file.read_bytes())  # again, should the manifest lack
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
    watch: Watch
    groups: tuple[Group, ...]
    ema: Ema | None = None
    step: int = 0
    carried_cpu: float = 0.0
    best: tuple[float, int] = (math.inf, 0)
    warnings: list[str] = field(default_factory=list)
    late: list[str] = field(default_factory=list)  # told with the next row
    pace: Pace = field(default_factory=Pace)
    slow: list[str] = field(default_factory=list)
    began: float = field(default_factory=time.process_time)
    sinks: Sinks = field(init=False)
    writer: Writer = field(init=False)

    @classmethod
    def start(
        cls, config: RunConfig, folder: Path, digest: str, corpus: Corpus, start: Start | None, sampler: Sampler | None
    ) -> _Run:
        apply(config.numerics)
        device = torch.device(config.numerics.device)
        try:
            decoder = build(config.built, config.seed, device, torch.float32, config.numerics.attention)
        except UnsupportedBackend as error:
            raise RunError([Problem("numerics.attention", str(error))], "run") from None
        if start is not None:
            start.fill(decoder)
        groups = optimizer_groups(decoder, config.optimizer, config.recipe, config.parametrization)
        optimizer = config.optimizer.make(groups, config.lr_at(1))
        ema = None if config.ema == "none" else Ema(decoder, config.ema)
        torch.manual_seed(config.seed)  # dropout; weights have their own streams
        watch = Watch(corpus.unigram_entropy)
        run = cls(config, folder, digest, corpus, decoder, optimizer, Metrics(folder / METRICS), watch, groups, ema)
        found, run.late = ckpt.latest(folder / "checkpoints")
        if found is not None:
            run._restore(ckpt.load_checkpoint(found, checked=True))
        elif start is None and isinstance(config.init_from, InitFrom):
            problem = Problem("init_from", "its weights were not given", config.init_from.source, "", "", True)
            raise RunError([problem], "run")
        elif run.late:
            run.late.append("no sound checkpoint was left: the run began again")
        run.metrics.resume(run.step)
        for row in run.metrics.rows:
            run.warnings += watch.feed(row)
        run.sinks = Sinks(folder, config, digest, run.step)
        run.writer = Writer(config, folder, sampler, run.step)
        if config.numerics.compile:
            for block in decoder.layers:
                block.compile()
        return run

    def _restore(self, saved: ckpt.Checkpoint) -> None:
        Start(saved.weights, str(saved.folder)).fill(self.decoder, "checkpoint")
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
            better = False
            if sound and (last or (config.eval_every and self.step % config.eval_every == 0)):
                better = self._evaluate(row)
            self._tell(row, on_step)
            if not sound:
                return self._finish("nonfinite")
            if should_stop is not None and not last and should_stop():
                self._save()
                return self._finish("interrupted")
            due = bool(config.checkpoint_every) and self.step % config.checkpoint_every == 0
            if (due or config.keep.due(self.step, better)) and not last:
                self._save(or_go_on=True)
        if config.keep.kind_name == "nothing":
            record = self._finish("finished")
            for old in ckpt.checkpoints(self.folder / "checkpoints"):
                disk.discard(old)
            return record
        self._save()
        return self._finish("finished")

    def _tell(self, row: dict[str, Any], on_step: OnStep | None) -> None:
        """The row on disk first, then what it says, to whoever listens."""
        self.metrics.add(row)
        row = finite(row)
        new, slow = [*self.late, *self.watch.feed(row)], self.pace.feed(row)
        self.late = []
        self.sinks.log(row)
        if self.writer.due(self.step):
            rows, problem = self.writer.write(self.step, self.decoder)
            new += [] if problem is None else [problem]
            for i, sample in enumerate(rows):
                self.sinks.text(f"sample/{i}", sample["prompt"] + sample["text"], self.step)
        new += self.sinks.failed
        self.sinks.failed = []
        self.warnings += new
        self.slow += slow
        if on_step is not None:
            on_step({**row, "warnings": [*new, *slow]})

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

    def _evaluate(self, row: dict[str, Any]) -> bool:
        """Put what validation says into the row; True where it is better than ever."""
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
        better = found.loss < self.best[0]
        if better:
            self.best = (found.loss, self.step)
        return better

    def _save(self, *, or_go_on: bool = False) -> None:
        """Write a checkpoint, then remove what the run's rule does not keep.

        ``or_go_on``: where it cannot be written the run goes on, with a warning; the checkpoints before are kept.
        """
        self.metrics.flush()
        state = {"cpu_seconds": self._cpu_seconds(), "best": [finite(self.best[0]), self.best[1]]}
        root = self.folder / "checkpoints"
        ema = None if self.ema is None else self.ema.mean
        try:
            ckpt.save_checkpoint(root, self.step, self.decoder, self.optimizer, state, ema)
        except ckpt.SaveError as error:
            if not or_go_on:
                raise
            self.late.append(f"step {self.step}: {error}; training goes on")
            return
        ckpt.retain(root, self.config.keep, self.best[1], self.step)

    def _cpu_seconds(self) -> float:
        return self.carried_cpu + time.process_time() - self.began

    def _finish(self, status: str) -> RunRecord:
        rows = self.metrics.rows
        self.metrics.flush()
        final = summary(rows, sum(p.numel() for p in self.decoder.parameters()), self.best)
        final["groups"] = groups_summary(self.groups)
        final["timing"] = timing(rows, self._cpu_seconds())
        final["timing"].update(self._usage(final["timing"]["tokens_per_s"]))
        if self.warnings or self.late:
            final["warnings"] = [*self.warnings, *self.late]
        write_json(self.folder / RECORD, {"digest": self.digest, "status": status, "final": final})
        return load_record(self.folder)

    def _usage(self, tokens_per_s: float | None) -> dict[str, Any]:
        """MFU where the device's peak is known; and when updates became slow."""
        out: dict[str, Any] = {"warnings": self.slow} if self.slow else {}
        ceiling = ceiling_of(self.config)
        work = None if ceiling is None else train_flops(self.config)
        if ceiling is not None and work is not None and tokens_per_s is not None:
            out |= {"mfu": tokens_per_s * work / ceiling.flops, "mfu_of": ceiling.name}
        return out
