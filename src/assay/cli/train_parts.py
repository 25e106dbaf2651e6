"""What ``assay train`` brings to a run: weights to begin from, texts on the way, the ceiling of its speed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from assay.cli.errors import UserError

if TYPE_CHECKING:
    from assay.cli.train_view import State
    from assay.decoding import Tokenizer
    from assay.model import Decoder
    from assay.training import Corpus, RunConfig, Start
    from assay.training.samples import Sampler

_PROMPT = 32  # tokens of the validation split that a sample goes on from where no prompt is given
_LONG = 50  # updates from which a ceiling is worth its fifth of a second


def start_from(source: Path) -> Start:
    """The weights of a run's folder, a Hugging Face folder or a GGUF file, in float32."""
    from assay.cli.generate import faults, open_source
    from assay.training import Start

    with faults():
        opened = open_source(source, "fp32")
    return Start.of(opened.decoder, str(source))


def sampler_of(config: RunConfig, corpus: Corpus) -> Sampler | None:
    """Writes on from the run's prompts, greedily; None where the run asks for no samples."""
    if not config.samples.every:
        return None
    import torch

    from assay.decoding import generate

    tokenizer = tokenizer_of(config, corpus)
    limit = config.recipe.max_seq_len
    start = [int(i) for i in corpus.val[: min(_PROMPT, limit // 2)]]
    prompts = [tokenizer.encode(text) for text in config.samples.prompts] or [start]
    for text, ids in zip(config.samples.prompts, prompts, strict=False):
        if not 0 < len(ids) < limit:
            raise UserError(f"samples.prompts: {text[:40]!r} is {len(ids)} tokens; the context holds {limit}")

    def write(decoder: Decoder) -> list[tuple[str, str]]:
        device = next(decoder.parameters()).device
        out = []
        for ids in prompts:
            given = torch.tensor([ids], device=device)
            room = min(config.samples.tokens, limit - len(ids))
            new = generate(decoder, given, room, stop_ids=tokenizer.stop_ids)[0].tolist()
            out.append((tokenizer.decode(ids), tokenizer.decode(new)))
        return out

    return write


def tokenizer_of(config: RunConfig, corpus: Corpus) -> Tokenizer:
    """The tokenizer of a run's tokens, able to turn them back."""
    from assay.cli.generate import faults
    from assay.decoding import Bytes, read_tokenizer

    if corpus.tokenizer == "bytes":
        return Bytes()
    own = corpus.parts[0].bins.folder
    with faults():
        return read_tokenizer(own if config.data.tokenizer in ("auto", "bytes") else Path(config.data.tokenizer))


def state_of(config: RunConfig) -> State:
    """What the view shows, with the run's FLOPs and the ceiling they are held against."""
    import torch

    from assay.cli.train_view import State
    from assay.training.speed import ceiling_of, measured_ceiling, train_flops

    work, ceiling = train_flops(config), ceiling_of(config)
    if ceiling is None and work is not None and config.steps >= _LONG:
        torch.set_num_threads(config.numerics.threads)
        ceiling = measured_ceiling(config)
    return State(config.steps, work, ceiling)
