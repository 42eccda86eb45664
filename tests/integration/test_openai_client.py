"""The official `openai` package against the server, on the built-in model."""

from __future__ import annotations

import copy
import json
import threading
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import jsonschema
import openai
import pytest
from pydantic import BaseModel, Field

import slipstream
from served import Served, eventually, served

pytestmark = pytest.mark.real_model

KEY = "test-key-123"
QUESTION = [{"role": "user", "content": "List the days of the week, then list them again."}]
OFF = {"speculation": {"enabled": False}}
TEMPLATE_WITH_TOOLS = (
    "{% if tools %}<|im_start|>system\nCall a tool like <tool_call>{{ tools | tojson }}</tool_call><|im_end|>\n"
    "{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}<|im_end|>\n"
    "{% endfor %}<|im_start|>assistant\n"
)
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 20}, "unit": {"enum": ["C", "F"]}},
            "required": ["city", "unit"],
            "additionalProperties": False,
        },
    },
}
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 16},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def server(smollm2: slipstream.LoadedModel) -> Iterator[Served]:
    tokenizer = copy.copy(smollm2.tokenizer)
    tokenizer.chat_template = TEMPLATE_WITH_TOOLS
    engine = slipstream.load(slipstream.LoadedModel(smollm2.model, tokenizer), max_streams=4)
    with served(engine, tokenizer, api_keys=(KEY,), max_streams=4, max_queue=4) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Served) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0, timeout=60)


def chat(client: openai.OpenAI, **more: Any) -> Any:
    asked = {"model": "smollm2-135m", "messages": QUESTION, "max_tokens": 24, "temperature": 0} | more
    return client.chat.completions.create(**asked)


def test_models(client):
    assert [model.id for model in client.models.list()] == ["smollm2-135m"]
    assert client.models.retrieve("smollm2-135m").owned_by == "slipstream"


def test_chat_and_its_figures(client):
    answer = chat(client)
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].message.content
    assert answer.usage.completion_tokens <= 24
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert set(answer.slipstream) >= {"drafted", "accepted", "rounds", "mean_accepted_length", "policy"}
    again = chat(client)
    assert again.usage.prompt_tokens_details.cached_tokens > 0
    assert again.choices[0].message.content == answer.choices[0].message.content


@pytest.mark.parametrize("temperature", [0, 0.9])
def test_a_seed_gives_the_same_text_with_and_without_speculation(client, temperature):
    settings = {"temperature": temperature, "seed": 7, "max_tokens": 40}
    plain = chat(client, extra_body=OFF, **settings)
    assert plain.slipstream["drafted"] == 0
    drafts = {"drafter": "ngram", "max_draft": 4}
    for speculation in ({"enabled": True}, drafts):
        answer = chat(client, extra_body={"speculation": speculation}, **settings)
        assert answer.choices[0].message.content == plain.choices[0].message.content


def test_streaming_has_the_same_text_and_usage(client):
    whole = chat(client)
    chunks = list(chat(client, stream=True, stream_options={"include_usage": True}))
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == whole.choices[0].finish_reason
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert chunks[-1].slipstream["rounds"] > 0


def test_details_name_the_drafter_of_each_token(client):
    asked = {"speculation": {"drafter": "ngram", "details": True}}
    chunks = list(chat(client, stream=True, max_tokens=60, extra_body=asked))
    parts = [c for c in chunks if "tokens" in (c.model_extra.get("slipstream") or {})]
    assert all("".join(t["text"] for t in c.slipstream["tokens"]) == c.choices[0].delta.content for c in parts)
    tokens = [token for c in parts for token in c.slipstream["tokens"]]
    assert {token["drafter"] for token in tokens} <= {None, "ngram"}
    drafted = [token for token in tokens if token["drafter"]]
    assert len(drafted) == chunks[-1].slipstream["accepted"]
    assert all(0 <= token["chance"] <= 1 for token in drafted)


def test_stop_strings_end_the_text_before_them(client):
    text = chat(client, max_tokens=40).choices[0].message.content
    stop = text[10:14]
    answer = chat(client, max_tokens=40, stop=[stop, "never said"])
    assert answer.choices[0].message.content == text[: text.index(stop)]
    assert answer.choices[0].finish_reason == "stop"


def test_two_choices_are_those_of_two_seeds(client):
    both = chat(client, n=2, temperature=1, seed=5)
    second = chat(client, temperature=1, seed=6)
    assert [choice.index for choice in both.choices] == [0, 1]
    assert both.choices[1].message.content == second.choices[0].message.content
    assert both.choices[0].message.content != both.choices[1].message.content


def test_logprobs(client):
    answer = chat(client, logprobs=True, top_logprobs=3, max_tokens=5)
    content = answer.choices[0].logprobs.content
    assert len(content) == answer.usage.completion_tokens
    for token in content:  # greedy: the first is the likeliest
        assert len(token.top_logprobs) == 3
        assert token.logprob == token.top_logprobs[0].logprob <= 0
        assert token.token == token.top_logprobs[0].token


def test_text_completions(client):
    settings = {"model": "smollm2-135m", "max_tokens": 6, "temperature": 0}
    start = "One two three"
    answer = client.completions.create(prompt=["The capital of France is", start], echo=True, **settings)
    assert answer.choices[0].text.startswith("The capital of France is")
    assert answer.choices[1].text.startswith(start)
    scored = client.completions.create(prompt=start, logprobs=2, **settings)
    logprobs = scored.choices[0].logprobs
    assert start + "".join(logprobs.tokens) == answer.choices[1].text
    assert len(logprobs.top_logprobs) == len(logprobs.tokens) == 6
    ids = [[1, 2, 3], [4, 5]]
    both = client.completions.create(prompt=ids, **settings).choices
    assert [one.text for one in both] == [client.completions.create(prompt=p, **settings).choices[0].text for p in ids]
    chunks = client.completions.create(prompt=start, stream=True, **settings)
    assert start + "".join(chunk.choices[0].text for chunk in chunks) == answer.choices[1].text


