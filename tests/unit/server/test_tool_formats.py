from __future__ import annotations

import json

import pytest

from slipstream.server.answers import ChatFormat, HeldText
from slipstream.server.refusals import Refusal
from slipstream.server.requests import ChatRequest, parse
from slipstream.server.tool_formats import HermesFormat, Llama3Format, template_messages, tool_format, tool_use

HERMES = "{% if tools %}{{ tools }}<tool_call>{% endif %}"
LLAMA = '{% if tools %}Respond with {"name": …, "parameters": …}{% endif %} ipython'
QUESTION = {"messages": [{"role": "user", "content": "Hi"}]}
TOOLS = {"tools": [{"type": "function", "function": {"name": name}} for name in ("look", "count")]}


def request(**fields) -> ChatRequest:
    return parse(ChatRequest, json.dumps(QUESTION | fields).encode())


def test_a_template_shows_its_family():
    assert isinstance(tool_format(HERMES), HermesFormat)
    assert isinstance(tool_format(LLAMA), Llama3Format)
    assert tool_format("{{ messages }}") is tool_format(None) is None


def test_calls_are_found_beside_text():
    call = '<tool_call>\n{"name": "look", "arguments": {"at": "é"}}\n</tool_call>'
    text = f'Let me see.\n{call}\n<tool_call>{{"name": 3}}</tool_call>'
    answer = HermesFormat().read(text, ["look"])
    assert answer.content == "Let me see."
    assert [(call.name, json.loads(call.arguments)) for call in answer.calls] == [("look", {"at": "é"})]


@pytest.mark.parametrize("text", ["Hello", "<tool_call>no</tool_call>", '{"name": "other", "arguments": {}}', "["])
def test_what_is_no_call_stays_text(text):
    for known in (HermesFormat(), Llama3Format()):
        answer = known.read(text, ["look"])
        assert (answer.content, list(answer.calls)) == (text, [])


def test_llama_calls_are_the_whole_answer():
    answer = Llama3Format().read('{"name": "look", "parameters": {"x": 1}}', ["look"])
    assert (answer.content, answer.calls[0].arguments) == ("", '{"x": 1}')


def test_half_a_character_in_arguments_can_be_sent():
    call = r'{"name": "look", "parameters": {"a\ud83d": ["é\udc00", "\ud83d\ude00"]}}'
    arguments = Llama3Format().read(call, ["look"]).calls[0].arguments
    assert arguments.encode().decode() == r'{"a\ud83d": ["é\udc00", "😀"]}'
    assert json.loads(arguments) == json.loads(call)["parameters"]


def test_the_choice_decides_what_may_be_called():
    assert tool_use(request(), HERMES) is None
    assert tool_use(request(**TOOLS, tool_choice="none"), HERMES) is None
    assert tool_use(request(**TOOLS), HERMES).names == ["look", "count"]
    assert not tool_use(request(**TOOLS, tool_choice="auto"), HERMES).must_call
    assert tool_use(request(**TOOLS, tool_choice="required"), HERMES).must_call
    named = {"type": "function", "function": {"name": "count"}}
    assert tool_use(request(**TOOLS, tool_choice=named), HERMES).names == ["count"]


@pytest.mark.parametrize(
    ("fields", "template", "param"),
    [
        (TOOLS, "{{ messages }}", "tools"),
        ({"tool_choice": "required"}, HERMES, "tool_choice"),
        (TOOLS | {"tool_choice": {"type": "function", "function": {"name": "x"}}}, HERMES, "tool_choice"),
        ({"messages": [{"role": "tool", "content": "x", "tool_call_id": "c"}]}, None, "tools"),
    ],
)
def test_what_can_t_be_called_is_refused(fields, template, param):
    with pytest.raises(Refusal) as refusal:
        tool_use(request(**fields), template)
    assert refusal.value.param == param


def test_arguments_in_the_history_have_to_be_json():
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{"}}
    with pytest.raises(Refusal, match="JSON object"):
        template_messages(request(messages=[{"role": "assistant", "tool_calls": [call]}]).messages)


def test_text_is_held_back_only_where_a_call_may_begin():
    held = HeldText("<tool_call>")
    assert [held.push(part) for part in ("a <b", "> <", "tool_c", "onga", " <tool_", "call>{")] == [
        "a <b", "> ", "", "<tool_conga", " ", "",
    ]  # fmt: skip
    assert held.rest() == "<tool_call>{"


CALL = '{"name": "look", "parameters": {"at": 1}}'


@pytest.mark.parametrize("template", [HERMES, LLAMA])
@pytest.mark.parametrize(
    "text",
    [
        CALL,
        f"\n {CALL} ",
        f"Sure: {CALL}",
        f"{CALL} and more",
        '{"name": "other", "parameters": {}}',
        "if (x) { return {}; }\n",
        "{",
        " \n",
        "",
        "é {",
        f"<tool_call>{CALL.replace('parameters', 'arguments')}</tool_call>",
        "a <tool_call>{",
    ],
)
def test_a_streamed_answer_is_the_same_as_a_whole_one(template, text):
    use = tool_use(request(**TOOLS), template)
    whole = ChatFormat(lambda token: b"", tools=use).whole(0, text, (), "stop")
    form = ChatFormat(lambda token: b"", tools=use)
    sent = "".join(form.sendable(0, character) for character in text)
    ending = form.ending(0, "stop")
    calls = [call["function"] for call in ending["delta"].get("tool_calls", ())]
    assert sent + ending["delta"].get("content", "") == (whole["message"]["content"] or "")
    assert calls == [call["function"] for call in whole["message"].get("tool_calls", ())]
    assert ending["finish_reason"] == whole["finish_reason"]


def test_only_the_beginning_of_an_answer_is_held_back_where_a_call_is_all_of_it():
    held = HeldText("{", only_at_start=True)
    assert [held.push(part) for part in (" ", "\n", "int f() ", "{", "}")] == ["", "", " \nint f() ", "{", "}"]
    assert held.rest() == ""


def test_a_streamed_call_comes_with_the_end():
    form = ChatFormat(lambda token: b"", tools=tool_use(request(**TOOLS), HERMES))
    sent = form.sendable(0, 'Hm. <tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>')
    assert sent == "Hm. "
    ending = form.ending(0, "stop")
    assert ending["finish_reason"] == "tool_calls"
    assert ending["delta"]["tool_calls"][0]["function"] == {"name": "look", "arguments": "{}"}
