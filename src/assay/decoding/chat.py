"""A conversation as one prompt, by the template that came with the tokenizer.

A template is foreign text, so it runs in Jinja's immutable sandbox: no attribute that reaches Python, no change of
what it is given.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import TemplateError
from jinja2.ext import Extension
from jinja2.nodes import Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from assay.decoding.errors import fault
from assay.decoding.tokenizer import Tokenizer

Message = dict[str, str]  # role, content


def chat_text(tokenizer: Tokenizer, messages: Sequence[Message], *, answer: bool = True) -> str:
    """The prompt after which the assistant speaks; its start token, if it has one, is written in it.

    Args:
        answer: a new turn of the assistant begins; otherwise the last message goes on.

    Raises:
        DecodingError: no template, or one that refuses these messages or cannot be read.
    """
    if tokenizer.chat_template is None:
        message = f"{tokenizer.name} has no chat template"
        raise fault("chat", message, allowed="the prompt as it is: generate with --no-chat, eval without --chat")
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _Generation], autoescape=False
    )
    environment.filters["tojson"] = _to_json
    environment.globals.update(raise_exception=_refuse, strftime_now=lambda form: datetime.now().strftime(form))
    try:
        template = environment.from_string(tokenizer.chat_template)
        text = template.render(messages=list(messages), add_generation_prompt=answer, tools=None, **tokenizer.specials)
    except Exception as error:  # a foreign program: whatever it raises is its own fault
        message = str(error) if isinstance(error, TemplateError) else f"{type(error).__name__}: {error}"
        raise fault(
            "chat", f"the template of {tokenizer.name} refuses: {message}", allowed="the prompt as it is"
        ) from None
    if answer:
        return text
    last = messages[-1]["content"].strip()
    return text[: text.rindex(last) + len(last)] if last in text else text


class _Generation(Extension):
    """``{% generation %}``: marks what the assistant says, for training on it alone; here it is its content."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def chat_messages(prompt: str, system: str | None = None) -> list[Message]:
    """A question, with a system message before it if there is one."""
    before = [] if system is None else [{"role": "system", "content": system}]
    return [*before, {"role": "user", "content": prompt}]


def prompt_ids(tokenizer: Tokenizer, text: str, *, chat: bool, system: str | None = None) -> list[int]:
    """The ids that a model reads for a prompt, with one start token at most.

    A template writes its start token itself, so none is added to it.
    """
    if system is not None and not chat:
        raise fault("system", "a system message needs a chat", system, "--chat, or put it before the prompt")
    if not chat:
        return tokenizer.encode(text)
    return tokenizer.encode(chat_text(tokenizer, chat_messages(text, system)), special=False)


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)


def _to_json(value: Any, indent: int | None = None, **options: Any) -> str:
    """As templates expect it: no escapes for HTML."""
    return json.dumps(value, ensure_ascii=False, indent=indent, **options)
