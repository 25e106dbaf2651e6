"""A model as lm-evaluation-harness asks for one (the ``eval`` extra: lm-eval 0.4).

``AssayLM(pretrained=FOLDER)`` reads a run's folder, a Hugging Face folder or a GGUF file. Numbers are those of
lm-eval's own ``hf`` model on the exported folder, but where that one would read two start tokens
(EleutherAI/lm-evaluation-harness#3333): rolling windows start with one here, whatever the tokenizer adds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from lm_eval.api.model import LM
from lm_eval.api.registry import register_model
from tqdm import tqdm

from assay.decoding import Sampling, chat_text, fault
from assay.decoding.scoring import Scorer
from assay.interop.folder import open_folder
from assay.recipe.position import LearnedPosition

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "auto": None}
MAX_GEN_TOKS = 256
_STARTS: dict[bool | None, Literal["tokenizer", "always", "never"]] = {
    None: "tokenizer",
    True: "always",
    False: "never",
}
_LENGTHS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
_SAMPLING = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")


@register_model("assay")
class AssayLM(LM):  # type: ignore[misc]
    """lm-eval's protocol: ``loglikelihood``, ``loglikelihood_rolling``, ``generate_until``, chat templates.

    Args:
        pretrained: the folder or file.
        tokenizer: another than the model's own: ``bytes``, a folder or a ``tokenizer.json``.
        max_length: inputs a pass; the recipe's ``max_seq_len`` by default.
        batch_size: rows a pass.
        dtype: of the parameters, ``auto``: as stored.
        add_bos_token: True: every context starts with the start token, once; False: none does; None: as the tokenizer
            does it. Empty contexts and rolling windows start with it in any case.
        seed: of sampled generation; request n has ``seed + n``.
    """

    def __init__(
        self,
        pretrained: str,
        tokenizer: str | None = None,
        max_length: int | str | None = None,
        batch_size: int | str = 8,
        dtype: str = "float32",
        device: str = "cpu",
        add_bos_token: bool | None = None,
        seed: int | str = 0,
        **unknown: Any,
    ) -> None:
        super().__init__()
        if unknown.pop("max_batch_size", None) is not None or unknown:
            name = next(iter(unknown), "max_batch_size")
            raise fault(name, "no option of this model", unknown.get(name), _OPTIONS, where="lm_eval")
        if dtype not in DTYPES:
            raise fault("dtype", "no such dtype", dtype, ", ".join(DTYPES), where="lm_eval")
        rows, self.seed = _whole("batch_size", batch_size, 1), _whole("seed", seed)
        given = None if max_length is None else _whole("max_length", max_length, 1)
        if add_bos_token not in _STARTS:
            raise fault("add_bos_token", "not a choice", add_bos_token, "True, False or None", where="lm_eval")
        self.opened = open_folder(pretrained, dtype=DTYPES[dtype], device=device or "cpu")
        decoder = self.opened.decoder
        most = decoder.recipe.max_seq_len
        length = most if given is None else given
        if length > most and isinstance(decoder.recipe.embedding.position, LearnedPosition):
            raise fault("max_length", "the learned positions end before", length, f"at most {most}", where="lm_eval")
        self.scorer = Scorer(decoder, self.opened.tokenizer(tokenizer), length, rows, _STARTS[add_bos_token])
        self._device = torch.device(device or "cpu")

    @property
    def max_length(self) -> int:
        return self.scorer.max_length

    @property
    def batch_size(self) -> int:
        return self.scorer.batch

    @property
    def tokenizer_name(self) -> str:
        return self.scorer.tokenizer.name.replace("/", "__")

    def loglikelihood(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        pairs = [request.args for request in requests]
        with tqdm(total=len(pairs), desc="log-likelihood", disable=disable_tqdm) as bar:
            found = self.scorer.continuations(pairs, bar.update)
        for pair, answer in zip(pairs, found, strict=True):
            self.cache_hook.add_partial("loglikelihood", pair, answer)
        return found

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        texts = [request.args[0] for request in requests]
        with tqdm(desc="rolling windows", disable=disable_tqdm) as bar:
            found = self.scorer.texts(texts, bar.update)
        for text, answer in zip(texts, found, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", (text,), answer)
        return found

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        groups: dict[str, list[int]] = {}
        for i, request in enumerate(requests):
            groups.setdefault(repr(sorted(request.args[1].items(), key=str)), []).append(i)
        out = [""] * len(requests)
        with tqdm(total=len(requests), desc="generation", disable=disable_tqdm) as bar:
            for places in groups.values():
                stop, length, sampling = generation_of(requests[places[0]].args[1])
                contexts = [requests[i].args[0] for i in places]
                seeds = [self.seed + i for i in places]
                for n, text in self.scorer.write(contexts, stop, length, sampling, seeds):
                    out[places[n]] = text
                    self.cache_hook.add_partial("generate_until", requests[places[n]].args, text)
                    bar.update(1)
        return out

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        return chat_text(self.scorer.tokenizer, chat_history, answer=add_generation_prompt)

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        return self.scorer.tokenizer.chat_template if chat_template else None


_OPTIONS = "pretrained, tokenizer, max_length, batch_size, dtype, device, add_bos_token, seed"


def _whole(name: str, value: Any, least: int | None = None) -> int:
    """A whole number, also as text."""
    try:
        number = int(value)
    except (TypeError, ValueError):
        raise fault(name, "not a whole number", value, where="lm_eval") from None
    if least is not None and number < least:
        raise fault(name, "too small", value, f"{least} or more", where="lm_eval")
    return number


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True


def generation_of(told: dict[str, Any]) -> tuple[list[str], int, Sampling]:
    """Stop strings, tokens at most and sampling of a task's generation arguments.

    Raises:
        DecodingError: an argument that no option here means.
    """
    left = dict(told)
    until = left.pop("until", None) or []
    lengths = [_whole(f"generation_kwargs.{key}", left.pop(key), 1) for key in _LENGTHS if left.get(key) is not None]
    samples = left.pop("do_sample", None)
    options = {key: left.pop(key) for key in _SAMPLING if left.get(key) is not None}
    for key, value in options.items():
        if key != "top_k" and not _is_number(value):
            raise fault(f"generation_kwargs.{key}", "not a number", value, where="lm_eval")
    temperature = float(options.pop("temperature", 1.0 if samples else 0.0))
    if samples is False or temperature == 0:
        temperature, options = 0.0, {k: v for k, v in options.items() if k == "repetition_penalty"}
    if options.get("top_k") == 0:  # in transformers' words: all
        del options["top_k"]
    left = {key: value for key, value in left.items() if value is not None and (key, value) != ("num_beams", 1)}
    if left:
        key, value = next(iter(left.items()))
        known = ", ".join(("until", *_LENGTHS, "do_sample", *_SAMPLING))
        raise fault(f"generation_kwargs.{key}", "no option of generation here", value, known, where="lm_eval")
    floats = {key: value if key == "top_k" else float(value) for key, value in options.items()}
    sampling = Sampling.of(temperature=temperature, **floats)
    return [until] if isinstance(until, str) else list(until), next(iter(lengths), MAX_GEN_TOKS), sampling
