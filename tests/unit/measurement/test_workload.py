"""Prompts of a benchmark: the project's own, files in every format, bad files, sampling over kinds."""

from __future__ import annotations

import codecs
import json
from collections import Counter

import pytest

from slipstream.core.generator import Answer
from slipstream.core.sampling import Sampling
from slipstream.core.stats import Stats
from slipstream.core.stream import Limits
from slipstream.errors import UsageError
from slipstream.measurement.prompt_files import own_prompts, read_prompts
from slipstream.measurement.workload import Message, Prompt, run_conversation, take

KINDS = ["chat", "code-writing", "code-edit", "rewrite", "extraction", "translation", "maths", "rag"]
HUMAN_EVAL = {"task_id": "HumanEval/7", "prompt": '\n\ndef add(a, b):\n    """Adds."""\n', "entry_point": "add"}


@pytest.fixture
def write(tmp_path):
    """Writes a file: records as JSON lines, text and bytes as they are."""

    def _write(content, name="prompts.jsonl"):
        if isinstance(content, list):
            content = "\n".join(json.dumps(record) for record in content)
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return _write


def of_kinds(kinds: str) -> list[Prompt]:
    return [Prompt(f"{kind}{number}", kind, ("?",)) for number, kind in enumerate(kinds)]


# The project's own set


def test_own_prompts_cover_every_kind():
    prompts = own_prompts()
    counts = Counter(prompt.kind for prompt in prompts)
    assert list(counts) == KINDS
    assert min(counts.values()) >= 6
    assert len({prompt.id for prompt in prompts}) == len(prompts)
    assert len({prompt.turns[0] for prompt in prompts}) == len(prompts)


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_the_own_prompts_has_a_conversation_of_two_turns(kind):
    assert any(len(prompt.turns) == 2 for prompt in own_prompts() if prompt.kind == kind)


@pytest.mark.parametrize("kind", ["code-edit", "rewrite", "extraction", "rag"])
def test_own_prompts_that_work_on_material_carry_it(kind):
    for prompt in own_prompts():
        if prompt.kind == kind:
            assert len(prompt.turns[0].split()) >= 80, prompt.id


# Formats


def test_spec_bench(write):
    path = write(
        [
            {"question_id": 81, "category": "writing", "turns": ["Write.", "Again."], "reference": []},
            {"question_id": 82, "category": "rag", "turns": ["Answer."]},
        ]
    )
    assert read_prompts(path) == [Prompt("81", "writing", ("Write.", "Again.")), Prompt("82", "rag", ("Answer.",))]


def test_human_eval_is_an_instruction(write):
    (prompt,) = read_prompts(write([HUMAN_EVAL]))
    assert (prompt.id, prompt.kind, prompt.raw) == ("HumanEval/7", "code", False)
    assert prompt.turns == (
        'Complete the following Python function.\n\n```python\ndef add(a, b):\n    """Adds."""\n```',
    )


def test_a_prompt_without_a_task_is_an_ordinary_turn(write):
    first, second = read_prompts(write([{"prompt": "Hello"}, {"prompt": "Sum a list.", "task_id": 4}]))
    assert first == Prompt("line-1", "chat", ("Hello",))
    assert second == Prompt("4", "chat", ("Sum a list.",))


def test_messages_before_the_last_user_turn_are_the_opening(write):
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello."},
        {"role": "user", "content": "Bye"},
    ]
    (prompt,) = read_prompts(write([{"messages": messages}]))
    assert prompt.turns == ("Bye",)
    assert prompt.opening == (Message("system", "Be brief."), Message("user", "Hi"), Message("assistant", "Hello."))
    assert prompt.request() == messages


def test_an_answer_after_the_last_user_turn_is_left_out(write):
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello."}]
    (prompt,) = read_prompts(write([{"messages": messages}]))
    assert prompt.request() == messages[:1]


def test_the_batch_form_and_content_in_parts(write):
    parts = [{"type": "text", "text": "One."}, {"type": "text", "text": "Two."}]
    body = {"model": "m", "messages": [{"role": "developer", "content": "S"}, {"role": "user", "content": parts}]}
    (prompt,) = read_prompts(write([{"custom_id": "job-1", "method": "POST", "body": body}]))
    assert prompt == Prompt("job-1", "chat", ("One.\nTwo.",), (Message("system", "S"),))


def test_own_format_with_system_opening_and_raw(write):
    opening = [{"role": "user", "content": "2+2"}, {"role": "assistant", "content": "4"}]
    first, second = read_prompts(
        write(
            [
                {"id": "m-1", "kind": "maths", "turns": ["3+3"], "system": "Be brief.", "opening": opening},
                {"id": "t-1", "kind": "text", "turns": ["Once upon"], "raw": True},
            ]
        )
    )
    assert first.opening == (Message("system", "Be brief."), Message("user", "2+2"), Message("assistant", "4"))
    assert second.request() == "Once upon"


