"""``assay generate``: text from a run's folder, a Hugging Face folder or a GGUF file."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from assay.cli.common import AsJson, Plugins, load_plugins, print_json
from assay.cli.errors import UserError

if TYPE_CHECKING:
    from assay.decoding import Decoding, Sampling, Step, Tokenizer
    from assay.interop import Opened

Prompt = Annotated[
    str | None, typer.Argument(metavar="[PROMPT]", help="The text to go on from; - reads it from stdin.")
]
NewTokens = Annotated[int, typer.Option("--max-new-tokens", metavar="N", min=1, help="Tokens to write at most.")]
Temperature = Annotated[float, typer.Option("--temperature", metavar="T", help="0: the best token each time.")]
TopK = Annotated[int | None, typer.Option("--top-k", metavar="K", help="Draw from the K best.")]
TopP = Annotated[float, typer.Option("--top-p", metavar="P", help="Draw from the fewest best that hold this mass.")]
MinP = Annotated[float, typer.Option("--min-p", metavar="P", help="Bar what is below P of the best's probability.")]
Penalty = Annotated[float, typer.Option("--repetition-penalty", metavar="X", help="Above 1: shun what was there.")]
Stop = Annotated[list[str] | None, typer.Option("--stop", metavar="TEXT", help="End before this text; repeatable.")]
Seed = Annotated[int, typer.Option("--seed", metavar="N", help="Of the draws.")]
Chat = Annotated[
    bool | None, typer.Option("--chat/--no-chat", help="Put the prompt in the chat template; default: if there is one.")
]
System = Annotated[str | None, typer.Option("--system", metavar="TEXT", help="A system message before the question.")]
Beyond = Annotated[bool, typer.Option("--beyond-context", help="Read and write past max_seq_len where it can be.")]
TokenizerPath = Annotated[
    str | None, typer.Option("--tokenizer", metavar="FOLDER", help="Another tokenizer: a folder, a file, or bytes.")
]
Device = Annotated[str, typer.Option("--device", metavar="DEVICE", help="Like cpu, cuda, cuda:1.")]
Dtype = Annotated[str | None, typer.Option("--dtype", metavar="DTYPE", help="fp32, bf16 or fp16; default: as stored.")]
LogProbs = Annotated[bool, typer.Option("--logprobs", help="Tell each token's id and log-probability; in JSON.")]
Input = Annotated[Path | None, typer.Option("--input", metavar="FILE.jsonl", help="Many prompts, one a line.")]
Output = Annotated[Path | None, typer.Option("--output", metavar="FILE.jsonl", help="Where their texts go.")]
Rows = Annotated[int, typer.Option("--batch", metavar="N", min=1, help="Prompts at once, with --input.")]


@dataclass(frozen=True)
class Writer:
    """A model with its tokenizer and what was asked of it."""

    opened: Opened
    tokenizer: Tokenizer
    sampling: Sampling
    max_new_tokens: int
    stop: tuple[str, ...]
    chat: bool
    system: str | None
    beyond: bool
    logprobs: bool

    def prompt(self, text: str, system: str | None = None) -> list[int]:
        """The ids of a prompt that fits the context."""
        from assay.decoding import fault, prompt_ids, too_long
        from assay.recipe.position import LearnedPosition

        if not text:
            raise fault("prompt", "empty: there is nothing to go on from", allowed="a text of one character or more")
        for name, given in (("prompt", text), ("system", system or self.system or ""), ("stop", "".join(self.stop))):
            try:
                given.encode("utf-8")
            except UnicodeEncodeError as error:  # bytes of an argument or of stdin that are no text
                raise fault(name, f"not UTF-8 from character {error.start} on", allowed="a text in UTF-8") from None
        ids = prompt_ids(self.tokenizer, text, chat=self.chat, system=system if system is not None else self.system)
        if not ids:
            raise fault("prompt", f"{self.tokenizer.name} leaves no token of it", text, "a text of one token or more")
        recipe = self.opened.decoder.recipe
        fixed = isinstance(recipe.embedding.position, LearnedPosition)
        if len(ids) >= recipe.max_seq_len and not (self.beyond and not fixed):
            why = "its learned positions end there" if fixed else "it was made for no more (or pass --beyond-context)"
            raise too_long(len(ids), self.max_new_tokens, recipe.max_seq_len, why)
        return ids

    def room(self, longest: int) -> int:
        """Tokens that can be written after a prompt: as many as asked for, or as the context leaves."""
        return self.max_new_tokens if self.beyond else min(self.max_new_tokens, self.limit - longest)

    @property
    def limit(self) -> int:
        return self.opened.decoder.recipe.max_seq_len

    def decoding(self, rows: list[list[int]], seeds: list[int], **more: Any) -> Decoding:
        """Prompts padded on the left into one batch; ``more`` as :class:`assay.decoding.Decoding` takes it."""
        import torch

        from assay.decoding import Decoding

        width = max(map(len, rows))
        ids = torch.zeros(len(rows), width, dtype=torch.long)
        mask = torch.zeros_like(ids)
        for i, row in enumerate(rows):
            ids[i, width - len(row) :], mask[i, width - len(row) :] = torch.tensor(row), 1
        recipe = self.opened.decoder.recipe
        return Decoding(
            self.opened.decoder,
            ids,
            mask,
            max_new_tokens=self.room(width),
            sampling=self.sampling,
            seeds=seeds,
            stop_ids=self.tokenizer.stops_at(self.stop),
            vocab=min(self.tokenizer.size, recipe.vocab_size),
            logprobs=self.logprobs,
            **more,
        )


def run(
    source: Annotated[Path, typer.Argument(metavar="FOLDER|GGUF", help="A run, a Hugging Face folder, a .gguf file.")],
    prompt: Prompt = None,
    max_new_tokens: NewTokens = 128,
    temperature: Temperature = 0.0,
    top_k: TopK = None,
    top_p: TopP = 1.0,
    min_p: MinP = 0.0,
    repetition_penalty: Penalty = 1.0,
    stop: Stop = None,
    seed: Seed = 0,
    chat: Chat = None,
    system: System = None,
    input_: Input = None,
    output: Output = None,
    batch: Rows = 8,
    beyond_context: Beyond = False,
    logprobs: LogProbs = False,
    tokenizer: TokenizerPath = None,
    dtype: Dtype = None,
    device: Device = "cpu",
    json: AsJson = False,
    plugins: Plugins = None,
) -> None:
    """Write on from a prompt, or from every prompt of a file.

    The text comes as it is written; --json gives it with the tokens a second of reading (prefill) and writing (decode).
    With --input each line is {"prompt": ..., "seed": ..., "system": ...}, the last two at will; it comes back in
    --output with its text. The same command goes on where it was stopped.

    \b
    Examples:
      assay generate runs/tiny "def main(" --max-new-tokens 200
      assay generate SmolLM2.gguf "What is the capital of France?"
      assay generate hf-folder "Once" --no-chat --temperature 0.8 --top-p 0.95 --seed 3 --json
      assay generate hf-folder --input prompts.jsonl --output texts.jsonl --batch 16
    """
    load_plugins(plugins)
    _check_call(prompt, input_, output)
    if logprobs and not (json or input_):
        raise UserError("--logprobs: goes into JSON; add --json, or --input and --output")
    options = {"temperature": temperature, "top_p": top_p, "min_p": min_p, "repetition_penalty": repetition_penalty}
    with faults():
        from assay.decoding import Sampling

        sampling = Sampling.of(**options, top_k="all" if top_k is None else top_k)
        opened = open_source(source, dtype, device)
        found = opened.tokenizer(tokenizer)
        talk = found.chat_template is not None if chat is None else chat
        writer = Writer(
            opened, found, sampling, max_new_tokens, tuple(stop or ()), talk, system, beyond_context, logprobs
        )
        if input_ is not None and output is not None:
            from assay.cli.generate_many import many

            many(writer, input_, output, batch, seed, json)
        else:
            _one(writer, sys.stdin.read() if prompt == "-" else str(prompt), seed, json)


def _check_call(prompt: str | None, input_: Path | None, output: Path | None) -> None:
    if (input_ is None) != (output is None):
        raise UserError("--input and --output go together: prompts come from the one, texts go to the other")
    if (prompt is None) == (input_ is None):
        raise UserError("give a PROMPT, or --input FILE.jsonl" + (", not both" if prompt is not None else ""))


def open_source(source: Path, dtype: str | None = None, device: str = "cpu") -> Opened:
    """The model of a folder or file; what was passed over is told on stderr."""
    import torch

    from assay.interop import open_folder

    dtypes = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
    if dtype is not None and dtype not in dtypes:
        raise UserError(f"--dtype: no such dtype: {dtype!r}; known: {', '.join(dtypes)}")
    check_device(device)
    opened = open_folder(source, dtype=None if dtype is None else dtypes[dtype], device=device)
    for warning in opened.warnings:
        typer.echo(f"warning: {warning}", err=True)
    return opened


def check_device(name: str) -> None:
    """Refuse a device that is not here."""
    import torch

    kind, colon, number = name.partition(":")
    if kind not in ("cpu", "cuda", "mps") or (colon and not number.isdecimal()):
        raise UserError(f"--device: no such device: {name!r}; like cpu, cuda, cuda:1")
    if kind == "cuda" and int(number or 0) >= torch.cuda.device_count():
        raise UserError(f"--device: {torch.cuda.device_count() or 'no'} CUDA devices here: {name!r}; say cpu")
    if kind == "mps" and not torch.backends.mps.is_available():
        raise UserError(f"--device: no MPS device here: {name!r}; say cpu")


def faults() -> Any:
    """What is wrong with a model's folder is the user's fault."""
    return import_module("assay.cli.import").interop_faults()


def _one(writer: Writer, prompt: str, seed: int, json: bool) -> None:
    """One text, shown as it comes, then how fast it came."""
    from assay.decoding import Writing

    ids = writer.prompt(prompt)
    work = writer.decoding([ids], [seed])
    writing = Writing(work, writer.tokenizer, writer.stop)
    steps = []
    try:
        for step, pieces in writing:
            steps.append(step)
            if not json and pieces[0]:
                typer.echo(pieces[0], nl=False)
                sys.stdout.flush()
    finally:
        if not json:
            typer.echo()
    told = {"text": writing.texts[0], "finish": finish_of(writer, work, 0, len(ids)), "seed": seed, **rates(work)}
    if writer.logprobs:
        told.update(scored(steps, 0))
    if json:
        print_json({**told, "chat": writer.chat, "sampling": writer.sampling.model_dump(mode="json")})
    else:
        typer.echo(told_rates(told), err=True)


def scored(steps: list[Step | None], row: int) -> dict[str, Any]:
    """A row's token ids with their log-probabilities under the model's own softmax."""
    own = [step for step in steps if step is not None and bool(step.live[row])]
    return {
        "ids": [int(step.ids[row]) for step in own],
        "logprobs": [float(step.logprobs[row]) for step in own if step.logprobs is not None],
    }


def finish_of(writer: Writer, work: Decoding, row: int, prompt_tokens: int) -> str:
    """Why a row ended; ``context`` where its context did before what was asked for."""
    cut = work.finish[row] == "length" and writer.room(work.ids.shape[1]) < writer.max_new_tokens
    return "context" if cut else work.finish[row]


def rates(*works: Decoding) -> dict[str, Any]:
    """Tokens, seconds and tokens a second of reading the prompts and of writing after their first token.

    ``setup``: seconds in which the weights were laid out for the writing, once a model and number of rows.
    """
    read, written = sum(w.prompt_tokens for w in works), sum(sum(w.lengths) for w in works)
    first = sum(len(w.lengths) for w in works)
    out: dict[str, Any] = {"prompt_tokens": read, "new_tokens": written}
    out["setup"] = {"seconds": sum(w.seconds["setup"] for w in works)}
    for name, tokens in (("prefill", read), ("decode", written - first)):
        seconds = sum(w.seconds[name] for w in works)
        out[name] = {"tokens": tokens, "seconds": seconds, "tokens_per_s": tokens / seconds if tokens else None}
    return out


def told_rates(told: dict[str, Any]) -> str:
    """The same on one line."""
    parts = [f"{told['prompt_tokens']:,} tokens read, {told['new_tokens']:,} written"]
    for name in ("prefill", "decode"):
        speed = told[name]["tokens_per_s"]
        parts += [f"{name} {speed:,.1f} tokens/s"] if speed is not None else []
    setup = told["setup"]["seconds"]
    parts += [f"after {setup:.1f} s of setup"] if setup >= 0.1 else []
    return "; ".join([*parts, f"ended: {told['finish']}"])
