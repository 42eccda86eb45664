"""The engine on the llama.cpp backend: lossless for every drafter, many streams, and failures that say what to do."""

from __future__ import annotations

import resource
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("llama_cpp")

import slipstream
from contract import tiny_llamacpp
from fakes import FakeDrafter, Scripted
from slipstream import Limits, LoadedModel, Sampling
from slipstream.backends.llamacpp.options import LlamaCppOptions
from slipstream.backends.torch.options import TorchOptions
from slipstream.core.engine import Engine, Generation
from slipstream.core.protocols import ScoreRequest, prefill
from slipstream.core.stream import Stream
from slipstream.core.tree import EMPTY_TREE, ROOT, DraftTree
from slipstream.errors import CapacityError, ContextFullError, UsageError
from slipstream.findings import BlockedError
from slipstream.measurement.audit import tie_tolerance
from slipstream.models.gguf.file import open_gguf_file
from slipstream.models.text.tokenizer import Tokenizer
from slipstream.policy import AutoPolicy

pytestmark = [pytest.mark.llamacpp, pytest.mark.real_model]

NUM_TOKENS = 16
PROMPT = "Rewrite this text:\n\nThe quick brown fox jumps over the lazy dog. The lazy dog does not mind the quick fox."
SAMPLINGS = {"greedy": Sampling(), "sampled": Sampling(temperature=0.8, top_p=0.95, seed=7)}
SPECS = ["ngram", "suffix", "suffix(width=3)", "model", "model(n_parallel=3)", "chained:suffix,model", "translate"]
MIXED = [
    "none",
    "ngram",
    "suffix",
    "suffix(width=3)",
    "model",
    "model(n_parallel=3)",
    "translate",
    "chained:ngram,model",
]


@pytest.fixture(scope="module")
def smollm2() -> LoadedModel:
    """The default: one cache for all streams, ties possible."""
    return slipstream.load_model("smollm2-135m", LlamaCppOptions(context_length=1024, max_streams=8, threads=1))


@pytest.fixture(scope="module")
def exact() -> LoadedModel:
    return slipstream.load_model("smollm2-135m", LlamaCppOptions(context_length=256, exact=True, threads=1))


@pytest.fixture(scope="module")
def draft() -> LoadedModel:
    """The same weights again: drafts that are nearly always right, on either backend."""
    return slipstream.load_model("smollm2-135m", TorchOptions(device="cpu", context_length=512))


