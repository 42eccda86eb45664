from __future__ import annotations

import json

import pytest

from slipstream.server import requests
from slipstream.server.refusals import Refusal
from slipstream.server.requests import ChatRequest, CompletionRequest, parse

MESSAGES = [{"role": "user", "content": "Hello"}]
IMAGE = {"type": "image_url", "image_url": {"url": "x"}}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"stop": 5}, "stop: Input should be a valid string or a valid array"),
        ({"stop": ["x"] * 17}, "stop: List should have at most 16 items after validation, not 17"),
        ({"stop": ["x", 5]}, "stop.1: Input should be a valid string"),
        ({"stop": "x" * 300}, "stop: String should have at most 256 characters"),
        ({"stop": ""}, "stop: String should have at least 1 character"),
        ({"stop": ["x", ""]}, "stop.1: String should have at least 1 character"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages.0.content: Input should be a valid string or a"),
        ({"messages": [{"role": "user", "content": [IMAGE]}]}, "messages.0.content.0.type: Input should be 'text'"),
        ({"messages": [*MESSAGES, {"content": "x"}]}, "messages.1.role: this field is required"),
        ({"tool_choice": "maybe"}, "tool_choice: Input should be 'none', 'auto' or 'required' or an object"),
        ({"tool_choice": {"type": "function"}}, "tool_choice.function: this field is required"),
        ({"logit_bias": {"x": 1}}, "logit_bias.x: String should match"),
        ({"temperature": 9, "stop": 5}, "stop: Input"),
        ({"x": 1}, "x: this field is unknown"),
    ],
)
def test_what_is_wrong_in_a_chat_is_told_by_its_name(change, message):
    check(ChatRequest, {"messages": MESSAGES} | change, message)


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        (5, "prompt: Input should be a valid string or a valid array"),
        ([], "prompt: List should have at least 1 item after validation, not 0"),
        ([[1], [2, -1]], "prompt.1.1: Input should be greater than or equal to 0"),
        ([[1], []], "prompt.1: List should have at least 1 item"),
        ([3, -1], "prompt.1: Input should be greater than or equal to 0"),
        (["a", 5], "prompt.1: Input should be a valid string"),
    ],
)
def test_what_is_wrong_with_a_prompt_is_told_by_its_name(prompt, message):
    check(CompletionRequest, {"prompt": prompt}, message)


MANY = 200_000


@pytest.mark.parametrize(
    ("kind", "change", "param"),
    [
        (CompletionRequest, {"prompt": [-1] * MANY}, "prompt.0"),
        (CompletionRequest, {"prompt": [3, *["x"] * MANY]}, "prompt.1"),
        (CompletionRequest, {"prompt": [[]] * MANY}, "prompt.0"),
        (CompletionRequest, {"prompt": [[2, -1]] * MANY}, "prompt.0.1"),
        (ChatRequest, {"messages": [{"role": "user", "content": [5] * MANY}]}, "messages.0.content.0"),
        (ChatRequest, {"messages": [5] * MANY}, "messages.0"),
        (ChatRequest, {"stop": [""] * MANY}, "stop.0"),
        (ChatRequest, {"tools": [5] * MANY}, "tools.0"),
        (ChatRequest, {f"x{i}": 1 for i in range(MANY)}, None),
        (ChatRequest, {"logit_bias": dict.fromkeys(map(str, range(-MANY, 0)), "x")}, None),
    ],
)
def test_errors_are_not_collected_for_each_of_many_items(monkeypatch, kind, change, param):
    """Each takes some microseconds, in which no other request is served."""
    looked_at = []
    refusal = requests._refusal
    monkeypatch.setattr(requests, "_refusal", lambda errors, body: looked_at.extend(errors) or refusal(errors, body))
    body = {"messages": MESSAGES} if kind is ChatRequest else {}
    with pytest.raises(Refusal) as refused:
        parse(kind, json.dumps(body | change).encode())
    assert (refused.value.status, refused.value.param) == (400, param)
    assert len(looked_at) < 10


def check(kind, body, message):
    with pytest.raises(Refusal) as refusal:
        parse(kind, json.dumps(body).encode())
    assert str(refusal.value).startswith(message)
    assert refusal.value.param == message.partition(":")[0]
