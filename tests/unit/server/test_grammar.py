from __future__ import annotations

import json

import numpy as np
import pytest

from slipstream.core.tree import EMPTY_TREE, DraftTree
from slipstream.models import open_checkpoint
from slipstream.models.text.tokenizer import Tokenizer
from slipstream.server.grammar import GrammarError, Grammars
from slipstream.server.refusals import Refusal
from slipstream.server.requests import FunctionSpec, Tool
from slipstream.server.tool_formats import HermesFormat, Llama3Format

pytestmark = pytest.mark.real_model
VOCAB = 49_200  # more than the tokenizer has: rows that pad the vocabulary
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "ok": {"type": "boolean"}},
    "required": ["name", "ok"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return open_checkpoint("smollm2-135m").tokenizer


@pytest.fixture(scope="module")
def grammars(tokenizer: Tokenizer) -> Grammars:
    return Grammars(tokenizer, VOCAB)


def allowed(constraint, path=()) -> set[int]:
    return set(np.flatnonzero(np.isfinite(constraint.restrict(np.zeros(VOCAB, np.float32), path))).tolist())


def test_masks_follow_the_answer_and_the_draft(grammars, tokenizer):
    constraint = grammars.for_schema(SCHEMA, "schema")
    start, value = tokenizer.encode('{"name": "'), tokenizer.encode('", "ok": ')
    tree = DraftTree.chain(start)
    constraint.prepare([], tree)
    assert start[0] in allowed(constraint)
    assert all(start[i] in allowed(constraint, start[:i]) for i in range(len(start)))
    assert len(allowed(constraint, start)) > 1000  # inside a string nearly everything may follow
    constraint.prepare([*start, *tokenizer.encode("Ann"), *value], EMPTY_TREE)
    said = {tokenizer.decode([token]) for token in allowed(constraint)}
    assert {"true", "false"} <= said
    assert all("true".startswith(text) or "false".startswith(text) for text in said)


def test_the_end_is_allowed_where_the_answer_is_complete(grammars, tokenizer):
    constraint = grammars.for_schema(SCHEMA, "schema")
    constraint.prepare(tokenizer.encode('{"name": "Ann", "ok": true}'), EMPTY_TREE)
    assert allowed(constraint) == set(tokenizer.eos_ids)


def test_forced_tokens_are_known_before_the_forward(grammars, tokenizer):
    constraint = grammars.for_schema(SCHEMA, "schema")
    assert tokenizer.decode(constraint.forced([])) == '{"name":'
    assert tokenizer.decode(constraint.forced(tokenizer.encode('{"name": "Ann",'))) == ' "ok":'
    assert constraint.forced(tokenizer.encode('{"name": "Ann", "ok": true}')) == []
    assert tokenizer.decode(constraint.forced([])) == '{"name":'  # it goes back too


def test_a_draft_that_the_grammar_forbids_has_no_masks_below_it(grammars, tokenizer):
    constraint = grammars.for_schema(SCHEMA, "schema")
    wrong = tokenizer.encode("Hello")
    constraint.prepare([], DraftTree.chain(wrong))
    assert wrong[0] not in allowed(constraint)
    with pytest.raises(GrammarError):
        constraint.restrict(np.zeros(VOCAB, np.float32), wrong)


def test_constraints_of_one_schema_do_not_share_their_place(grammars, tokenizer):
    one, other = (grammars.for_schema(SCHEMA, "schema") for _ in range(2))
    one.prepare(tokenizer.encode('{"name": "'), EMPTY_TREE)
    other.prepare([], EMPTY_TREE)
    assert len(allowed(one)) > len(allowed(other))


@pytest.mark.parametrize(
    "schema", [{"type": "nonsense"}, {"$ref": "file:///etc/passwd"}, {"type": "string", "pattern": "(?<=a)b"}]
)
def test_what_no_grammar_can_be_is_refused(grammars, schema):
    with pytest.raises(Refusal) as refusal:
        grammars.for_schema(schema, "schema")
    assert (refusal.value.status, refusal.value.param) == (400, "schema")


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "pattern": "^(a{1,1000}){1,1000}$"},
        {"type": "string", "pattern": "^(" + "|".join(f"(a|b){{{i}}}c" for i in range(1, 200)) + ")*$"},
        {"anyOf": [{"type": "array", "items": {"type": "string", "maxLength": i}} for i in range(300)]},
        {"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
        {"type": "object", "properties": {f"p{i}": {"type": "integer", "maximum": 10**i} for i in range(300)}},
    ],
    ids=["repeats", "alternatives", "union", "circle", "wide"],
)
def test_a_hostile_schema_is_refused_or_answered_soon(grammars, schema):
    """The limits of llguidance count work, so that a slow machine refuses no more than a fast one."""
    assert len(json.dumps(schema)) < 64 << 10
    try:
        constraint = grammars.for_schema(schema, "schema")
        constraint.prepare([], EMPTY_TREE)
        constraint.restrict(np.zeros(VOCAB, np.float32), ())
    except (Refusal, GrammarError):
        pass