def test_a_json_array_and_a_single_object_over_many_lines(write):
    records = [{"turns": ["a"]}, {"messages": [{"role": "user", "content": "b, [c]"}]}]
    array = read_prompts(write(json.dumps(records, indent=2), "prompts.json"))
    assert [(prompt.id, prompt.turns) for prompt in array] == [("line-2", ("a",)), ("line-7", ("b, [c]",))]
    assert read_prompts(write(json.dumps(records[1], indent=2), "one.json"))[0].turns == ("b, [c]",)


def test_formats_may_be_mixed_and_unknown_keys_are_ignored(write):
    prompts = read_prompts(write([{"turns": ["a"], "colour": 1}, HUMAN_EVAL, {"prompt": "c", "body": "d"}]))
    assert [prompt.kind for prompt in prompts] == ["chat", "code", "chat"]


def test_text_is_a_prompt_a_line(write):
    prompts = read_prompts(write("First.\n\n  Second.  \n", "prompts.txt"))
    assert prompts == [Prompt("line-1", "text", ("First.",)), Prompt("line-3", "text", ("Second.",))]


def test_text_with_separators_is_split_there_alone(write):
    prompts = read_prompts(write("---\n\nFirst.\n\n  indented\n--- \n---\nSecond.", "prompts.md"))
    assert prompts == [
        Prompt("line-3", "text", ("First.\n\n  indented",)),
        Prompt("line-8", "text", ("Second.",)),
    ]


def test_text_is_told_by_content_or_by_its_suffix(write):
    assert read_prompts(write("Why?", "questions"))[0].turns == ("Why?",)
    assert read_prompts(write("[Note] Why?\n{x}", "prompts.txt"))[1].turns == ("{x}",)
    assert read_prompts(write([{"turns": ["Why?"]}], "questions"))[0].turns == ("Why?",)


@pytest.mark.parametrize("encode", [lambda text: codecs.BOM_UTF8 + text.encode(), lambda text: text.encode("utf-16")])
def test_byte_order_marks_and_windows_line_ends(write, encode):
    text = '{"turns": ["Größe"]}\r\n\r\n{"turns": ["b"]}\r\n'
    prompts = read_prompts(write(encode(text)))
    assert [(prompt.id, prompt.turns) for prompt in prompts] == [("line-1", ("Größe",)), ("line-3", ("b",))]


def test_unusual_line_separators_inside_a_text_do_not_split_it(write):
    path = write(json.dumps({"turns": ["a\u2028b\x85c"]}, ensure_ascii=False))
    assert read_prompts(path)[0].turns == ("a\u2028b\x85c",)


def test_an_id_that_comes_twice_gets_a_number(write):
    ids = ["a", "a#2", "a", "a", "b"]
    prompts = read_prompts(write([{"id": id_, "turns": ["?"]} for id_ in ids]))
    assert [prompt.id for prompt in prompts] == ["a", "a#2", "a#3", "a#4", "b"]


def test_a_long_file(write):
    path = write([{"id": i, "turns": ["word " * 50]} for i in range(20_000)])
    assert len(read_prompts(path)) == 20_000


# Bad files


@pytest.mark.parametrize("name", ["prompts.jsonl", "prompts.json", "prompts.txt"])
@pytest.mark.parametrize("content", ["", " \n\r\n", b"\xef\xbb\xbf"])
def test_an_empty_file_is_refused(write, name, content):
    with pytest.raises(UsageError, match="is empty, expected prompts"):
        read_prompts(write(content, name))


@pytest.mark.parametrize(("content", "name"), [("[]", "prompts.json"), ("---\n\n---\n", "prompts.txt")])
def test_a_file_without_prompts_is_refused(write, content, name):
    with pytest.raises(UsageError, match="has no prompts; expected at least one"):
        read_prompts(write(content, name))


def test_a_file_that_is_not_there_or_a_folder(tmp_path):
    with pytest.raises(UsageError, match=r"none\.jsonl can't be read: No such file"):
        read_prompts(tmp_path / "none.jsonl")
    with pytest.raises(UsageError, match="can't be read: it is a folder"):
        read_prompts(tmp_path)


