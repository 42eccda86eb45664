"""The promise, on a real model: whatever drafts, however much, the text is the one plain decoding gives."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

import pytest

import slipstream
from commands import run_apart
from contract import tiny_models
from fakes import Crashing, FakeDrafter, Scripted
from slipstream import Limits, LoadedModel, Sampling
from slipstream.core.engine import Engine, Generation
from slipstream.core.stream import Stream
from slipstream.core.tree import ROOT, DraftTree
from slipstream.drafters import DraftSources, make_drafter
from slipstream.drafters.model import DraftModelDrafter

pytestmark = pytest.mark.real_model

NUM_TOKENS = 20
PROMPTS = {
    "rewrite": "Rewrite this text and fix only the spelling:\n\nThe quick brown fox jumsp over the lazy dog. "
    "The lazy dog does not mind. The quick brown fox jumps over the lazy dog again.",
    "code": "Write a Python class Point with x, y and z, a method scale that multiplies all three, and a method "
    "shift that adds to all three. Answer with code only.",
}
SAMPLINGS = {
    "greedy": Sampling(),
    "sampled": Sampling(temperature=0.8, seed=7),
    "top-p": Sampling(temperature=0.8, top_p=0.9, seed=3),
    "penalties": Sampling(temperature=0.8, seed=5, repetition_penalty=1.1, presence_penalty=0.2, frequency_penalty=0.1),
}
# One stream each, decoded together: it is as lossless as one by one (tested below), and four times as quick.
CASES = [("rewrite", "greedy"), ("code", "sampled"), ("rewrite", "top-p"), ("code", "penalties")]
SPECS = [
    "ngram",
    "suffix",
    "suffix(width=3)",
    "model",
    "model(n_parallel=3)",
    "early-exit",
    "chained:suffix,early-exit",
    "translate",
]

Texts = Mapping[tuple[str, str], list[int]]


def start(engine: Engine, prompt: str, sampling: str) -> Generation:
    messages = [{"role": "user", "content": PROMPTS[prompt]}]
    return engine.generate(messages, SAMPLINGS[sampling], Limits(NUM_TOKENS, ignore_eos=True))


@pytest.fixture(scope="module")
def plain(smollm2: LoadedModel) -> Texts:
    """Each case decoded alone and without a drafter."""
    engine = slipstream.load(smollm2, drafter="none")
    return {case: start(engine, *case).result().tokens for case in CASES}


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    """A tiny random model with a vocabulary of single characters."""
    model = tiny_models.make_model("llama2-mha", max_position_embeddings=2048)
    return slipstream.load_model(tiny_models.save_folder(model, tmp_path_factory.mktemp("stranger")))


@pytest.fixture(autouse=True)
def all_places_are_returned(smollm2: LoadedModel) -> Iterator[None]:
    yield
    assert smollm2.model.num_open == 0  # type: ignore[attr-defined]


def check(engine: Engine, plain: Texts, cases: list[tuple[str, str]] = CASES) -> None:
    answers = {case: start(engine, *case) for case in cases}
    for case, answer in answers.items():
        assert answer.result().tokens == plain[case], case
        assert answer.stats.drafter_error is None
        assert answer.stats.num_tokens == NUM_TOKENS
        if answer.stats.num_accepted:
            assert answer.stats.target_forwards < NUM_TOKENS
        else:
            assert answer.stats.target_forwards == NUM_TOKENS


@pytest.mark.parametrize("policy", ["auto", "fixed(4)"])
@pytest.mark.parametrize("spec", SPECS)
def test_the_text_is_that_of_plain_decoding(smollm2: LoadedModel, plain: Texts, spec: str, policy: str) -> None:
    engine = slipstream.load(smollm2, draft=smollm2, drafter=spec, policy=policy)
    check(engine, plain)
    if policy == "fixed(4)":
        assert engine.stats.num_drafted > 0
    if policy == "fixed(4)" and spec == "model":  # the target drafts for itself
        assert engine.stats.acceptance_rate > 0.9


@pytest.mark.parametrize("spec", ["translate", "translate(min_overlap=0)"])
def test_a_draft_with_another_vocabulary_changes_nothing(
    smollm2: LoadedModel, stranger: LoadedModel, plain: Texts, spec: str
) -> None:
    engine = slipstream.load(smollm2, draft=stranger, drafter=spec, policy="fixed(4)")
    check(engine, plain, CASES[:2])
    assert engine.stats.num_drafted > 0
    assert stranger.model.num_open == 0  # type: ignore[attr-defined]


# -- drafters that know the answer, or nothing, or break ----------------------------------------------------------


def known(plain: list[int], stream: Stream, budget: int) -> list[int]:
    return plain[stream.num_answer_tokens :][:budget]


def shifted(plain: list[int], stream: Stream, budget: int) -> list[int]:
    return [(token + 1) % 49152 for token in known(plain, stream, budget)]


@pytest.mark.parametrize("case", [CASES[0], CASES[3]])
def test_a_drafter_that_is_always_right_saves_forwards(
    smollm2: LoadedModel, plain: Texts, case: tuple[str, str]
) -> None:
    right = Scripted(script=lambda s, n: DraftTree.chain(known(plain[case], s, n)))
    engine = slipstream.load(smollm2, drafter=right, policy="fixed(7)")
    answer = start(engine, *case).result()
    assert answer.tokens == plain[case]
    assert answer.stats.acceptance_rate == 1.0
    assert answer.stats.target_forwards <= 1 + NUM_TOKENS // 8 + 1


@pytest.mark.parametrize("case", [CASES[0], CASES[3]])
def test_a_drafter_that_is_always_wrong_changes_nothing(
    smollm2: LoadedModel, plain: Texts, case: tuple[str, str]
) -> None:
    wrong = Scripted(script=lambda s, n: DraftTree.chain(shifted(plain[case], s, n)))
    engine = slipstream.load(smollm2, drafter=wrong, policy="fixed(3)")
    answer = start(engine, *case).result()
    assert answer.tokens == plain[case]
    assert answer.stats.num_accepted == 0
    assert answer.stats.num_drafted > NUM_TOKENS
    assert answer.stats.target_forwards == NUM_TOKENS


def test_the_right_branch_of_a_tree_is_found_among_wrong_ones(smollm2: LoadedModel, plain: Texts) -> None:
    case = CASES[1]

    def bushy(stream: Stream, budget: int) -> DraftTree:
        """A wrong token and a right one at each depth, the right one last."""
        right, wrong = known(plain[case], stream, budget // 2), shifted(plain[case], stream, budget // 2)
        tokens = [token for pair in zip(wrong, right, strict=True) for token in pair]
        parents = [ROOT if i < 2 else (i // 2) * 2 - 1 for i in range(len(tokens))]
        return DraftTree(tuple(tokens), tuple(parents))

    engine = slipstream.load(smollm2, drafter=Scripted(script=bushy), policy="fixed(8)")
    answer = start(engine, *case).result()
    assert answer.tokens == plain[case]
    assert 2 * answer.stats.num_accepted == answer.stats.num_drafted
    assert answer.stats.target_forwards < NUM_TOKENS // 2


@pytest.mark.parametrize("method", ["begin", "propose", "observe", "end"])
def test_a_drafter_that_crashes_changes_nothing(smollm2: LoadedModel, plain: Texts, method: str) -> None:
    case = CASES[1]
    inner = Scripted(script=lambda s, n: DraftTree.chain(known(plain[case], s, n)))
    crashing = Crashing(inner, method, nth=1 if method in ("begin", "end") else 3)
    engine = slipstream.load(smollm2, drafter=crashing, policy="fixed(2)")
    answer = start(engine, *case).result()
    assert answer.tokens == plain[case]
    assert (answer.stats.drafter_error is None) == (method == "end")


def test_an_answer_that_is_left_early_gives_its_places_back(smollm2: LoadedModel) -> None:
    engine = slipstream.load(smollm2, draft=smollm2, drafter="model", policy="fixed(4)")
    for count, _ in enumerate(start(engine, *CASES[0])):
        if count == 5:
            break
    assert engine.num_active == 0


# -- many streams -------------------------------------------------------------------------------------------------

TOPICS = ["the sea", "a red bicycle", "prime numbers", "an old clock", "tea", "the moon", "a quiet library", "ants"]


def topic_messages(topic: str) -> list[dict[str, str]]:
    padding = "Please be kind and precise. " * TOPICS.index(topic)
    return [{"role": "user", "content": f"{padding}Tell me about {topic}."}]


def test_32_streams_with_mixed_drafters_have_the_text_each_has_alone(smollm2: LoadedModel) -> None:
    """Prompts of 8 lengths, answers of 4, five drafters, four ways to sample."""
    samplings = list(SAMPLINGS.values())
    alone_engine = slipstream.load(smollm2, drafter="none")
    alone = {
        topic: alone_engine.generate(
            topic_messages(topic), samplings[i % 4], Limits(20, ignore_eos=True)
        ).result().tokens
        for i, topic in enumerate(TOPICS)
    }  # fmt: skip
    exit_model = smollm2.model.first_layers(5)  # type: ignore[attr-defined]
    sources = DraftSources(smollm2.model, smollm2.tokenizer, smollm2.model, draft_texts=smollm2.tokenizer)
    drafters = [
        make_drafter("ngram", sources),
        make_drafter("suffix(width=2)", sources),
        DraftModelDrafter(exit_model, name="early-exit"),
        make_drafter("model(n_parallel=2)", sources),
        FakeDrafter(),
    ]
    engine = slipstream.load(smollm2, drafter="none", policy="fixed(3)")
    answers: list[tuple[str, int, Generation]] = []
    for number in range(32):
        topic, count = TOPICS[number % 8], (3, 8, 13, 20)[number // 8]
        limits = Limits(count, ignore_eos=True)
        sampling = samplings[number % 8 % 4]
        answers.append(
            (topic, count, engine.generate(topic_messages(topic), sampling, limits, drafter=drafters[number % 5]))
        )
    for topic, count, answer in answers:
        assert answer.result().tokens == alone[topic][:count], (topic, count)
        assert answer.stats.drafter_error is None
    assert engine.stats.num_accepted > 0
    assert engine.num_active == engine.num_waiting == 0
    assert exit_model.num_open == 0


def test_more_streams_than_the_engine_takes_wait_for_their_turn(smollm2: LoadedModel, plain: Texts) -> None:
    engine = slipstream.load(smollm2, drafter="suffix", max_streams=2)
    check(engine, plain)


def test_a_prompt_that_is_read_in_pieces_beside_a_running_stream_changes_neither(
    smollm2: LoadedModel, plain: Texts
) -> None:
    engine = slipstream.load(smollm2, drafter="suffix", policy="fixed(4)")
    running = start(engine, *CASES[0])
    for _ in range(4):
        engine.step()
    long_prompt = smollm2.tokenizer.encode("One step after another. " * 56)  # more than one chunk
    assert len(long_prompt) > engine.target.info.max_rows // 2
    late = engine.generate(long_prompt, limits=Limits(6, ignore_eos=True)).result()
    assert running.result().tokens == plain[CASES[0]]
    alone = slipstream.load(smollm2, drafter="none").generate(long_prompt, limits=Limits(6, ignore_eos=True))
    assert late.tokens == alone.result().tokens


def test_the_text_does_not_depend_on_the_number_of_threads(plain: Texts) -> None:
    case = ["--model", "smollm2-135m", "--max-tokens", str(NUM_TOKENS), "--ignore-eos", "--json", PROMPTS["rewrite"]]
    for threads in ("1", "3"):
        result = run_apart("generate", "--threads", threads, *case)
        assert json.loads(result.stdout)["tokens"] == plain["rewrite", "greedy"], result.stderr
