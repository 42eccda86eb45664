"""Text that a target writes itself: scripts, filters, shards, and the ids a head can draft."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import repeat
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest

from slipstream.backends import MachineOptions
from slipstream.errors import SlipstreamError, UsageError
from slipstream.loading import load
from slipstream.models import open_checkpoint
from slipstream.train import texts as train_texts
from slipstream.train.batches import Corpus, Schedule, split
from slipstream.train.chat_form import ChatForm
from slipstream.train.filters import Seen, is_worth_keeping, repeated_share
from slipstream.train.messages import Messenger
from slipstream.train.run import run_training
from slipstream.train.scripts import (
    KINDS,
    Kind,
    Writing,
    chat,
    free_text,
    given,
    long_context,
    opened,
    random_script,
    task,
    translation,
    turns,
)
from slipstream.train.settings import TrainOptions
from slipstream.train.shards import Role, Shards, Text
from slipstream.train.texts import Tally, TextMaker, refuse_split, refuse_too_few
from slipstream.train.transcripts import read_transcripts
from slipstream.train.vocabulary import choose_vocabulary
from unit.models.model_files import write_gguf


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a chat template."""
    path = tmp_path_factory.mktemp("chat") / "tiny.gguf"
    write_gguf(path, metadata={"llama.context_length": 512})
    return path


@pytest.fixture(scope="module")
def form(tiny: Path) -> ChatForm:
    return ChatForm(open_checkpoint(tiny).tokenizer)


def played(kind: Kind, form: ChatForm, write: Callable[[int], str], length: int = 400) -> list[Text]:
    """A script whose pieces are written by `write`, which gets their number; each ends with the end token."""
    script = kind(Writing(form, length, (0.0, 1.0), random.Random(3)))
    end = max(form.tokenizer.eos_ids)
    try:
        wanted, number = next(script), 0
        while True:
            assert len(wanted.prompt) + wanted.max_tokens <= length
            wanted = script.send([*form.tokenizer.encode(write(number)), end][: wanted.max_tokens])
            number += 1
    except StopIteration as over:
        return over.value


def role_text(form: ChatForm, text: Text, role: Role) -> str:
    return form.tokenizer.decode(text.tokens[text.roles == role].tolist(), show_special=True)


def test_a_question_and_its_answer(form):
    [text] = played(chat, form, lambda number: ("Why is it late?", "The fox was lazy.")[number])
    assert form.tokenizer.decode(text.tokens.tolist(), show_special=True) == (
        "<|im_start|>user\nWhy is it late?<|im_end|>\n<|im_start|>assistant\nThe fox was lazy.<|im_end|>"
    )
    assert role_text(form, text, Role.ANSWER) == "The fox was lazy.<|im_end|>"
    assert role_text(form, text, Role.USER).startswith("Why is it late?")


def test_earlier_answers_of_a_conversation_count_too(form):
    [text] = played(turns, form, "question {0} or answer {0}".format)
    assert role_text(form, text, Role.ANSWER).startswith(
        "question 1 or answer 1<|im_end|>question 3 or answer 3<|im_end|>"
    )


def test_a_question_without_an_end_is_not_answered(form):
    script = chat(Writing(form, 400, (1.0,), random.Random(0)))
    wanted = next(script)
    with pytest.raises(StopIteration) as over:
        script.send(form.tokenizer.encode("x" * wanted.max_tokens)[: wanted.max_tokens])
    assert over.value.value == []


def test_tasks_are_on_texts_of_the_targets_own(form):
    for kind, least in ((task, 2), (translation, 2), (long_context, 2)):
        made = played(kind, form, "The fox {0} jumps. The dog {0} is lazy.".format)
        assert len(made) >= least
        assert "The fox 1 jumps" in role_text(form, made[-1], Role.USER)


def test_an_opener_is_part_of_the_question(form):
    [text] = played(opened, form, " and so on {}.".format)
    asked = role_text(form, text, Role.USER)
    assert not asked.startswith(" and so on") and " and so on 0." in asked


def test_given_turns_are_answered_one_by_one(form):
    kind = given([{"role": "system", "content": "Be brief."}], ("One?", "Two?"))
    [text] = played(kind, form, "answer {}".format)
    assert role_text(form, text, Role.ANSWER) == "answer 0<|im_end|>answer 1<|im_end|>"