def test_bias_forces_a_token(client):
    answer = chat(client, logit_bias={"198": 100}, max_tokens=3)
    assert answer.choices[0].message.content == "\n\n\n"


@pytest.mark.parametrize("temperature", [0, 1.0])
def test_json_schema_is_kept_with_the_same_text_and_fewer_rounds(client, temperature):
    wanted = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}}
    settings = {"response_format": wanted, "max_tokens": 60, "temperature": temperature, "seed": 3}
    plain = chat(client, extra_body=OFF, **settings)
    jsonschema.validate(json.loads(plain.choices[0].message.content), PERSON)
    fast = chat(client, **settings)
    assert fast.choices[0].message.content == plain.choices[0].message.content
    assert fast.slipstream["rounds"] < plain.slipstream["rounds"]


def test_json_object(client):
    answer = chat(client, response_format={"type": "json_object"}, max_tokens=200, seed=1)
    if answer.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(answer.choices[0].message.content), dict)


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}])
def test_tools_are_called(client, choice):
    settings = {"tools": [WEATHER], "tool_choice": choice, "parallel_tool_calls": False, "max_tokens": 100}
    answer = chat(client, **settings)
    assert answer.choices[0].finish_reason == "tool_calls"
    call = answer.choices[0].message.tool_calls[0]
    jsonschema.validate(json.loads(call.function.arguments), WEATHER["function"]["parameters"])
    parts = [c.choices[0].delta for c in chat(client, stream=True, **settings)]
    assert "".join(part.content or "" for part in parts) == ""
    (streamed,) = [call for part in parts for call in part.tool_calls or []]
    assert streamed.function.arguments == call.function.arguments
    history = [
        *QUESTION,
        answer.choices[0].message.model_dump(include={"role", "content", "tool_calls"}),
        {"role": "tool", "tool_call_id": call.id, "content": "18 degrees"},
    ]
    assert chat(client, messages=history, tools=[WEATHER], max_tokens=4).choices[0].message.role == "assistant"


class Place(BaseModel):
    city: Annotated[str, Field(max_length=20)]
    unit: Literal["C", "F"]


class Weather(BaseModel):
    places: Annotated[list[Place], Field(min_length=1, max_length=2)]


@pytest.mark.parametrize("choice", ["auto", "required"])
def test_a_tool_made_of_a_pydantic_model(client, choice):
    """Its schema has references to inner models."""
    tool = openai.pydantic_function_tool(Weather)
    assert "$defs" in tool["function"]["parameters"]
    answer = chat(client, tools=[tool], tool_choice=choice, parallel_tool_calls=False, max_tokens=120)
    for call in answer.choices[0].message.tool_calls or []:
        Weather.model_validate_json(call.function.arguments)
    assert answer.choices[0].finish_reason == "tool_calls" or choice == "auto"


def test_errors_name_the_field(client, server):
    with pytest.raises(openai.BadRequestError) as error:
        chat(client, extra_body={"frobnicate": 1})
    assert error.value.param == "frobnicate"
    with pytest.raises(openai.BadRequestError) as error:
        chat(client, temperature=9)
    assert error.value.param == "temperature"
    with pytest.raises(openai.NotFoundError):
        chat(client, model="gpt-5")
    with pytest.raises(openai.BadRequestError) as error:
        chat(client, messages=[{"role": "user", "content": "word " * 9000}])
    assert error.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError) as error:
        chat(client, extra_body={"speculation": {"drafter": "/etc/passwd"}})
    assert error.value.param == "speculation.drafter"
    stranger = openai.OpenAI(base_url=f"{server.url}/v1", api_key="another-key", max_retries=0)
    with pytest.raises(openai.AuthenticationError):
        chat(stranger)


def test_a_full_queue_is_429_and_recovers(client, server):
    endless = {"stream": True, "max_tokens": 2000, "extra_body": {"ignore_eos": True}}
    streams = [chat(client, **endless) for _ in range(4)]
    waiting = [threading.Thread(target=lambda: chat(client, **endless).close()) for _ in range(4)]
    for thread in waiting:
        thread.start()
    assert eventually(lambda: server.service.scheduler.num_queued == 4)
    with pytest.raises(openai.RateLimitError) as error:
        chat(client)
    assert int(error.value.response.headers["retry-after"]) > 0
    for stream in streams:
        stream.close()
    for thread in waiting:
        thread.join()
    assert eventually(lambda: server.num_active == 0 and server.service.scheduler.num_queued == 0)
    assert chat(client).choices[0].message.content


def test_a_client_that_leaves_or_times_out_frees_its_place(client, server):
    stream = chat(client, stream=True, max_tokens=2000, extra_body={"ignore_eos": True})
    next(iter(stream))
    assert server.num_active == 1
    stream.close()
    assert eventually(lambda: server.num_active == 0)
    with pytest.raises(openai.APITimeoutError):
        chat(client, max_tokens=2000, timeout=0.5, extra_body={"ignore_eos": True})
    assert eventually(lambda: server.num_active == 0)
    assert server.service.engine.num_active == server.service.engine.num_waiting == 0
