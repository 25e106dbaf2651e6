"""``assay eval``: a model on tasks of lm-evaluation-harness."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from assay.cli.common import AsJson, Plugins, load_plugins, print_json
from assay.cli.errors import UserError

if TYPE_CHECKING:
    from assay.interop.lm_eval import AssayLM


def run(
    source: Annotated[Path, typer.Argument(metavar="FOLDER|GGUF", help="A run, a Hugging Face folder, a .gguf file.")],
    tasks: Annotated[str, typer.Option("--tasks", metavar="A,B", help="Names of tasks or groups, with commas.")],
    include_path: Annotated[
        Path | None, typer.Option("--include-path", metavar="DIR", help="A folder with tasks (YAML) of your own.")
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", metavar="N", min=1, help="The first N documents only.")
    ] = None,
    num_fewshot: Annotated[
        int | None, typer.Option("--num-fewshot", metavar="N", min=0, help="Solved examples before each question.")
    ] = None,
    gen_kwargs: Annotated[
        str | None, typer.Option("--gen-kwargs", metavar="K=V,K=V", help="Laid over a task's own: max_gen_toks=32.")
    ] = None,
    chat: Annotated[bool, typer.Option("--chat", help="Put questions in the tokenizer's chat template.")] = False,
    batch: Annotated[int, typer.Option("--batch", metavar="N", min=1, help="Rows a pass.")] = 8,
    max_length: Annotated[
        int | None, typer.Option("--max-length", metavar="N", min=2, help="Tokens a pass; default: the context.")
    ] = None,
    tokenizer: Annotated[
        str | None, typer.Option("--tokenizer", metavar="FOLDER", help="Another tokenizer: a folder, a file, bytes.")
    ] = None,
    dtype: Annotated[str, typer.Option("--dtype", metavar="DTYPE", help="fp32, bf16 or fp16.")] = "fp32",
    device: Annotated[str, typer.Option("--device", metavar="DEVICE", help="Like cpu, cuda, cuda:1.")] = "cpu",
    json: AsJson = False,
    plugins: Plugins = None,
) -> None:
    """A model on tasks of lm-evaluation-harness.

    Needs the eval extra: pip install 'assay-lm[eval]'. Numbers are those of lm-eval's own hf model on the exported
    folder. A task of your own is a YAML beside its data.

    \b
    Examples:
      assay eval hf-folder --tasks arc_easy,hellaswag --limit 100
      assay eval runs/tiny --tasks my_task --include-path tasks --json
    """
    load_plugins(plugins)
    from assay.cli.generate import check_device, faults

    names = [name.strip() for name in tasks.split(",") if name.strip()]
    if not names:
        raise UserError("--tasks: no task named; like arc_easy,hellaswag")
    if include_path is not None and not include_path.is_dir():
        raise UserError(f"--include-path: no such folder: {include_path}")
    check_device(device)
    with faults():
        model = _model(
            source, tokenizer=tokenizer, max_length=max_length, batch_size=batch, dtype=_dtype(dtype), device=device
        )
        found = _evaluated(
            model, names, include_path, limit=limit, num_fewshot=num_fewshot, gen_kwargs=gen_kwargs, chat=chat
        )
    if json:
        print_json({"model": str(source), "digest": model.opened.decoder.recipe.digest, **found})
    else:
        _print(found)


def _dtype(name: str) -> str:
    known = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
    if name not in known:
        raise UserError(f"--dtype: no such dtype: {name!r}; known: {', '.join(known)}")
    return known[name]


def _model(source: Path, **options: Any) -> AssayLM:
    try:
        from assay.interop.lm_eval import AssayLM
    except ImportError as error:
        if not str(error.name or "").startswith(("lm_eval", "tqdm")):
            raise
        raise UserError("assay eval needs lm-evaluation-harness: pip install 'assay-lm[eval]'") from None
    return AssayLM(str(source), **options)


def _evaluated(model: AssayLM, names: list[str], include: Path | None, *, chat: bool, **options: Any) -> dict[str, Any]:
    """lm-eval's numbers as plain values."""
    from lm_eval.evaluator import simple_evaluate
    from lm_eval.tasks import TaskManager

    manager = TaskManager(include_path=None if include is None else str(include))
    unknown = [name for name in names if not manager.match_tasks([name])]
    if unknown:
        from assay.recipe.errors import nearest

        near = nearest(unknown[0], manager.all_tasks)
        raise UserError(f"--tasks: no such task: {unknown[0]!r}" + (f"; nearest: {near}" if near else ""))
    try:
        out = simple_evaluate(
            model=model, tasks=names, task_manager=manager, apply_chat_template=chat, log_samples=False, **options
        )
    except OSError as error:  # a file that is missing, a data set that cannot be reached
        raise UserError(f"--tasks: the data of {', '.join(names)} cannot be read: {error}") from None
    assert out is not None
    results = {
        task: {k.removesuffix(",none"): v for k, v in row.items() if isinstance(v, int | float)}
        for task, row in out["results"].items()
    }
    counts = {task: n["effective"] for task, n in out["n-samples"].items()}
    return {"tasks": results, "documents": counts, "versions": dict(out["versions"]), **options, "chat": chat}


def _print(found: dict[str, Any]) -> None:
    from assay.cli.tables import console, ruled

    rows = []
    for task, numbers in found["tasks"].items():
        for name, value in numbers.items():
            if "_stderr" in name or name == "sample_len":
                continue
            error = next((v for k, v in numbers.items() if k == _stderr(name)), None)
            shown = "" if error is None else f"+- {error:.4f}"
            rows.append((task, name, f"{value:.4f}", shown, str(found["documents"].get(task, ""))))
    console().print(ruled(("task", "metric", "value", "", "documents"), rows, right=(2, 4)))


def _stderr(name: str) -> str:
    """lm-eval's name for a metric's standard error: ``acc_stderr``, ``acc_stderr,filter``."""
    metric, comma, filtered = name.partition(",")
    return f"{metric}_stderr{comma}{filtered}"