def tool(name: str, field: str, **more) -> Tool:
    """Its parameters are a tree of `field`s, one of two words each."""
    inner = {"enum": [f"{name}1", f"{name}2"]}
    node = {"anyOf": [{"$ref": "#"}, {"type": "null"}]}
    properties = {field: {"$ref": "#/$defs/Inner"}, "next": node}
    parameters = {"type": "object", "properties": properties, "required": [field, "next"], "$defs": {"Inner": inner}}
    return Tool(type="function", function=FunctionSpec(name=name, parameters=parameters | more))


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"$schema": "https://json-schema.org/draft/2020-12/schema"},
        {"$schema": "http://json-schema.org/draft-07/schema#"},
        {"$schema": "http://json-schema.org/draft-04/schema#"},
        {"$id": "https://example.org/the-same-in-both"},
    ],
)
@pytest.mark.parametrize("form", [HermesFormat(), Llama3Format()])
def test_references_in_the_schema_of_a_tool_are_its_own(grammars, tokenizer, form, more):
    tools = [tool("f", "one", **more), tool("g", "two", **more)]
    constraint = grammars.for_lark(form.grammar(tools, must_call=True, several=False), "tools")
    arguments = "arguments" if isinstance(form, HermesFormat) else "parameters"
    before, after = ("<tool_call>\n", "\n</tool_call>") if isinstance(form, HermesFormat) else ("", "")

    def fits(name: str, field: str, word: str) -> bool:
        inner = {field: word, "next": None}
        call = {"name": name, arguments: {field: word, "next": inner}}
        constraint.prepare(tokenizer.encode(before + json.dumps(call) + after), EMPTY_TREE)
        return allowed(constraint) == set(tokenizer.eos_ids)

    assert fits("f", "one", "f2")
    assert fits("g", "two", "g1")
    for wrong in (("f", "one", "g1"), ("g", "two", "f1"), ("g", "two", "g3")):
        with pytest.raises(GrammarError):
            fits(*wrong)


def test_a_draft_that_goes_beyond_the_end_leaves_the_grammar_where_it_was(grammars, tokenizer):
    ids, end = tokenizer.encode('{"name": "a", "ok": true}'), tokenizer.eos_id
    used = grammars.for_schema(SCHEMA, "schema")
    for cut in range(len(ids) + 1):
        for tail in ([end], [end, 5], [end, end], ids[:2]):
            used.prepare(ids[:cut], DraftTree.chain([*ids[cut:], *tail]))
            fresh = grammars.for_schema(SCHEMA, "schema")
            fresh.prepare(ids[:cut], EMPTY_TREE)
            assert allowed(used) == allowed(fresh)
    used.prepare([*ids, end], EMPTY_TREE)
    assert allowed(used) == set(tokenizer.eos_ids)
