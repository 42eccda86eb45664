"""Chat templates: Jinja text that comes with a model, rendered by `template_process`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipstream.errors import UsageError
from slipstream.models.files import read_file
from slipstream.models.text.template_process import renderer

Message = Mapping[str, Any]
Tools = Sequence[Mapping[str, Any]]
MAX_TEMPLATE_BYTES = 1 << 20  # the longest in use have about 0.02 MB
ROLES = ("system", "developer", "user", "assistant", "tool")


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    source: str
    bos_token: str
    eos_token: str

    def render(self, messages: Sequence[Message], *, add_generation_prompt: bool, tools: Tools | None = None) -> str:
        """The text of a conversation. Raises UsageError for bad messages, or if the template refuses them."""
        check_messages(messages)
        if len(self.source) > MAX_TEMPLATE_BYTES:
            raise UsageError(
                f"The model's chat template has {len(self.source):,} characters; at most {MAX_TEMPLATE_BYTES:,} are "
                "allowed. Use --raw to pass the text unchanged, or use another copy of the model."
            )
        values = {
            "messages": [self._with_known_role(message) for message in messages],
            "add_generation_prompt": add_generation_prompt,
            "bos_token": self.bos_token,
            "eos_token": self.eos_token,
            "tools": [dict(tool) for tool in tools] if tools else None,
        }
        return renderer.render(self.source, values)

    def _with_known_role(self, message: Message) -> dict[str, Any]:
        """Newer clients write developer for system. Most templates leave out messages of roles that they don't know."""
        is_system = message["role"] == "developer" and "developer" not in self.source
        return {**message, "role": "system"} if is_system else dict(message)


def template_of_folder(folder: Path, tokenizer_config: Mapping[str, Any]) -> str | None:
    """The template's own file, or the one in tokenizer_config.json (a string, or a list of named ones)."""
    file = folder / "chat_template.jinja"
    if file.is_file():
        return read_file(file, MAX_TEMPLATE_BYTES).decode("utf-8", errors="replace")
    template = tokenizer_config.get("chat_template")
    if isinstance(template, list):
        named = {t.get("name"): t.get("template") for t in template if isinstance(t, dict)}
        template = named.get("default")
    return template if isinstance(template, str) else None


def check_messages(messages: Sequence[Message]) -> None:
    """Raises UsageError unless there is a message and each has a known role and text."""
    if not messages:
        raise UsageError("The conversation is empty; expected at least one message.")
    for index, message in enumerate(messages):
        role, content = message.get("role"), message.get("content")
        if role not in ROLES:
            raise UsageError(f"Message {index} has the role {role!r}; expected one of {', '.join(ROLES)}.")
        if not isinstance(content, str):
            raise UsageError(f"Message {index} has the content {content!r}; expected text.")