def test_all_kinds_of_scripts_end_within_the_length(form):
    assert sum(share for _, share in KINDS) == pytest.approx(1)
    for seed in range(30):
        kind = lambda writing, seed=seed: random_script(  # noqa: E731
            Writing(writing.form, writing.length, writing.temperatures, random.Random(seed))
        )
        for text in played(kind, form, "The quick brown fox {}".format, length=200):
            assert len(text.tokens) <= 200


def test_base_models_write_freely(form):
    [text] = played(free_text, form, "Once upon a time {}".format)
    assert text.roles[0] == Role.TEMPLATE and (text.roles[1:] == Role.ANSWER).all()


# -- filters ----------------------------------------------------------------------------------------------------------


def answer(tokens: list[int], kind: str = "chat") -> Text:
    return Text(np.array(tokens, np.int32), np.full(len(tokens), Role.ANSWER, np.uint8), kind)


def test_loops_and_short_answers_are_left_out():
    assert repeated_share(np.array([1, 2, 3] * 30, np.int32)) > 0.9
    assert repeated_share(np.arange(50, dtype=np.int32)) == 0
    assert is_worth_keeping(answer(list(range(40))))
    assert not is_worth_keeping(answer(list(range(20)) + [7, 8, 9] * 20))
    assert not is_worth_keeping(answer([1, 2, 3]))


def test_a_question_counts_once():
    seen = Seen([answer(list(range(60)))])
    assert not seen.is_new(answer([*range(48), 5, 6]))
    assert seen.is_new(answer([9, *range(48)])) and not seen.is_new(answer([9, *range(48)]))


# -- shards -----------------------------------------------------------------------------------------------------------


def test_shards_come_back_as_they_were(tmp_path):
    texts = [answer([1, 2, 3], "chat"), answer([4], "task")]
    shards = Shards(tmp_path, {"seed": 0})
    shards.write(0, texts, 2)
    shards.write(1, [], 3)
    back = list(Shards(tmp_path, {"seed": 0}).all())
    assert [(t.tokens.tolist(), t.kind) for t in back] == [([1, 2, 3], "chat"), ([4], "task")]
    assert [shards.num_conversations(number) for number in range(2)] == [2, 3]
    with pytest.raises(UsageError, match="another recipe"):
        Shards(tmp_path, {"seed": 1})
    (tmp_path / "shard-00000.npz").write_bytes(b"PK\x03\x04")
    with pytest.raises(SlipstreamError, match="remove it"):
        list(shards.all())


def test_two_runs_that_begin_at_the_same_time_do_not_mix_their_recipes(tmp_path):
    first, second = Shards(tmp_path, {"length": 48}), Shards(tmp_path, {"length": 64})
    first.write(0, [answer([1, 2, 3])], 1)
    with pytest.raises(UsageError, match=r"text of another recipe \(--length was 48, now 64\)"):
        second.write(0, [answer([4])], 1)
    assert [text.tokens.tolist() for text in Shards(tmp_path, {"length": 48}).all()] == [[1, 2, 3]]


def test_making_goes_on_with_the_same_text(learnable, tmp_path):
    options = TrainOptions(target=str(learnable), tokens=600, length=32, shard_texts=12, temperatures="1")
    checkpoint = open_checkpoint(learnable)
    engine = load(learnable, drafter="none", max_streams=6)

    def make(folder: Path, tokens: int) -> list[list[int]]:
        shards = Shards(folder, options.recipe())
        TextMaker(replace(options, tokens=tokens), checkpoint.tokenizer, lambda: engine, Messenger(), 6).make(shards)
        return [text.tokens.tolist() for text in shards.all()]

    first = make(tmp_path / "broken-off", 1)
    whole = make(tmp_path / "whole", 600)
    assert make(tmp_path / "broken-off", 600) == whole
    assert whole[: len(first)] == first and len(whole) > len(first) > 0