GOOD = '{"turns": ["good"]}\n'


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('{"turns": ["a"', r"not valid JSON \(Expecting ',' delimiter, column 15\); expected one object per line"),
        ("hello", r"not valid JSON \(Expecting value, column 1\)"),
        ("[" * 100_000, r"not valid JSON \(nested too deeply\)"),
        ("5", "got 5, expected an object with"),
        ('{"question": "?", "answer": "!"}', "got an object with the keys question, answer, expected one of"),
        ("{}", "got an object with the keys none"),
        ('{"turns": "a"}', "turns is 'a', expected a list of one text or more"),
        ('{"turns": []}', "turns is an empty list"),
        ('{"turns": ["a", " "]}', "turn 2 is empty text, expected text"),
        ('{"turns": ["a", 3]}', "turn 2 is 3, expected text"),
        ('{"turns": ["a\\ud800"]}', r"turn 1 has an incomplete character \(\\ud800\)"),
        ('{"prompt": null}', "prompt is null, expected text"),
        ('{"turns": ["a"], "raw": "yes"}', "raw is 'yes', expected true or false"),
        ('{"turns": ["a", "b"], "raw": true}', "a raw prompt is a single text to continue"),
        ('{"messages": {}}', "messages is an object, expected a list"),
        ('{"messages": ["a"]}', "message 1 of messages is 'a', expected an object with role and content"),
        ('{"messages": [{"role": "tool", "content": "a"}]}', "has the role 'tool', expected one of system, user"),
        ('{"messages": [{"role": ["user"], "content": "a"}]}', "has the role a list, expected one of system, user"),
        ('{"messages": [{"role": "user"}]}', "message 1 of messages is null, expected text"),
        ('{"messages": [{"role": "system", "content": "a"}]}', "messages has no user message; expected at least one"),
        ('{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}', "has a part of type 'image_url'"),
    ],
)
def test_a_bad_line_is_named_with_what_was_expected(write, line, problem):
    with pytest.raises(UsageError, match=rf"prompts\.jsonl, line 3: .*{problem}"):
        read_prompts(write(GOOD + "\n" + line + "\n" + GOOD))


def test_a_bad_item_of_an_array_is_named_by_its_line(write):
    with pytest.raises(UsageError, match=r"prompts\.json, line 3: got null"):
        read_prompts(write('[\n{"turns": ["a"]},\nnull]', "prompts.json"))
    with pytest.raises(
        UsageError, match=r"prompts\.json, line 2: not valid JSON \(Expecting value\); expected an array"
    ):
        read_prompts(write('[{"turns": ["a"]},\n]', "prompts.json"))


def test_json_files_are_not_taken_for_text(write):
    with pytest.raises(UsageError, match=r"line 1: not valid JSON"):
        read_prompts(write("oops\n" + GOOD))


def test_bytes_that_are_no_text(write):
    with pytest.raises(UsageError, match=r"line 2: not UTF-8 text"):
        read_prompts(write(b"GGUF\n\xff\xfe\x00", "model.gguf"))


# Taking some of them


def test_take_goes_round_the_kinds_in_the_order_of_the_file():
    taken = take(of_kinds("aaabbc"), 5)
    assert [prompt.id for prompt in taken] == ["a0", "b3", "c5", "a1", "b4"]


def test_take_8_of_the_own_prompts_is_one_of_each_kind():
    assert [prompt.kind for prompt in take(own_prompts(), 8)] == KINDS


def test_a_smaller_limit_is_the_beginning_of_a_larger_one():
    prompts = own_prompts()
    everything = take(prompts)
    assert sorted(everything, key=lambda p: p.id) == sorted(prompts, key=lambda p: p.id)
    assert all(take(prompts, limit) == everything[:limit] for limit in (1, 5, 8, 30, 1000))


def test_take_of_nothing_and_a_limit_that_makes_no_sense():
    assert take([], 3) == []
    assert take(of_kinds("ab"), 0) == take(of_kinds("ab"))
    with pytest.raises(UsageError, match="the limit of prompts is -1; expected 1 or more, or 0 for all"):
        take(of_kinds("ab"), -1)


# Running them


class Echo:
    """Keeps what it is asked, and numbers its answers."""

    label = "echo"

    def __init__(self) -> None:
        self.requests = []

    def answer(self, prompt, sampling, limits) -> Answer:
        self.requests.append(prompt)
        return Answer(f"answer {len(self.requests)}", (), "stop", Stats())

    def forget_prompts(self) -> None: ...

    def forget_learned(self) -> None: ...


def test_answers_are_fed_back_turn_by_turn():
    echo = Echo()
    prompt = Prompt("x", "chat", ("one", "two"), (Message("system", "S"),))
    answers = run_conversation(echo, prompt, Sampling(), Limits(8))
    assert [answer.text for answer in answers] == ["answer 1", "answer 2"]
    system, one = {"role": "system", "content": "S"}, {"role": "user", "content": "one"}
    given = {"role": "assistant", "content": "answer 1"}
    assert echo.requests == [[system, one], [system, one, given, {"role": "user", "content": "two"}]]


def test_a_raw_prompt_is_asked_as_text():
    echo = Echo()
    run_conversation(echo, Prompt("x", "code", ("def f():",), raw=True), Sampling(), Limits(8))
    assert echo.requests == ["def f():"]


def test_more_answers_than_turns():
    with pytest.raises(ValueError, match=r"prompt x has 1 turn\(s\)"):
        Prompt("x", "chat", ("one",)).request(["done"])
