"""What the page of one run says."""

from __future__ import annotations

from typing import Any

from assay.report.charts import Chart, Figure, Key
from assay.report.curves import Pairs, layer_charts, line_chart, smoothed, stages_of
from assay.report.numbers import NONE, count, finite, fixed, rate, significant
from assay.report.records import CLASS_WORDS, Arm, Record, class_of, loss_unit, record_of, records, series, text, texts
from assay.report.tables import Cell, Table, corpus_table, head, num, percent, settings_table

# a metric's key -> (its title, whether a wide range is drawn on a log scale)
METRICS = {
    "lr": ("Learning rate", False),
    "grad_norm": ("Gradient norm", True),
    "log_z": ("log Z of the logits", False),
    "tokens_per_s": ("Tokens per second", False),
    "max_logit": ("Largest attention logit of all layers", True),
    "batch_size": ("Sequences an update", False),
    "heads_clipped": ("Heads clipped", False),
}
STATUS_WORDS = {
    "finished": "finished",
    "interrupted": "interrupted",
    "nonfinite": "non-finite",
    "unfinished": "unfinished",
}


def run_context(record: Record) -> dict[str, Any]:
    """Everything that the template of a run reads."""
    run, metrics = record_of(record.get("run")), records(record, "metrics")
    figures = [*_curves(run, metrics, loss_unit(record)), *_layers(run)]
    klass = class_of(run)
    samples, older = _samples(record)
    return {
        "title": _title(run),
        "digest": text(run, "digest"),
        "folder": text(run, "folder"),
        "part": text(run, "part"),
        "klass": klass,
        "class_word": _ending(run) or CLASS_WORDS.get(klass, klass),
        "facts": _facts(run),
        "warnings": texts(record, "warnings"),
        "figures": figures,
        "samples": samples,
        "older_samples": older,
        "groups": _groups(run),
        "command": [texts(record, "command")] if texts(record, "command") else [],
        "corpus": corpus_table(record),
        "settings": settings_table(run.get("settings")),
        "environment": settings_table(record.get("environment")),
    }


def _title(run: Record) -> str:
    parts = [text(run, "label") or text(run, "arm") or "A run"]
    parts += [f"learning rate {rate(run.get('lr'))}"] if finite(run.get("lr")) is not None else []
    parts += [f"seed {text(run, 'seed')}"] if text(run, "seed") else []
    return ", ".join(parts)


def _ending(run: Record) -> str:
    """How the run ended, where the record says so; an interrupted one with how far it came."""
    word = STATUS_WORDS.get(text(run, "status"), "")
    done = finite(run.get("steps_done"))
    if word == "finished" or not word or done is None:
        return word
    return f"{word} after {count(done)} of {count(run.get('steps'))} updates"


def _samples(record: Record) -> tuple[list[Record], list[Record]]:
    """The texts of the last update that wrote any, and those of earlier ones, newest first."""
    found = [each for each in records(record, "samples") if text(each, "text") or text(each, "prompt")]
    named: list[Record] = [
        {"step": count(s.get("step")), "prompt": text(s, "prompt"), "text": text(s, "text")} for s in found
    ]
    last = [each for each in named if each["step"] == named[-1]["step"]] if named else []
    return last, [each for each in reversed(named) if each not in last]


def _groups(run: Record) -> Table | None:
    """The optimizer's groups, a row each."""
    columns = ["group", "roles", "rule", "tensors", "parameters", "decay", "lr ×"]
    rows = [
        [
            head(text(g, "name")),
            Cell(", ".join(texts(g, "roles"))),
            Cell(text(g, "rule")),
            num(count(g.get("tensors"))),
            num(count(g.get("params"))),
            num(significant(g.get("weight_decay"))),
            num(significant(g.get("lr_scale"))),
        ]
        for g in records(run, "groups")
    ]
    kinds = ["", "", "", *["number"] * 4]
    return Table([Cell(c, k) for c, k in zip(columns, kinds, strict=True)], rows) if rows else None


def _facts(run: Record) -> list[tuple[str, str]]:
    error = finite(run.get("stderr"))
    loss = fixed(run.get("loss")) + (f" ± {fixed(error, 4)}" if error is not None else "")
    named = [
        ("validation loss ± evaluation s.e." if error is not None else "validation loss", loss),
        ("validation, bits a byte", fixed(run.get("bits_per_byte"))),
        ("of the running mean (EMA)", fixed(run.get("ema_loss"))),
        ("initial loss", fixed(run.get("initial_loss"))),
        ("parameters", count(run.get("params"))),
        ("steps", count(run.get("steps"))),
        ("tokens per second", count(run.get("tokens_per_s"))),
        (f"MFU, of {text(run, 'mfu_of')}", percent(mfu) if (mfu := finite(run.get("mfu"))) is not None else NONE),
        ("CPU-seconds", significant(run.get("cpu_seconds"))),
        ("largest gradient norm", significant(run.get("grad_norm_max"))),
    ]
    return [(name, value) for name, value in named if value != NONE]


def _metric(metrics: list[Record], key: str) -> Pairs:
    rows = [(finite(row.get("step")), finite(row.get(key))) for row in metrics]
    return [(step, value) for step, value in rows if step is not None and value is not None]


def _curves(run: Record, metrics: list[Record], unit: str) -> list[Figure]:
    train = _metric(metrics, "loss") or series(run, "train_curve")
    val = series(run, "val_curve")
    figures = []
    if train or val:
        chart = line_chart(smoothed(train), f"Loss, {unit}", dots=val, faint=train)
        first, last = (train or val)[0][1], (train or val)[-1][1]
        said = f"Training loss from {fixed(first)} to {fixed(last)}" if train else ""
        said += f"{'; v' if said else 'V'}alidation loss at the end {fixed(val[-1][1])}" if val else ""
        legend = [Key("line", "training, smoothed (thin: as logged)", 1)] if train else []
        legend += [Key("dot", "validation")] if val else []
        figures.append(Figure("Loss", [chart], f"{said}.", "", legend))
    figures += _validation(run, unit)
    small = [
        line_chart(found, title, log=log)
        for key, (title, log) in METRICS.items()
        if (found := _metric(metrics, key))
    ]  # fmt: skip
    if small:
        figures.append(Figure("Over training", small, "", layout="pair"))
    return figures


def _validation(run: Record, unit: str) -> list[Figure]:
    """Validation alone, with the running mean beside it, and in bits a byte: what training noise hides."""
    val, mean, bits = (series(run, key) for key in ("val_curve", "ema_curve", "bits_curve"))
    if len(val) < 2:
        return []
    chart = line_chart(mean or val, f"Validation loss, {unit}", dots=val)
    legend = [Key("line", "running mean of the weights (EMA)", 1)] if mean else []
    charts = [chart, *([line_chart([], "Validation, bits a byte", dots=bits)] if len(bits) > 1 else [])]
    said = f"From {fixed(val[0][1])} at update {count(val[0][0])} to {fixed(val[-1][1])}"
    said += f"; the running mean ends at {fixed(mean[-1][1])}." if mean else "."
    return [Figure("Validation", charts, said, "", [*legend, Key("dot", "the weights")], layout="pair")]


def _layers(run: Record) -> list[Figure]:
    arm = Arm(text(run, "arm", "run"), text(run, "label", "this run"), 1, alone=True)
    charts: list[Chart] = []
    for key, title in (("residual_rms", "Residual RMS"), ("max_logit", "Largest attention logit")):
        charts += layer_charts([arm], stages_of([(arm, text(run, "digest"), run)], key), title)
    return [Figure("Inside the network, by layer", charts, "", layout="pair")] if charts else []