@pytest.mark.parametrize("is_asked", [True, False], ids=["stopped", "killed"])
def test_conversations_of_a_shard_that_is_not_full_are_kept(learnable, tmp_path, monkeypatch, is_asked):
    """The text is the same as that of a run that was not broken off, and ends with the conversation that has enough."""
    options = TrainOptions(target=str(learnable), tokens=600, length=32, temperatures="1")
    checkpoint, said = open_checkpoint(learnable), []

    def make(folder: Path, messenger: Messenger) -> list[list[int]]:
        engine = load(learnable, drafter="none", max_streams=6)
        shards = Shards(folder, options.recipe())
        TextMaker(options, checkpoint.tokenizer, lambda: engine, messenger, 6).make(shards)
        return [text.tokens.tolist() for text in shards.all()]

    def break_off(done: float, total: float, what: str) -> None:
        messenger.stop_asked = is_asked and done > 100  # less is expected of what was written than is kept
        if done > 300 and not is_asked:
            monkeypatch.setattr(Shards, "write", lambda *given: None)  # a process that is killed writes nothing more
            raise KeyboardInterrupt

    whole = make(tmp_path / "whole", Messenger())
    assert sum(map(len, whole[:-1])) < 800 and Shards(tmp_path / "whole", options.recipe()).count() == 1
    messenger = Messenger(said.append, break_off)
    if not is_asked:
        monkeypatch.setattr(train_texts, "_MAX_UNSAVED_S", 0.0)
    with pytest.raises(KeyboardInterrupt):
        make(tmp_path / "broken-off", messenger)
    monkeypatch.undo()
    begun = [text.tokens.tolist() for text in Shards(tmp_path / "broken-off", options.recipe()).all()]
    assert 0 < len(begun) < len(whole) and begun == whole[: len(begun)]
    assert not is_asked or said[-1].endswith(" answer tokens are kept; the same command goes on")
    assert make(tmp_path / "broken-off", Messenger()) == whole


def test_writing_that_ended_because_nothing_new_came_does_not_begin_again(tiny, tmp_path, monkeypatch):
    def nothing(*given: object) -> Iterator[list[Text]]:
        yield from repeat([])

    monkeypatch.setattr(train_texts, "run_scripts", nothing)
    monkeypatch.setattr(train_texts, "writer_for", lambda engine: None)
    options = TrainOptions(target=str(tiny), shard_texts=12)
    shards = Shards(tmp_path, options.recipe())
    shards.write(0, [answer(list(range(n, n + 30))) for n in range(9)], 12)
    maker = TextMaker(options, open_checkpoint(tiny).tokenizer, lambda: None, Messenger(), 6)
    maker.make(shards)
    assert shards.count() == 4
    maker.make(shards)
    assert shards.count() == 4
    (tmp_path / "shard-00003.npz").unlink()  # as if it had been broken off there
    maker.make(shards)
    assert shards.count() == 4


def test_progress_counts_what_is_kept_of_what_is_written():
    tally = Tally(1_000)
    tally.write(300)
    assert 1_000 < tally.expected < 1_300
    tally.keep(100)
    assert (tally.kept, tally.expected) == (1_100, 1_100)
    tally.write(600)
    assert tally.expected == 1_200
    tally.keep(50)  # less than expected: what was shown stays
    assert (tally.kept, tally.expected) == (1_150, 1_200)


def refused() -> NoReturn:
    raise AssertionError("nothing is left to write")


def test_prompts_of_the_user_are_answered_once_for_each_temperature(tiny, tmp_path):
    prompts = questions(tmp_path / "prompts.txt", 12)
    options = TrainOptions(target=str(tiny), prompts=prompts, tokens=10_000, length=96, temperatures="0.9,1")
    shards = Shards(tmp_path / "texts", options.recipe())
    engine = load(tiny, drafter="none")
    TextMaker(options, open_checkpoint(tiny).tokenizer, lambda: engine, Messenger(), 6).make(shards)
    assert shards.count() == 1
    texts = list(shards.all())
    assert {text.kind for text in texts} == {"given"}
    assert len(texts) > 12 >= len({text.digest() for text in texts})
    TextMaker(options, open_checkpoint(tiny).tokenizer, refused, Messenger(), 6).make(shards)  # all are used


@pytest.mark.parametrize("name", ["prompts", "transcripts"])
def test_text_of_a_file_that_has_changed_is_refused(tmp_path, name):
    path = questions(tmp_path / "file.txt", 12)
    options = TrainOptions(**{name: path})
    Shards(tmp_path / "texts", options.recipe()).write(0, [], 0)
    assert Shards(tmp_path / "texts", options.recipe()).count() == 1
    questions(path, 13)
    with pytest.raises(UsageError, match=rf"--{name} was .*file.txt \(SHA-256 \w{{12}}\), now .*use another --output"):
        Shards(tmp_path / "texts", options.recipe())


