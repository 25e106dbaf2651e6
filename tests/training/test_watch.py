"""What a run says in words, whom else it tells, and its rows as a frame."""

# ruff: noqa: F811 - fixtures of another file

from __future__ import annotations

import importlib.util
import json
import random
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from assay.training import RunConfig, RunError, RunRecord, load_record, read_metrics, train
from assay.training.sinks import KINDS, Sinks, flat
from assay.training.speed import ceiling_of, hardware_of, measured_ceiling, train_flops
from assay.training.watch import Pace, Watch
from tests.training.test_run import config_for, own_cache, text  # noqa: F401 - fixtures


def rows(losses: list[float], norms: list[float] | None = None, **more: Any) -> list[dict[str, Any]]:
    norms = norms or [1.0] * len(losses)
    return [
        {"step": i, "loss": x, "grad_norm": g, **more} for i, (x, g) in enumerate(zip(losses, norms, strict=True), 1)
    ]


def said(given: list[dict[str, Any]], entropy: float | None = None) -> list[str]:
    watch = Watch(entropy)
    return [text for row in given for text in watch.feed(row)]


def falling(n: int, seed: int = 0, noise: float = 0.03) -> list[float]:
    draw = random.Random(seed)
    return [2.0 + 3.5 * 0.98**i + draw.gauss(0, noise) for i in range(n)]


@pytest.mark.parametrize("seed", range(5))
def test_a_healthy_run_says_nothing(seed: int) -> None:
    draw = random.Random(seed)
    norms = [1.0 + abs(draw.gauss(0, 0.4)) for _ in range(600)]
    assert said(rows(falling(600, seed), norms, max_logit=[12.0, None]), 3.2) == []


def test_a_spike_is_said_once_with_its_step() -> None:
    losses = falling(300)
    losses[200:205] = [4.5, 4.4, 4.2, 3.9, 3.0]
    found = said(rows(losses))
    assert len(found) == 1 and found[0].startswith("step 201: loss spike: 4.500, the median")
    losses[280] = 5.0
    assert [each.split(":")[0] for each in said(rows(losses))] == ["step 201", "step 281"]


def test_a_gradient_norm_that_grows() -> None:
    norms = [3.0] * 40 + [0.5] * 200 + [0.5 * 1.02**i for i in range(200)]
    found = said(rows(falling(440), norms))
    assert len(found) == 1 and "gradient norm growing" in found[0] and "0.5 at its calmest" in found[0]
    assert said(rows(falling(300), [0.01 * 1.1**i for i in range(20)] + [0.06] * 280)) == []


def test_attention_logits_at_each_limit_once() -> None:
    given = rows(falling(30))
    for i, row in enumerate(given):
        row["max_logit"] = [10.0, None, 10.0 * 2.0**i]
    found = said(given)
    assert [each.split(":")[0] for each in found] == ["step 8", "step 11"]
    assert "above 1,000: 1,280 in layer 2" in found[0] and "above 10,000" in found[1]


def test_learning_nothing_is_said_at_h_and_not_before_its_time() -> None:
    draw = random.Random(0)
    flat_ = [3.2 + draw.gauss(0, 0.02) for _ in range(400)]
    found = said(rows(flat_), 3.2)
    assert len(found) == 1 and found[0].startswith("step 200: learning nothing") and "is 3.200" in found[0]
    assert said(rows(flat_[:199]), 3.2) == [] and said(rows(flat_), 3.4) == [] and said(rows(flat_), None) == []


def test_a_loss_that_is_not_finite() -> None:
    assert said(rows([2.0, float("nan")])) == ["step 2: the loss is not a finite number; the run ends"]
    assert "gradient" in said([{"step": 1, "loss": 2.0, "grad_norm": None}])[0]


def test_a_drop_in_speed_is_said_once_and_again_after_it_came_back() -> None:
    pace, found = Pace(), []
    for step, rate in enumerate([1000.0] * 100 + [400.0] * 60 + [1000.0] * 60 + [300.0] * 40, 1):
        found += pace.feed({"step": step, "tokens_per_s": rate})
    assert len(found) == 2 and found[0] == "step 120: tokens a second dropped to 400, before it was 1,000"


