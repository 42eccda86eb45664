"""Chat templates: Jinja text that comes with a model, rendered by `template_process`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slipstream.errors import UsageError
from slipstream.models.template_process import renderer

Message = Mapping[str, str]
ROLES = ("system", "developer", "user", "assistant", "tool")


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    source: str
    bos_token: str
    eos_token: str

    def render(self, messages: Sequence[Message], *, add_generation_prompt: bool) -> str:
        """The text of a conversation. Raises UsageError for bad messages, or if the template refuses them."""
        check_messages(messages)
        values = {
            "messages": [dict(message) for message in messages],
            "add_generation_prompt": add_generation_prompt,
            "bos_token": self.bos_token,
            "eos_token": self.eos_token,
            "tools": None,
        }
        return renderer.render(self.source, values)


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