def test_transcripts_are_read(form, tmp_path):
    path = tmp_path / "talks.jsonl"
    talk = [
        ("user", "Hi?"),
        ("assistant", "Hello there."),
        ("user", "Who?"),
        ("assistant", "The fox."),
        ("user", "So?"),
    ]
    path.write_text(json.dumps({"messages": [{"role": role, "content": words} for role, words in talk]}) + "\n")
    [text] = read_transcripts(path, form)
    assert role_text(form, text, Role.ANSWER) == "Hello there.<|im_end|>The fox.<|im_end|>"
    path.write_text('{"messages": [{"role": "user", "content": "Hi"}]}\n')
    with pytest.raises(UsageError, match=r"line 1: no answer"):
        read_transcripts(path, form)
    path.write_text("not json\n")
    with pytest.raises(UsageError, match=r"line 1: not valid JSON"):
        read_transcripts(path, form)


# -- vocabulary and batches -------------------------------------------------------------------------------------------


def test_the_draft_vocabulary_has_what_is_frequent_and_what_ends():
    vocabulary = choose_vocabulary([answer([5, 5, 7, 7, 9])], 3, 20, always=[19])
    assert vocabulary.ids.tolist() == [5, 7, 19]
    assert vocabulary.coverage == pytest.approx(0.8)
    assert choose_vocabulary([answer([5])], 0, 20).is_full


def test_rows_are_those_whose_prediction_counts():
    roles = np.array([0, 0, 1, 1, 2, 2], np.uint8)
    corpus = Corpus([Text(np.arange(6, dtype=np.int32), roles, "chat")], ("chat",), 0.1)
    batch = corpus.batch([0])
    assert batch.tokens.shape == (1, 32)
    assert batch.rows.tolist() == [0, 1, 2, 3]
    assert batch.weights.tolist() == pytest.approx([0.1, 0.1, 1, 1])


def test_the_schedule_is_a_function_of_the_step():
    chance = random.Random(0)
    corpus = Corpus([answer([1] * chance.randint(3, 60)) for _ in range(50)], ("chat",), 0.0)
    schedule = Schedule(corpus, 256, seed=1)
    steps = [schedule.at(step) for step in range(40)]
    assert [Schedule(corpus, 256, seed=1).at(step) for step in (39, 3, 17)] == [steps[39], steps[3], steps[17]]
    in_epoch: list[int] = []
    for batch in steps:
        if set(batch) & set(in_epoch):
            break
        in_epoch += batch
    assert sorted(in_epoch) == list(range(50))


def test_the_split_depends_on_the_text_alone():
    texts = [answer([i, i + 1, i + 2]) for i in range(400)]
    learned, judged = split(texts, 0.1, 0.0)
    assert 10 < len(judged.texts) < 80 and len(learned.texts) + len(judged.texts) == 400
    again = split(texts[::-1], 0.1, 0.0)[1]
    assert {t.digest() for t in again.texts} == {t.digest() for t in judged.texts}


def test_all_answers_to_a_question_are_on_the_same_side_of_the_split():
    """Else what is held back would be judged after its question was learned with another answer."""
    roles = np.array([Role.USER, Role.ANSWER, Role.ANSWER], np.uint8)
    texts = [
        Text(np.array([asked, *said], np.int32), roles, "given") for asked in range(99) for said in ((1, 2), (3, 4))
    ]
    learned, judged = ({int(text.tokens[0]) for text in part.texts} for part in split(texts, 0.3, 0.0))
    assert judged and not learned & judged


# -- too few texts -------------------------------------------------------------------------------------------------


def questions(path: Path, count: int) -> Path:
    path.write_text("".join(f"What is number {n}?\n" for n in range(count)))
    return path