def test_warnings_are_in_the_record_and_the_same_after_a_stop(text: Path, tmp_path: Path) -> None:
    """A rate that is far too high; stopped in the middle, all the same is said."""
    schedule = {"kind": "constant", "lr": 0.5}
    config = config_for(text, steps=70, schedule=schedule, clip="none", eval_every=0)
    told: list[str] = []
    straight = train(config, tmp_path / "straight", on_step=lambda row: told.extend(row["warnings"]))
    warnings = straight.final["warnings"]
    assert warnings and set(warnings) <= set(told)
    train(config, tmp_path / "r", should_stop=lambda: True)
    stop = iter(range(1000))
    train(config, tmp_path / "r", should_stop=lambda: next(stop) == 40)
    assert train(config, tmp_path / "r").final["warnings"] == warnings
    assert all("warnings" not in row for row in straight.rows)


# others who are told


def test_only_numbers_go_to_sinks_each_under_a_name() -> None:
    row = {"loss": 1.0, "residual_rms": [1.0, 2.0], "max_logit": [None, 3.0], "by": {"a": 4}, "t": True, "none": None}
    assert dict(flat(row.items())) == {
        "loss": 1.0, "residual_rms/0": 1.0, "residual_rms/1": 2.0, "max_logit/1": 3.0, "by/a": 4.0
    }  # fmt: skip


class Fake(types.ModuleType):
    """What wandb and trackio have, as far as it is called; remembers it."""

    def __init__(self, name: str, fails_at: int = 10**9) -> None:
        super().__init__(name)
        self.calls: list[tuple[str, Any]] = []
        self.fails_at = fails_at

    def init(self, **settings: Any) -> Fake:
        print("a service that talks")
        self.calls.append(("init", settings))
        return self

    def log(self, numbers: dict[str, Any], step: int) -> None:
        if step >= self.fails_at:
            raise ConnectionError("the service is down\nfor good")
        self.calls.append(("log", (step, numbers)))

    def finish(self) -> None:
        self.calls.append(("finish", None))


