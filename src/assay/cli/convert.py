"""``assay convert``: a trained model in another architecture. ``gqa``: fewer key/value heads."""

from __future__ import annotations

import json as json_
import os
import shutil
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from assay.cli.common import AsJson, Plugins, load_plugins, print_json, writing
from assay.cli.errors import UserError

if TYPE_CHECKING:
    from assay.interop import Opened
    from assay.model import Decoder
    from assay.recipe import Recipe

REPORT = "convert.json"
WHAT = ("gqa",)

Steps = Annotated[
    int | None,
    typer.Option("--uptrain-steps", metavar="N", min=0, help="Updates after; default: 5% of the run's, else none."),
]
Rate = Annotated[
    float | None, typer.Option("--uptrain-lr", metavar="LR", help="Their peak; default: the run's, else 1e-4.")
]
Text = Annotated[
    Path | None, typer.Option("--data", metavar="FILE", help="A text to measure on and train with; default: the run's.")
]
Length = Annotated[
    int | None, typer.Option("--seq-len", metavar="N", min=2, help="Tokens a window; default: the run's, else 256.")
]
Rows = Annotated[
    int | None, typer.Option("--batch", metavar="N", min=1, help="Windows an update; default: the run's, else 8.")
]
Seed = Annotated[int, typer.Option("--seed", metavar="N", min=0, help="Of the order of windows of --data.")]


def run(
    what: Annotated[str, typer.Argument(metavar="gqa", help="What to convert to.")],
    source: Annotated[Path, typer.Argument(metavar="FOLDER", help="A run's folder or a Hugging Face folder.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The folder to write, of the same kind.")],
    groups: Annotated[int, typer.Option("--groups", metavar="G", min=1, help="Key/value heads of each layer after.")],
    uptrain_steps: Steps = None,
    uptrain_lr: Rate = None,
    data: Text = None,
    seq_len: Length = None,
    batch: Rows = None,
    seed: Seed = 0,
    json: AsJson = False,
    plugins: Plugins = None,
) -> None:
    """Multi-head attention into grouped-query attention.

    The key and value heads of each group become their mean (Ainslie et al. 2023), then a short training repairs what
    that broke: AdamW or the run's own optimizer, warmed up over a tenth and decayed to a tenth of its peak. Told: the
    validation loss before, after, and after that; the cache before and after.

    \b
    Examples:
      assay convert gqa runs/mha runs/mha-gqa2 --groups 2
      assay convert gqa hf-folder hf-gqa --groups 4 --data text.txt --uptrain-steps 200 --json
    """
    load_plugins(plugins)
    if what not in WHAT:
        raise UserError(f"no such conversion: {what!r}; known: {', '.join(WHAT)}")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out}: exists and is not empty; choose another folder")
    _check_place(out)
    with import_module("assay.cli.import").interop_faults(), _training_faults():
        from assay.cli.uptrain import course_of
        from assay.interop import open_folder, pool_heads

        opened = open_folder(source)
        if opened.kind == "gguf":
            raise UserError(f"{source}: a GGUF file cannot be written back; `assay import` it first")
        course = course_of(opened, data, steps=uptrain_steps, lr=uptrain_lr, seq_len=seq_len, batch=batch, seed=seed)
        pooled = pool_heads(opened.decoder, groups)
        report: dict[str, Any] = {
            "what": what,
            "source": str(source),
            "groups": groups,
            **_changed(opened.decoder.recipe, pooled.recipe, _dtype_of(pooled)),
            **course.run(opened.decoder, pooled),
        }
        _write(opened, pooled, out, report)
    if json:
        print_json({"out": str(out), **report})
    else:
        _print(out, report)


def _training_faults() -> Any:
    return import_module("assay.cli.train")._users_faults()


def _dtype_of(decoder: Decoder) -> str:
    names = {"float32": "fp32", "float64": "fp32", "bfloat16": "bf16", "float16": "fp16"}
    return names[str(decoder.embedding.table.dtype).removeprefix("torch.")]