@pytest.mark.parametrize(
    ("count", "changes", "cause"),
    [
        (5, {}, "has 5 prompts; training needs 9: add some"),
        (29, {}, r"--held-back is 0\.03, which of 29 texts leaves none to judge by: raise it, to 0\.14"),
        (13, {}, r"--held-back is 0\.03, which of 13 texts leaves none to judge by: add more to .*prompts.txt"),
        (29, {"length": 33, "held_back": 0.2}, "--length is 33, and fewer than 9 of the 29 prompts leave 32 tokens"),
        (None, {"length": 64}, "--length is 64, but a question and an answer need 1[0-9]{2} with this template"),
    ],
)
def test_too_few_texts_are_told_before_anything_is_written(tiny, tmp_path, count, changes, cause):
    prompts = questions(tmp_path / "prompts.txt", count) if count else None
    options = TrainOptions(target=str(tiny), prompts=prompts, **{"length": 200, "streams": 2} | changes)
    with pytest.raises(UsageError, match=cause):
        run_training(options, tmp_path / "head", MachineOptions(device="cpu", threads=1), Messenger())
    assert not (tmp_path / "head.training").exists()


@pytest.mark.parametrize("source", ["prompts", "self"])
def test_too_few_usable_texts_leave_no_folder_that_would_refuse_what_is_advised(tiny, tmp_path, monkeypatch, source):
    answers = [[answer(list(range(n, n + 30)))] for n in range(12)]

    def written(given: list[list[Text]]) -> None:
        monkeypatch.setattr(train_texts, "run_scripts", lambda *_: (texts for texts in given))

    monkeypatch.setattr(train_texts, "writer_for", lambda engine: None)
    path = questions(tmp_path / "prompts.txt", 20)
    options = TrainOptions(target=str(tiny), prompts=path if source == "prompts" else None, shard_texts=4, length=200)

    def make(now: TrainOptions) -> Shards:
        shards = Shards(tmp_path / "texts", now.recipe())
        TextMaker(now, open_checkpoint(tiny).tokenizer, lambda: None, Messenger(), 6).make(shards)
        return shards

    written(answers[:8])
    with pytest.raises(SlipstreamError, match="there are only 8 usable texts"):
        make(options)
    written(answers)
    shards = make(replace(options, length=300))
    assert [len(shards.read(number)) for number in range(shards.count())] == [4, 4, 4]


@pytest.mark.parametrize("held_back", [0.001, 0.5])
def test_a_share_to_hold_back_that_is_advised_works(held_back):
    texts = [answer(list(range(n, n + 30))) for n in range(13)]
    with pytest.raises(
        UsageError, match=r"of 13 texts leaves (none to judge by: raise|\d to learn from: lower)"
    ) as told:
        refuse_split(TrainOptions(held_back=held_back), texts)
    advised = float(str(told.value).rpartition(" it to ")[2])
    refuse_split(TrainOptions(held_back=advised), texts)
    learned, judged = split(texts, advised, 0.0)
    assert judged.texts and len(learned.texts) >= 8


def test_more_text_is_advised_where_no_share_works():
    text = answer(list(range(30)))
    with pytest.raises(UsageError, match=r"of 9 texts leaves .*: more text is needed: raise --tokens"):
        refuse_split(TrainOptions(), [text] * 9)  # all on the same side


def test_enough_prompts_pass(tiny, tmp_path):
    prompts = questions(tmp_path / "prompts.txt", 29)
    options = TrainOptions(target=str(tiny), prompts=prompts, held_back=0.2)
    refuse_too_few(options, open_checkpoint(tiny).tokenizer)


def test_conversations_that_are_cut_before_their_answers_are_told(tiny, tmp_path):
    path = tmp_path / "talks.jsonl"
    talks = [[{"role": "user", "content": f"{n} " * 60}, {"role": "assistant", "content": "fox"}] for n in range(20)]
    path.write_text("".join(json.dumps({"messages": talk}) + "\n" for talk in talks))
    options = TrainOptions(target=str(tiny), transcripts=path, length=64, streams=2)
    with pytest.raises(SlipstreamError, match=r"only 0 usable texts .*: add more to .*talks.jsonl, or raise --length"):
        run_training(options, tmp_path / "head", MachineOptions(device="cpu", threads=1), Messenger())
    assert not (tmp_path / "head.training").exists()  # else the same command with another --length would be refused


@pytest.mark.parametrize(
    "wrong", [{"feature_norm": "some"}, {"steps": 0}, {"temperatures": "hot"}, {"batch_tokens": 10}, {"held_back": 0.9}]
)
def test_options_that_can_not_be_are_refused(wrong):
    with pytest.raises(UsageError):
        TrainOptions(**wrong)
