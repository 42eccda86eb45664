"""Chat templates: Jinja text that comes with a model, rendered in a sandbox."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, NoReturn

from slipstream.errors import UsageError

if TYPE_CHECKING:
    from jinja2 import Template

Message = Mapping[str, str]
ROLES = ("system", "developer", "user", "assistant", "tool")


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    source: str
    bos_token: str
    eos_token: str

    def render(self, messages: Sequence[Message], *, add_generation_prompt: bool) -> str:
        """The text of a conversation. Raises UsageError for bad messages, or if the template refuses them."""
        from jinja2 import TemplateError

        check_messages(messages)
        try:
            return _compiled(self.source).render(
                messages=[dict(message) for message in messages],
                add_generation_prompt=add_generation_prompt,
                bos_token=self.bos_token,
                eos_token=self.eos_token,
                tools=None,
            )
        # A template is code of the model's author: what it does wrong may surface as any of these.
        except (TemplateError, TypeError, ValueError, LookupError, ArithmeticError, AttributeError) as error:
            raise UsageError(
                f"The model's chat template refuses this conversation: {error}. "
                "Change the messages, or pass the text as it is with --raw."
            ) from error


def check_messages(messages: Sequence[Message]) -> None:
    """Raises UsageError unless there is a message and each has a known role and text."""
    if not messages:
        raise UsageError("The conversation is empty; at least one message was expected.")
    for index, message in enumerate(messages):
        role, content = message.get("role"), message.get("content")
        if role not in ROLES:
            raise UsageError(f"Message {index} has the role {role!r}; one of {', '.join(ROLES)} was expected.")
        if not isinstance(content, str):
            raise UsageError(f"Message {index} has the content {content!r}; text was expected.")


@functools.lru_cache(maxsize=16)
def _compiled(source: str) -> Template:
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _generation_tag()]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment.from_string(source)


def _generation_tag() -> Any:
    """`{% generation %}` marks the assistant's words for training; here it only has to be passed through."""
    from jinja2 import nodes
    from jinja2.ext import Extension
    from jinja2.parser import Parser

    class GenerationTag(Extension):
        tags = {"generation"}  # noqa: RUF012  # jinja2 declares it so

        def parse(self, parser: Parser) -> list[nodes.Node]:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    return GenerationTag


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    # Jinja's own filter escapes HTML characters, which no model was trained on.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)


def _raise_exception(message: str) -> NoReturn:
    from jinja2 import TemplateError

    raise TemplateError(message)


def _strftime_now(layout: str) -> str:
    return datetime.now().strftime(layout)
