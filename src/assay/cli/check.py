"""``assay check``: a recipe held against what the field does, and on what evidence it does it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from assay.cli.common import AsJson, Overrides, Plugins, RecipeName, asking, load_plugins, load_recipe, print_json
from assay.cli.errors import UserError

if TYPE_CHECKING:
    from assay.atlas import Finding, Findings
    from assay.training import RunConfig


def run(
    recipe: RecipeName,
    lr: Annotated[float | None, typer.Option("--lr", help="Peak learning rate of the run.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--run", metavar="KEY=VALUE", help="A setting of the run, or a RUN.toml with them; repeatable."),
    ] = None,
    rules: Annotated[
        list[Path] | None,
        typer.Option("--rules", metavar="FILE.toml", help="Rules of your own, laid over the shipped ones; repeatable."),
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option("--only", metavar="RULE", help="Hold this rule alone; repeatable.")
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Leave with exit code 1 where there is a fault.")] = False,
    json: AsJson = False,
    overrides: Overrides = None,
    plugins: Plugins = None,
) -> None:
    """A recipe against the field's habits, each with its evidence.

    A finding has the value, what is usual, the real models that share the value, and what the rule rests on: swept
    (a study varied it), copied (nobody re-checked), nobody checked, or the definition. A rule about the run waits for
    its setting (lr, warmup_steps, steps, tokens, epochs, dtype, tp, language, ...); a run file gives many at once.

    \b
    Examples:
      assay check llama-3.1-8b
      assay check gpt2-xl --lr 1e-2 --run warmup_steps=100 --run epochs=1 --run dtype=bf16
      assay check llama-3.1-8b --set block.mixer.n_kv_heads=2 --run tp=8 --json
    """
    load_plugins(plugins)
    found_recipe = load_recipe(recipe, overrides)
    with asking():
        from assay.atlas import check

        found = check(found_recipe, _settings(lr, settings or []), rules or (), only or ())
    if json:
        print_json(found.to_dict())
    else:
        _print_page(found)
    if strict and found.of("fault"):
        raise typer.Exit(1)


def _settings(lr: float | None, texts: list[str]) -> dict[str, Any]:
    """Settings of the run: those of run files first, then what is given by name."""
    from assay.recipe.merge import parse_value

    files = [text for text in texts if "=" not in text]
    out: dict[str, Any] = {}
    for text in files:
        if not text.endswith(".toml"):
            raise UserError(f"--run: neither KEY=VALUE nor a .toml file: {text!r}")
        from assay.training import RunConfig

        out |= settings_of(RunConfig.load(text))
    for text in texts:
        key, sep, value = text.partition("=")
        if sep:
            out[key.strip()] = parse_value(value.strip())
    return out if lr is None else {**out, "lr": lr}


def settings_of(config: RunConfig) -> dict[str, Any]:
    """What a run's file says of the settings that rules know."""
    from assay.recipe.roles import ParamRole

    batch = config.seq_len * config.batch_size
    betas = getattr(config.optimizer, "betas", None)
    found = {
        "lr": getattr(config.schedule, "lr", None),
        "warmup_steps": getattr(config.schedule, "warmup", None),
        "steps": config.steps,
        "batch_tokens": batch,
        "tokens": batch * config.steps,
        "weight_decay": config.optimizer.weight_decay,
        "decay_roles": [str(role) for role in ParamRole if role.decays] if config.optimizer.weight_decay else None,
        "beta2": betas[1] if betas else None,
        "grad_clip": config.clip if isinstance(config.clip, float) else 0.0,
        "z_loss": config.z_loss,
        "dtype": config.precision,
        "master_dtype": "fp32",
    }
    return {key: value for key, value in found.items() if value is not None}


def _print_page(found: Findings) -> None:
    from assay.atlas import SEVERITIES
    from assay.cli.tables import console, heading, indented, pairs, ruled

    page = console()
    counts = [_counted(len(found.of(s)), s) for s in reversed(SEVERITIES) if found.of(s)]
    page.print(heading(f"{found.name}: {', '.join(counts) or 'nothing to hold it against'}"))
    for finding in found.problems:
        page.print()
        page.print(heading(f"{finding.severity}: {finding.title}"))
        page.print(indented(pairs(_said(finding), 8)))
    usual = found.of("ok")
    if usual:
        page.print()
        page.print(heading("As usual"))
        rows = [
            (f.title + (f" ({f.where})" if f.where else ""), f.text, f.band, f.evidence.label, _share(f)) for f in usual
        ]
        table = ruled(("what", "value", "usual", "evidence", "models"), rows)
        for column, width in zip(table.columns, (30, 8, 14, 9, 7), strict=True):
            column.no_wrap, column.min_width = False, width
        page.print(indented(table))
    if found.skipped:
        page.print()
        page.print(heading(f"Not held: {len(found.skipped)} rules wait for a setting of the run (--run KEY=VALUE)"))
        waiting: dict[str, list[str]] = {}
        for rule in found.skipped:
            waiting.setdefault(", ".join(rule.needs), []).append(rule.title)
        page.print(indented(pairs([(needs, "; ".join(titles)) for needs, titles in waiting.items()])))


def _counted(n: int, severity: str) -> str:
    return f"{n} ok" if severity == "ok" else f"{n} {severity}{'s' if n > 1 else ''}"


def _said(finding: Finding) -> list[tuple[str, str]]:
    evidence = finding.evidence
    rows = [
        ("value", finding.text + (f", in {finding.where}" if finding.where else "")),
        ("usual", finding.band),
        ("models", f"{finding.peers_text} with the same value" if not finding.peers else finding.peers_text),
        ("evidence", str(evidence)),
        ("found", evidence.figure),
        ("why", finding.why),
        ("instead", finding.advice),
        ("rule", f"{finding.rule} ({'; '.join(finding.sources)})"),
    ]
    if not finding.known:
        rows = [row for row in rows if row[0] != "models"]
    return [row for row in rows if row[1]]


def _share(finding: Finding) -> str:
    return f"{len(finding.peers)} of {finding.known}" if finding.known else ""
