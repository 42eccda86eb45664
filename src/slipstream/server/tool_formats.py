"""How the families of models call tools: what the prompt holds, what the answer may hold, and how it is read."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from slipstream.server.refusals import Refusal, bad_field
from slipstream.server.requests import ChatMessage, ChatRequest, Tool, ToolChoice

_LAYOUT = {"x-guidance": {"item_separator": ", ", "key_separator": ": ", "whitespace_flexible": False}}


@dataclass(frozen=True, slots=True)
class CalledTool:
    name: str
    arguments: str  # JSON


@dataclass(frozen=True, slots=True)
class ToolAnswer:
    """An answer, split into what is said and what is called."""

    content: str
    calls: Sequence[CalledTool] = ()


class ToolFormat(Protocol):
    """One family's way to call tools. `opening` is the text that begins a call; `is_whole_answer`: a call has no text
    beside it."""

    opening: str
    is_whole_answer: bool = False

    def grammar(self, tools: Sequence[Tool], must_call: bool, several: bool) -> str | None:
        """What the answer may be, in llguidance's Lark. None: anything."""
        ...

    def read(self, text: str, names: Sequence[str]) -> ToolAnswer: ...


class HermesFormat(ToolFormat):
    """Qwen and Hermes: <tool_call>\\n{"name": …, "arguments": …}\\n</tool_call>, after text or instead of it."""

    opening = "<tool_call>"

    def grammar(self, tools: Sequence[Tool], must_call: bool, several: bool) -> str:
        more = r'("\n<tool_call>\n" body "\n</tool_call>")*' if several else ""
        calls = rf'calls: "\n" body "\n</tool_call>" {more}'
        body = f"body: %json {json.dumps(_call_schema(tools, 'arguments'))}"
        if must_call:
            return "\n".join(['start: "<tool_call>" calls', calls, body])
        text = r"TEXT: /(.|\n)*/ & ~/(.|\n)*<tool_call>(.|\n)*/"
        before = r'before[suffix="<tool_call>"]: /(.|\n)*/'
        return "\n".join(["start: TEXT | before calls", text, before, calls, body])

    def read(self, text: str, names: Sequence[str]) -> ToolAnswer:
        content, *bodies = text.split(self.opening)
        calls = [call for body in bodies if (call := _call(body.partition("</tool_call>")[0], "arguments", names))]
        return ToolAnswer(content.strip() if calls else text, calls)


class Llama3Format(ToolFormat):
    """Llama 3: the whole answer is {"name": …, "parameters": …}."""

    opening = "{"
    is_whole_answer = True

    def grammar(self, tools: Sequence[Tool], must_call: bool, several: bool) -> str | None:
        if not must_call:
            return None  # whether it is a call is seen when it is complete
        return f"start: body\nbody: %json {json.dumps(_call_schema(tools, 'parameters'))}"

    def read(self, text: str, names: Sequence[str]) -> ToolAnswer:
        call = _call(text, "parameters", names)
        return ToolAnswer("", [call]) if call else ToolAnswer(text)


def tool_format(template: str | None) -> ToolFormat | None:
    """The format that a model's chat template writes. None if it has no tools, or in another form."""
    if not template or not re.search(r"\btools\b", template):
        return None
    if "<tool_call>" in template:
        return HermesFormat()
    if "ipython" in template and '"parameters"' in template:
        return Llama3Format()
    return None


@dataclass(frozen=True, slots=True)
class ToolUse:
    """The tools of one request."""

    format: ToolFormat
    tools: Sequence[Tool]
    must_call: bool
    several: bool

    @property
    def names(self) -> list[str]:
        return [tool.function.name for tool in self.tools]

    def grammar(self) -> str | None:
        return self.format.grammar(self.tools, self.must_call, self.several)

    def read(self, text: str) -> ToolAnswer:
        return self.format.read(text, self.names)


def tool_use(request: ChatRequest, template: str | None) -> ToolUse | None:
    """None if the request has no tools, or must not call any. Raises Refusal for a model without a known format."""
    choice = request.tool_choice
    uses_tools = request.tools or any(m.tool_calls or m.role == "tool" for m in request.messages)
    family = tool_format(template)
    if uses_tools and family is None:
        message = "tools: this model's chat template has no known tool format; Qwen, Hermes and Llama 3 have one"
        raise Refusal(400, message, param="tools", code="unsupported_field")
    if not request.tools:
        if choice not in (None, "none", "auto"):
            raise bad_field("tool_choice", "tool_choice: needs tools")
        return None
    if choice == "none" or family is None:
        return None
    chosen = request.tools
    if isinstance(choice, ToolChoice):
        chosen = [tool for tool in request.tools if tool.function.name == choice.function.name]
        if not chosen:
            raise bad_field("tool_choice", "tool_choice: names a function that is not among the tools")
    must_call = isinstance(choice, ToolChoice) or choice == "required"
    return ToolUse(family, chosen, must_call, request.parallel_tool_calls is not False)


def template_messages(messages: Sequence[ChatMessage]) -> list[dict[str, Any]]:
    """Messages as templates expect them. Raises Refusal for arguments that are not JSON, and for a message without
    content that is not the assistant's: only a call of a tool has none."""
    for index, message in enumerate(messages):
        if message.content is None and message.role != "assistant":
            param = f"messages.{index}.content"
            raise bad_field(param, f"{param}: a message of {message.role} needs a content", "missing_field")
    return [_template_message(index, message) for index, message in enumerate(messages)]


def _template_message(index: int, message: ChatMessage) -> dict[str, Any]:
    plain: dict[str, Any] = {"role": message.role, "content": message.text}
    if message.name:
        plain["name"] = message.name
    if message.tool_call_id:
        plain["tool_call_id"] = message.tool_call_id
    if message.tool_calls:
        plain["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.function.name, "arguments": arguments}}
            for call in message.tool_calls
            for arguments in [_object(call.function.arguments, f"messages.{index}.tool_calls")]
        ]
    return plain


def _object(text: str, param: str) -> dict[str, Any]:
    try:
        value = json.loads(text or "{}")
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise bad_field(param, f"{param}: function.arguments has to be a JSON object as text")
    return value


def _call_schema(tools: Sequence[Tool], arguments: str) -> dict[str, Any]:
    """One call of any of the tools."""
    calls = [
        {
            "type": "object",
            "properties": {
                "name": {"const": tool.function.name},
                arguments: _own_document(tool.function.parameters or {"type": "object"}, f"tool:{index}"),
            },
            "required": ["name", arguments],
            "additionalProperties": False,
        }
        for index, tool in enumerate(tools)
    ]
    return _LAYOUT | {"anyOf": calls}


def _own_document(schema: Mapping[str, Any], uri: str) -> dict[str, Any]:
    """With an address, so that `#/$defs/...` in it means its own definitions, not those of the schema around it.
    Without a version: in some versions of JSON Schema an address is written in another way."""
    return {key: value for key, value in schema.items() if key != "$schema"} | {"$id": uri}


def _call(text: str, arguments: str, names: Sequence[str]) -> CalledTool | None:
    """The call that a JSON text stands for; None if it is none."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict) or value.get("name") not in names or not isinstance(value.get(arguments), dict):
        return None
    written = json.dumps(value[arguments], ensure_ascii=False)
    return CalledTool(value["name"], written.encode("utf-8", "backslashreplace").decode())  # half characters escaped