@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_a_service_is_told_every_row_and_goes_on_after_a_stop(
    name: str, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake = Fake(name)
    monkeypatch.setitem(sys.modules, name, fake)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    plain = config_for(text, steps=6)
    config = plain.changed(log=(name,))
    assert plain.digest("x") == config.digest("x")
    count = iter(range(9))
    train(config, tmp_path / "r", should_stop=lambda: next(count) >= 2)
    train(config, tmp_path / "r")
    steps = [call[1][0] for call in fake.calls if call[0] == "log"]
    assert steps == [1, 2, 3, 4, 5, 6]
    begun = [call[1] for call in fake.calls if call[0] == "init"]
    assert len(begun) == 2 and begun[0] == begun[1] and begun[0]["resume"] == "allow"
    assert name != "wandb" or begun[0]["mode"] == "offline"
    assert json.dumps(begun[0]["config"])
    assert fake.calls[-1] == ("finish", None)
    said = capsys.readouterr()
    assert not said.out and "a service that talks" in said.err
    logged = dict(call[1] for call in fake.calls if call[0] == "log")
    assert logged[1]["loss"] == read_metrics(tmp_path / "r" / "metrics.jsonl")[0]["loss"]
    assert {"residual_rms/0", "max_logit/1"} <= logged[1].keys()


def test_a_service_that_fails_is_left_out_and_the_run_ends_well(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", Fake("wandb", fails_at=3))
    record = train(config_for(text, steps=6, log=["wandb"]), tmp_path / "r")
    assert record.status == "finished"
    assert record.final["warnings"] == ["wandb: could not log and is left out: ConnectionError: the service is down"]


def test_a_sink_that_is_not_installed_is_named_with_its_extra(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in KINDS:
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, "torch.utils.tensorboard" if name == "tensorboard" else name, None)
            with pytest.raises(RunError, match=rf"log: {name} is not installed[^¤]*assay-lm\[track\]"):
                train(config_for(text, log=[name]), tmp_path / "r")
    assert not (tmp_path / "r").exists()
    with pytest.raises(RunError, match="log"):
        config_for(text, log=["tensorbord"])


@pytest.mark.skipif(importlib.util.find_spec("tensorboard") is None, reason="tensorboard is not installed")
def test_tensorboards_own_reader_finds_every_number(text: Path, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    config = config_for(text, steps=5, log=["tensorboard"])
    count = iter(range(9))
    train(config, tmp_path / "r", should_stop=lambda: next(count) >= 2)
    record = train(config, tmp_path / "r")
    found = EventAccumulator(str(tmp_path / "r" / "tensorboard"))
    found.Reload()
    assert {"loss", "lr", "grad_norm", "tokens_per_s", "residual_rms/1"} <= set(found.Tags()["scalars"])
    events = found.Scalars("loss")
    assert [e.step for e in events] == [1, 2, 3, 4, 5]
    assert [e.value for e in events] == pytest.approx([row["loss"] for row in record.rows], rel=1e-6)
    train(config, tmp_path / "r", resume=False)
    again = EventAccumulator(str(tmp_path / "r" / "tensorboard"))
    again.Reload()
    assert [e.step for e in again.Scalars("loss")] == [1, 2, 3, 4, 5]  # those of before are hidden


def test_a_sink_that_does_not_open_is_told_of(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = Fake("trackio")
    broken.init = lambda **_: 1 / 0  # type: ignore[method-assign]
    monkeypatch.setitem(sys.modules, "trackio", broken)
    sinks = Sinks(tmp_path, config_for(text, log=["trackio"]), "d", 0)
    assert not sinks.open and "trackio: could not open" in sinks.failed[0]


# frames


def record_of(rows_: list[dict[str, Any]], config: RunConfig, folder: Path) -> RunRecord:
    return RunRecord(folder, "d", config, "finished", {}, rows_)


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_the_rows_as_a_frame(library: str, text: Path, tmp_path: Path) -> None:
    pytest.importorskip(library, reason=f"{library} is not installed")
    record = train(config_for(text, steps=6), tmp_path / "r")
    frame = load_record(tmp_path / "r").frame(library)  # type: ignore[arg-type]
    assert type(frame).__module__.split(".")[0] == library
    assert len(frame) == 6 and list(frame["step"]) == [1, 2, 3, 4, 5, 6]
    assert list(frame["loss"]) == [row["loss"] for row in record.rows]
    held = frame.dropna(subset=["val_loss"]) if library == "pandas" else frame.filter(frame["val_loss"].is_not_null())
    assert list(held["step"]) == [5, 6]


def test_a_frame_takes_whichever_is_there(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Frame(dict[str, list[Any]]):
        pass

    config = config_for(text)
    given = [{"step": 1, "loss": 2.0, "parts": {"a": 1.0}}, {"step": 2, "loss": 1.5, "val_loss": 1.6}]
    record = record_of(given, config, tmp_path)
    assert record.rows is record.metrics
    monkeypatch.setitem(sys.modules, "pandas", None)
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(ImportError, match="pandas or polars: pip install pandas"):
        record.frame()
    fake = types.ModuleType("polars")
    fake.DataFrame = lambda table, strict: Frame(table)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "polars", fake)
    assert record.frame() == {"step": [1, 2], "loss": [2.0, 1.5], "parts.a": [1.0, None], "val_loss": [None, 1.6]}
    with pytest.raises(ImportError, match="needs pandas"):
        record.frame("pandas")


# speed


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("NVIDIA H200", "h200-sxm"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA H100 NVL", "h100-nvl"),
        ("NVIDIA A100-SXM4-80GB", "a100-80gb"),
        ("NVIDIA A100-PCIE-40GB", "a100-40gb"),
        ("Tesla V100-SXM2-16GB", "v100"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("AMD Instinct MI300X", "mi300x"),
        ("NVIDIA GeForce GTX 1080", None),
        ("Some CPU", None),
    ],
)
def test_a_device_is_found_by_its_own_name(name: str, known: str | None) -> None:
    found = hardware_of(name)
    assert (None if found is None else found.name) == known


def test_the_flops_are_the_budgets_and_a_ceiling_is_measured(text: Path) -> None:
    from assay.cost import budget

    config = config_for(text)
    assert train_flops(config) == budget(config.recipe, batch=1, seq_len=32).flops.train_per_token
    ceiling = measured_ceiling(config, size=128, seconds=0.0)
    assert ceiling.flops > 1e6 and "measured here" in ceiling.name


@pytest.mark.parametrize(
    ("precision", "tf32", "tflops"), [("bf16", "highest", 989.4), ("fp32", "highest", 66.9), ("fp32", "high", 494.7)]
)
def test_the_peak_is_that_of_the_precision(
    precision: str, tf32: str, tflops: float, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    config = config_for(text, precision=precision, numerics={"device": "cuda"})
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H200")
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: tf32)
    ceiling = ceiling_of(config)
    assert ceiling is not None and ceiling.flops == pytest.approx(tflops * 1e12)
    assert ceiling.name.startswith("h200-sxm") and f"{tflops:g} TFLOP/s" in ceiling.name
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "A device of tomorrow")
    assert ceiling_of(config) is None
    assert ceiling_of(config_for(text)) is None