def _changed(before: Recipe, after: Recipe, dtype: str) -> dict[str, Any]:
    """Parameters, heads and the cache of one sequence at the full context, before and after."""
    from assay.cost import budget
    from assay.recipe.mixer import attentions_of

    out: dict[str, Any] = {"n_kv_heads": {}, "params": {}, "cache": {"dtype": dtype, "seq_len": before.max_seq_len}}
    for name, recipe in (("before", before), ("after", after)):
        cost = budget(recipe, batch=1, seq_len=recipe.max_seq_len, dtype=dtype)
        heads = sorted({spec.n_kv_heads for layer in recipe.layers for spec in attentions_of(layer.mixer)})
        out["n_kv_heads"][name] = heads[0] if len(heads) == 1 else heads
        out["params"][name] = cost.params.total
        out["cache"][name] = {"bytes": cost.cache.bytes, "bytes_per_token": cost.cache.bytes_per_token}
    held = [out["cache"][name]["bytes"] for name in ("before", "after")]
    out["cache"]["saved"] = 1 - held[1] / held[0]
    return out


def _partial(out: Path) -> Path:
    return out.with_name(f".{out.name}.{os.getpid()}.partial")


def _check_place(out: Path) -> None:
    """Refuse a folder that cannot be made before the work that would go there."""
    with writing(out):
        _partial(out).mkdir(parents=True, exist_ok=True)
        _partial(out).rmdir()


def _write(opened: Opened, decoder: Decoder, out: Path, report: dict[str, Any]) -> None:
    """The folder, whole or not at all: of Hugging Face's kind from such a one, else a recipe and weights."""
    partial = _partial(out)
    shutil.rmtree(partial, ignore_errors=True)
    try:
        with writing(out):
            if opened.kind == "hf":
                _write_hf(opened.source, decoder, partial)
            else:
                importer = import_module("assay.cli.import")
                importer._write(decoder, partial)
                importer.carry_tokenizer(opened, partial)
            (partial / REPORT).write_text(json_.dumps(report, indent=2) + "\n", encoding="utf-8")
            if out.exists():
                out.rmdir()  # empty
            partial.rename(out)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _write_hf(source: Path, decoder: Decoder, folder: Path) -> None:
    from assay.decoding.tokenizer import json_if_there
    from assay.interop import to_hf
    from assay.interop.export import TOKENIZER_FILES

    config = json_.loads((source / "config.json").read_text(encoding="utf-8"))
    told = json_if_there(source / "generation_config.json")  # what ends a text may stand there alone
    names = {word: f"{word}_token_id" for word in ("bos", "eos", "pad")}
    tokens = {word: config.get(name) if told.get(name) is None else told[name] for word, name in names.items()}
    has = any((source / name).is_file() for name in TOKENIZER_FILES)
    to_hf(decoder, folder, model_type=config["model_type"], tokens=tokens, tokenizer=source if has else None)


def _print(out: Path, report: dict[str, Any]) -> None:
    from assay.cli.numbers import count, size
    from assay.cli.tables import console, pairs

    cache, loss, heads = report["cache"], report["loss"], report["n_kv_heads"]
    rows: list[tuple[str, str]] = [
        ("key/value heads", f"{heads['before']} to {heads['after']}"),
        ("parameters", f"{count(report['params']['before'])} to {count(report['params']['after'])}"),
        ("cache", f"{size(cache['before']['bytes'])} to {size(cache['after']['bytes'])}"),
        ("", f"{cache['saved']:.1%} less, at {cache['seq_len']:,} tokens in {cache['dtype']}"),
    ]
    if loss["before"] is None:
        rows.append(("loss", "not measured: give a text with --data"))
    else:
        names = {"before": "loss before", "after": "loss after pooling", "uptrained": "loss after training"}
        rows += [(text, f"{loss[name]:.4f} nats a token") for name, text in names.items() if loss[name] is not None]
        steps = report["uptrain"]
        rows.append(("training", f"{steps['steps']} updates, {steps['tokens']:,} tokens, peak rate {steps['lr']:g}"))
    console().print(pairs([*rows, ("written", str(out))]))