@pytest.fixture(autouse=True)
def all_places_are_returned(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    for name in ("smollm2", "exact"):
        if name in request.fixturenames:
            assert request.getfixturevalue(name).model.num_open == 0


def start(engine: Engine, sampling: str = "greedy", num_tokens: int = NUM_TOKENS, prompt: str = PROMPT) -> Generation:
    messages = [{"role": "user", "content": prompt}]
    return engine.generate(messages, SAMPLINGS[sampling], Limits(num_tokens, ignore_eos=True))


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_every_drafter_gives_the_text_of_plain_decoding(exact: LoadedModel, draft: LoadedModel, sampling: str) -> None:
    plain = start(slipstream.load(exact, drafter="none"), sampling).result()
    accepted = {}
    for spec in SPECS:
        answer = start(slipstream.load(exact, draft=draft, drafter=spec, policy="fixed(4)"), sampling).result()
        assert answer.tokens == plain.tokens, spec
        assert answer.stats.drafter_error is None
        accepted[spec] = answer.stats.num_accepted
    assert accepted["model"] > 0
    assert accepted["model(n_parallel=3)"] > 0


def test_in_the_default_mode_a_difference_is_a_tie(smollm2: LoadedModel, draft: LoadedModel) -> None:
    plain = start(slipstream.load(smollm2, drafter="none")).result().tokens
    for spec in ("ngram", "model(n_parallel=3)"):
        engine = slipstream.load(smollm2, draft=draft, drafter=spec, policy="fixed(4)")
        answer = start(engine)
        tokens = answer.result().tokens
        at = next((i for i, (a, b) in enumerate(zip(plain, tokens, strict=True)) if a != b), None)
        if at is not None:
            text = [*engine.encode([{"role": "user", "content": PROMPT}]), *plain[:at]]
            assert gap(smollm2, text, plain[at], tokens[at]) <= tie_tolerance(smollm2.model.info)


def gap(loaded: LoadedModel, text: list[int], one: int, other: int) -> float:
    sequence = loaded.model.open(text, len(text))
    try:
        prefill(loaded.model, sequence, text[sequence.length : -1])
        row = loaded.model.score([ScoreRequest(sequence, text[-1:])])[0].row(ROOT)
        return abs(float(row[one] - row[other]))
    finally:
        sequence.close()


def test_eight_streams_with_different_drafters_at_once(exact: LoadedModel, draft: LoadedModel) -> None:
    prompts = [f"{PROMPT} {i}" for i in range(len(MIXED))]
    engine = slipstream.load(exact, drafter="none")
    plain = [start(engine, prompt=p, num_tokens=8).result().tokens for p in prompts]
    drafters = [slipstream.load(exact, draft=draft, drafter=spec).drafter for spec in MIXED]
    engine = slipstream.load(exact, drafter="none", policy="fixed(3)")
    answers = [
        engine.generate([{"role": "user", "content": p}], limits=Limits(8, ignore_eos=True), drafter=d)
        for p, d in zip(prompts, drafters, strict=True)
    ]
    assert [a.result().tokens for a in answers] == plain
    assert max(a.stats.num_accepted for a in answers) > 0


def test_a_stream_cancelled_in_mid_draft_leaves_the_others_alone(smollm2: LoadedModel, draft: LoadedModel) -> None:
    engine = slipstream.load(smollm2, draft=draft, drafter="model(n_parallel=2)", policy="fixed(4)")
    stays, goes = start(engine), start(engine, "sampled")
    next(iter(goes))
    engine.step()
    goes.cancel()
    assert goes.finish_reason == "cancelled"
    assert stays.result().finish_reason == "length"
    assert engine.num_active == 0


def test_a_draft_on_llama_cpp_for_a_target_on_torch(smollm2: LoadedModel, draft: LoadedModel) -> None:
    plain = start(slipstream.load(draft, drafter="none")).result().tokens
    answer = start(slipstream.load(draft, draft=smollm2, drafter="model", policy="fixed(4)")).result()
    assert answer.tokens == plain
    assert answer.stats.num_accepted > NUM_TOKENS // 2


# -- what goes wrong ----------------------------------------------------------------------------------------------


def test_a_prompt_longer_than_the_context_is_refused(exact: LoadedModel) -> None:
    with pytest.raises(ContextFullError, match="256"):
        start(slipstream.load(exact), prompt="word " * 400)


def test_an_answer_ends_where_the_context_does(tmp_path: Path) -> None:
    model = tiny_llamacpp.load("llama", tmp_path, context_length=32)
    loaded = LoadedModel(model, tiny_tokenizer(tmp_path))
    for drafter in ("none", "ngram", "suffix(width=3)"):
        answer = slipstream.load(loaded, drafter=drafter, policy="fixed(8)").generate(
            [5, 6, 7] * 5, limits=Limits(99, ignore_eos=True)
        )
        assert answer.result().finish_reason == "length"
        assert answer.stats.num_tokens == 32 - 15


def tiny_tokenizer(folder: Path) -> Tokenizer:
    return open_gguf_file(folder / "llama.gguf").tokenizer


def test_a_truncated_file_is_damaged(tmp_path: Path) -> None:
    whole = tiny_llamacpp.write("llama", tmp_path)
    whole.write_bytes(whole.read_bytes()[:-1000])
    with pytest.raises(BlockedError, match="truncated"):
        slipstream.load_model(whole, LlamaCppOptions())


@pytest.mark.parametrize("layers", [-2, 4, 99])
def test_gpu_layers_the_model_does_not_have_are_refused(tmp_path: Path, layers: int) -> None:
    with pytest.raises(UsageError, match="2 layers and an output: expected 0"):
        tiny_llamacpp.load("llama", tmp_path, n_gpu_layers=layers)


def test_a_cache_that_no_memory_holds_says_what_to_lower(tmp_path: Path) -> None:
    path = tiny_llamacpp.write("llama", tmp_path, **{"llama.context_length": 1 << 30})
    with pytest.raises(CapacityError, match="Use a context of"):
        slipstream.load_model(path, LlamaCppOptions(context_length=1 << 30))


def test_a_stream_too_long_for_the_cache_fails_alone(tmp_path: Path) -> None:
    model = tiny_llamacpp.load("llama", tmp_path, kv_tokens=256, context_length=256)
    engine = slipstream.load(LoadedModel(model, tiny_tokenizer(tmp_path)), drafter="none")
    streams = [engine.generate([i + 1] * 150, limits=Limits(40, ignore_eos=True)) for i in range(4)]
    assert [s.result().stats.num_tokens for s in streams] == [40] * 4  # they wait for one another


@pytest.mark.parametrize(
    "wrong", [FakeDrafter(), len, 7, ["smollm2-135m"]], ids=["drafter", "function", "number", "list"]
)
def test_a_draft_of_the_wrong_type_says_what_it_wants(exact: LoadedModel, wrong: object) -> None:
    with pytest.raises(UsageError, match="spec, a path or a LoadedModel"):
        slipstream.load(exact, draft=wrong)  # type: ignore[arg-type]


def test_a_model_object_as_draft_says_what_it_wants(exact: LoadedModel) -> None:
    with pytest.raises(UsageError, match="LlamaCppModel"):
        slipstream.load(exact, draft=exact.model)  # type: ignore[arg-type]


def test_early_exit_names_the_backend_that_can(exact: LoadedModel) -> None:
    with pytest.raises(UsageError, match="--backend torch"):
        slipstream.load(exact, drafter="early-exit")


# -- over time ----------------------------------------------------------------------------------------------------


class Bushy(FakeDrafter):
    """Two branches each round, of which neither is likely. Remembers nothing, unlike `suffix`."""

    def propose(self, streams: Sequence[Stream], budgets: Sequence[int]) -> list[DraftTree]:
        return [DraftTree((5, 6, 7, 8, 9), (ROOT, ROOT, 0, 1, 3)) if n >= 5 else EMPTY_TREE for n in budgets]


@pytest.mark.parametrize("drafter", ["ngram", Bushy()], ids=["chains", "trees"])
def test_memory_is_flat_over_five_hundred_requests(tmp_path: Path, drafter: str | Bushy) -> None:
    model = tiny_llamacpp.load("llama", tmp_path, kv_tokens=1024)
    engine = slipstream.load(LoadedModel(model, tiny_tokenizer(tmp_path)), drafter=drafter, policy="fixed(6)")
    rng = np.random.default_rng(0)

    def run(count: int) -> int:
        for _ in range(count):
            prompt = rng.integers(3, 300, size=int(rng.integers(2, 60))).tolist()
            engine.generate([*prompt, *prompt], limits=Limits(8, ignore_eos=True)).result()
        return resident_bytes()

    before = run(100)
    assert run(500) - before < 4 << 20
    assert engine.stats.num_drafted > 1000
    assert model.num_open == 0


def resident_bytes() -> int:
    statm = Path("/proc/self/statm")
    if not statm.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(statm.read_text().split()[1]) * resource.getpagesize()


def test_auto_turns_itself_off_where_rows_cost_too_much_and_says_why(smollm2: LoadedModel) -> None:
    """Drafts that are never right cost rows and bring nothing: after a few tries none are scored. (An engine that was
    not loaded, but made: it has not measured what rows cost, and has to try.)"""
    wrong = Scripted(script=lambda stream, budget: DraftTree.chain([7] * budget, [0.9] * budget))
    engine = Engine(smollm2.model, smollm2.tokenizer, wrong, AutoPolicy())
    messages = [{"role": "user", "content": "Write a poem about rain, snow, fog, hail, wind and sun."}]
    answer = engine.generate(messages, SAMPLINGS["sampled"], Limits(48, ignore_eos=True)).result()
    assert wrong.num_proposals > 3  # after each eight plain rounds; more often where the machine is idle
    assert 0 < answer.stats.num_drafted <= 12
    assert "off: " in engine.policy.explain().reason
