"""Draft heads on real backends: the same logits as a head that reads the whole text anew, and the target's own text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_models import load_native, load_reference, make_model, save_folder

from fakes import letters
from head_oracle import HeadOracle
from slipstream.backends.torch.model import TorchModel
from slipstream.core.engine import Engine
from slipstream.core.protocols import DraftNodes, ExtendRequest, Extension, HeadModel, ScoreRequest
from slipstream.core.sampling import Sampling, sample
from slipstream.core.tree import ROOT, DraftTree
from slipstream.drafters.head.choices import HeadChoices
from slipstream.drafters.head.drafter import HeadDrafter, HeadOptions
from slipstream.models import open_checkpoint
from slipstream.models.draft_heads.config import HeadConfig
from slipstream.models.draft_heads.export import save_head
from slipstream.models.draft_heads.files import HeadCheckpoint, open_head
from slipstream.policy import make_policy
from tiny_heads import random_ids, random_tensors

LAYERS, DRAFT_VOCAB = 5, 80
SIZES = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 16}  # a GPU's kernels want multiples of 16
TEXT = [3, 41, 59, 26, 53, 58, 97, 93, 23, 84]
VARIANTS = {
    "plain": {},
    "each-norm": {"feature_norm": "each", "norm_before_residual": True},
    "all-norm": {"feature_norm": "all", "norm_output": True, "own_embedding": True},
    "int8": {},
}


@dataclass
class Case:
    model: TorchModel
    head: HeadModel
    files: HeadCheckpoint
    target: torch.nn.Module

    def expected(self, tokens: list[int], path: list[int] | tuple[int, ...] = ()) -> np.ndarray:
        with torch.no_grad():
            states = self.target(torch.tensor([tokens[:-1]]), output_hidden_states=True).hidden_states
        features = torch.cat([states[i][0] for i in self.files.config.feature_layers], dim=1)
        oracle = HeadOracle.of(self.files, self.target.get_input_embeddings().weight.detach())
        outputs, logits = oracle.start(features, torch.tensor(tokens[1:]))
        hidden, row = outputs[-1], logits[-1]
        for token in path:
            hidden, row = oracle.row(hidden, token)
        return row.numpy()


def load_cuda(folder: Path) -> TorchModel:
    """On a GPU where there is one, and in Triton's interpreter elsewhere."""
    pytest.importorskip("triton")
    from contract import cuda_models

    on_gpu = torch.cuda.is_available()
    return cuda_models.load_on_gpu(folder, dtype="fp32") if on_gpu else cuda_models.load_interpreted(folder)


@pytest.fixture(scope="module", params=[load_native, load_reference, load_cuda], ids=["native", "reference", "cuda"])
def load(request):
    return request.param


@pytest.fixture(scope="module", params=VARIANTS)
def case(request, load, tmp_path_factory: pytest.TempPathFactory) -> Case:
    if load is load_cuda and request.param != "each-norm" and not torch.cuda.is_available():
        pytest.skip("Triton's interpreter is slow, and one variant shows that the bookkeeping is right")
    return made(load, request.param, tmp_path_factory.mktemp("head"))


def made(load: Callable[[Path], TorchModel], variant: str, folder: Path) -> Case:
    target = make_model("llama3-scaled-tied", num_hidden_layers=LAYERS, **SIZES)
    model = load(save_folder(target, folder / "target"))
    layer = replace(open_checkpoint(folder / "target").config, num_layers=1, tied_head=False)
    first = HeadConfig(layer, DRAFT_VOCAB, (0, 2, 4), layer.hidden_size, target="a/target")
    config = replace(first, **VARIANTS[variant])
    kind = "int8" if variant == "int8" else "fp32"
    save_head(folder / "head", config, random_tensors(config), random_ids(config), kind)
    files = open_head(folder / "head", "head")
    return Case(model, model.attach_head(files), files, target)


def near(found: np.ndarray, expected: np.ndarray) -> bool:
    return bool(np.allclose(found, expected, rtol=2e-3, atol=2e-3))


def read(case: Case, tokens: list[int]):
    sequence = case.model.open(tokens, 64)
    case.head.follow(sequence)
    case.model.score([ScoreRequest(sequence, tokens[sequence.length :])])
    sequence.commit()
    return sequence


def test_the_first_token_of_a_draft_is_that_of_a_head_that_reads_the_whole_text(case: Case):
    sequence = read(case, TEXT)
    [row] = case.head.begin_draft([sequence], [7])
    assert near(row, case.expected([*TEXT, 7]))
    sequence.close()


def test_a_large_head_is_in_fp8_on_cuda(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """Its rows are nearly those of floats: a weight has 3 % of error, and sums have less."""
    pytest.importorskip("triton")
    from contract import cuda_models

    caplog.set_level("INFO", "slipstream")
    monkeypatch.setattr("slipstream.backends.torch.cuda.head._FP8_FROM_BYTES", 0)
    load = cuda_models.load_on_gpu if torch.cuda.is_available() else cuda_models.load_interpreted
    case = made(load, "each-norm", tmp_path)
    assert "rounded to FP8" in caplog.text
    sequence = read(case, TEXT)
    [row] = case.head.begin_draft([sequence], [7])
    expected = case.expected([*TEXT, 7])
    assert np.corrcoef(row, expected)[0, 1] > 0.99 and not near(row, expected)
    sequence.close()


def test_a_tree_is_read_depth_by_depth_and_each_path_stands_alone(case: Case):
    sequence = read(case, TEXT)
    case.head.begin_draft([sequence], [7])
    tokens, parents = [11, 12, 13, 14, 15], [ROOT, ROOT, 0, 1, 3]
    for depth, nodes in ((1, [0, 1]), (2, [2, 3]), (3, [4])):
        [rows] = case.head.read([DraftNodes(sequence, nodes, tokens, parents, depth)])
        tree = DraftTree(tuple(tokens), tuple(parents))
        for node, row in zip(nodes, rows, strict=True):
            assert near(row, case.expected([*TEXT, 7], tree.path_tokens(node)))
    sequence.close()


def test_after_a_verified_tree_the_head_reads_what_was_accepted(case: Case):
    sequence = read(case, TEXT)
    case.head.begin_draft([sequence], [7])
    case.head.read([DraftNodes(sequence, [0, 1], [20, 21], [ROOT, ROOT], 1)])
    tree = DraftTree((20, 21, 22, 23), (ROOT, ROOT, 1, 2))
    case.model.score([ScoreRequest(sequence, [7], tree)])
    sequence.commit([1, 2])
    [row] = case.head.begin_draft([sequence], [9])
    assert near(row, case.expected([*TEXT, 7, 21, 22, 9]))
    sequence.close()


def test_streams_that_were_not_drafted_for_are_caught_up(case: Case):
    _skip_if_interpreted(case)
    sequence, text = read(case, TEXT), [*TEXT]
    for token in range(90):
        case.model.score([ScoreRequest(sequence, [token % 50])])
        sequence.commit()
        text.append(token % 50)
    assert sequence.trail.num_unread < 70
    [row] = case.head.begin_draft([sequence], [9])
    assert near(row, case.expected([*text, 9]))
    sequence.close()


def test_a_stream_that_reuses_a_prompt_reads_again_what_the_head_lacks(case: Case):
    case.model.forget_prompts()
    first = read(case, TEXT)
    case.head.begin_draft([first], [7])
    first.close()
    plain = case.model.open([*TEXT, 8, 9], 64)  # nobody follows it
    assert plain.length == len(TEXT)
    case.model.score([ScoreRequest(plain, [8])])
    plain.commit()
    plain.close()
    second = case.model.open([*TEXT, 8, 9, 10], 64)
    case.head.follow(second)
    assert 0 < second.length < len(TEXT)
    case.model.score([ScoreRequest(second, [*TEXT, 8, 9][second.length :])])
    second.commit()
    [row] = case.head.begin_draft([second], [10])
    assert near(row, case.expected([*TEXT, 8, 9, 10]))
    second.close()


def test_streams_draft_together_as_they_do_alone(case: Case):
    texts = [TEXT, TEXT[:4], TEXT[2:]]
    sequences = [read(case, text) for text in texts]
    rows = case.head.begin_draft(sequences, [7, 8, 9])
    for text, token, row in zip(texts, (7, 8, 9), rows, strict=True):
        assert near(row, case.expected([*text, token]))
    for sequence in sequences:
        sequence.close()


@pytest.mark.parametrize(
    ("width", "verifier", "keywords"),
    [
        (1, "matching", {}),
        (3, "matching", {"temperature": 0.8}),
        (3, "matching", {"temperature": 1.0, "top_k": 5, "presence_penalty": 1.0}),
        (1, "rejection", {"temperature": 0.8}),
    ],
)
def test_the_text_is_the_targets(case: Case, width, verifier, keywords):
    _skip_if_interpreted(case)
    drafter = HeadDrafter(case.head, case.model.info.vocab_size, HeadOptions(width))
    engine = Engine(case.model, _Tokenizer(), drafter, make_policy(4 * width))
    answers = [engine.generate(TEXT[i:], max_tokens=20, seed=i, verifier=verifier, **keywords) for i in range(2)]
    for i, answer in enumerate(answers):
        result = answer.result()
        assert result.stats.num_drafted > 20 and result.stats.drafter_error is None
        if verifier == "matching":
            plain = Engine(case.model, _Tokenizer()).generate(TEXT[i:], max_tokens=20, seed=i, **keywords)
            assert result.tokens == plain.result().tokens
    assert case.model.num_open == 0


def test_nothing_is_drafted_before_the_target_has_read_the_prompt(case: Case):
    """A prompt of one token, and one that an earlier stream left in the cache, leave one token to read."""
    _skip_if_interpreted(case)
    case.model.forget_prompts()
    drafter = HeadDrafter(case.head, case.model.info.vocab_size, HeadOptions(2))
    engine = Engine(case.model, _Tokenizer(), drafter, make_policy(4))
    for prompt in (TEXT[:1], TEXT, TEXT):
        result = engine.generate(prompt, max_tokens=6).result()
        assert result.stats.num_drafted > 4 and result.stats.drafter_error is None


def test_a_chain_that_the_head_drafts_by_itself_is_that_of_the_steps(case: Case):
    if not case.head.extends(Sampling(), 1):
        pytest.skip("the host chooses each token here")
    sequences = [read(case, TEXT), read(case, TEXT[3:])]
    sampled = Sampling(temperature=0.7, seed=5)
    extensions = case.head.extend(
        [ExtendRequest(sequences[0], [7], 3, Sampling(), 4), ExtendRequest(sequences[1], [8], 2, sampled, 9)]
    )
    ids = case.files.token_ids()
    for start, last, sampling, position, extension in (
        (0, 7, Sampling(), 4, extensions[0]),
        (3, 8, sampled, 9, extensions[1]),
    ):
        for step, token in enumerate(extension.tokens):
            row = np.full(case.model.info.vocab_size, -np.inf, np.float32)
            row[ids] = case.expected([*TEXT[start:], last], extension.tokens[:step])
            assert token == sample(row, sampling, position + step)
    for sequence in sequences:
        sequence.close()


def test_a_chain_ends_where_it_is_not_likely_enough_to_go_on(case: Case):
    if not (case.head.ends_early and case.head.extends(Sampling(), 1)):
        pytest.skip("the host ends drafts here, or nobody")
    sequences = [read(case, TEXT), read(case, TEXT[3:])]

    def lengths(*least: float) -> list[int]:
        asked = zip(sequences, least, strict=True)
        requests = [ExtendRequest(s, [7], 3, Sampling(), 4, least_chance=chance) for s, chance in asked]
        return [len(extension.tokens) for extension in case.head.extend(requests)]

    [whole, _] = case.head.extend([ExtendRequest(s, [7], 3, Sampling(), 4) for s in sequences])
    first, both = whole.chances[0], whole.chances[0] * whole.chances[1]
    assert lengths(first * 1.01, 0.0) == [1, 3], "the one that goes on does not take the other along"
    assert lengths((first + both) / 2, 1.0) == [2, 1]
    assert lengths(both * 0.99, 1.0) == [3, 1]
    for sequence in sequences:
        sequence.close()


@pytest.mark.parametrize("streams", [(0, 1), (0,), (1,)], ids=["both", "greedy", "sampled"])
@pytest.mark.parametrize("lengths", [(2, 2, 2, 2), (2, 3, 1, 2)], ids=["alike", "of other lengths"])
def test_rounds_go_on_by_themselves_from_what_was_accepted(
    case: Case, lengths: tuple[int, ...], streams: tuple[int, ...]
):
    """All of the first draft is right for one stream, nothing for the other. Then the head's own drafts."""
    if case.head.ends_early:
        pytest.skip("the host asks for each round here")
    steps, ids = lengths[0], case.files.token_ids()
    samplings = [[Sampling(), Sampling(temperature=0.7, seed=5)][i] for i in streams]
    texts = [[[*TEXT, 7], [*TEXT[3:], 8]][i] for i in streams]  # the last token of each is to be read
    sequences = [read(case, text[:-1]) for text in texts]
    starts = [len(text) for text in texts]
    own = [_own_tokens(case, text, s, steps + 1) for text, s in zip(texts, samplings, strict=True)]
    drafts = [right[:steps] if i == 0 else [(right[0] + 1) % 50, 1] for i, right in zip(streams, own, strict=True)]
    for number, steps in enumerate(lengths):
        following = lengths[(number + 1) % len(lengths)]
        positions = [len(text) - start for text, start in zip(texts, starts, strict=True)]
        asked = [
            ExtendRequest(sequence, text[-1:], steps, sampling, position)
            for sequence, text, sampling, position in zip(sequences, texts, samplings, positions, strict=True)
        ]
        extensions = case.head.extend(asked)
        for text, sampling, position, extension in zip(texts, samplings, positions, extensions, strict=True):
            for step, token in enumerate(extension.tokens):
                row = np.full(case.model.info.vocab_size, -np.inf, np.float32)
                row[ids] = case.expected(text, extension.tokens[:step])
                assert token == sample(row, sampling, position + step)
        assert case.head.rounds.is_under_way == (number > 0)  # type: ignore[attr-defined]
        if number:
            drafts = [extension.tokens for extension in extensions]
        requests = [
            ScoreRequest(sequence, text[-1:], DraftTree.chain(draft), sampling, position, following)
            for sequence, text, draft, sampling, position in zip(
                sequences, texts, drafts, samplings, positions, strict=True
            )
        ]
        for i, scores in enumerate(case.model.score(requests)):
            right = _own_tokens(case, texts[i], samplings[i], steps + 1, positions[i])
            taken = 0
            while taken < steps and drafts[i][taken] == right[taken]:
                taken += 1
            assert [scores.chosen(node) for node in range(ROOT, taken)] == right[: taken + 1]
            sequences[i].commit(range(taken))
            texts[i] += right[: taken + 1]
    for sequence in sequences:
        sequence.close()


def _own_tokens(case: Case, text: list[int], sampling: Sampling, count: int, position: int = 0) -> list[int]:
    """What the target says after a text."""
    found: list[int] = []
    for step in range(count):
        with torch.no_grad():
            row = case.target(torch.tensor([[*text, *found]])).logits[0, -1].numpy()
        found.append(sample(row, sampling, position + step))
    return found


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.8, seed=3)], ids=["greedy", "sampled"])
def test_a_tree_that_the_head_grows_by_itself_is_that_of_the_steps(case: Case, sampling: Sampling):
    if not case.head.extends(sampling, 2):
        pytest.skip("the host chooses each token here")
    if sampling.is_greedy:
        _skip_if_interpreted(case)
    width, depth, position = 2, 3, 6
    sequence = read(case, TEXT)
    [extension] = case.head.extend([ExtendRequest(sequence, [7], depth, sampling, position, width)])
    parents = extension.parents
    assert parents is not None and len(parents) == width + (depth - 1) * width * width
    chooser = HeadChoices(case.head.token_ids, case.model.info.vocab_size)
    nodes = [ROOT]  # that go on
    for level in range(depth):
        found = [i for i, parent in enumerate(parents) if parent in nodes]
        for parent in nodes:
            row = case.expected([*TEXT, 7], _path(extension, parent))
            expected = chooser.likeliest(row, sampling, position + level, width)
            children = [i for i in found if parents[i] == parent]
            assert [extension.tokens[i] for i in children] == [choice.token for choice in expected]
            chances = [choice.confidence for choice in expected]  # of those that noise leaves a chance alone
            assert np.allclose([extension.chances[i] for i in children], chances, rtol=0.1)
        nodes = sorted(found, key=lambda i: -_chance(extension, i))[:width]
    sequence.close()


def _path(extension: Extension, node: int) -> list[int]:
    assert extension.parents is not None
    return [] if node == ROOT else [*_path(extension, extension.parents[node]), extension.tokens[node]]


def _chance(extension: Extension, node: int) -> float:
    assert extension.parents is not None
    return 1.0 if node == ROOT else extension.chances[node] * _chance(extension, extension.parents[node])


def _skip_if_interpreted(case: Case) -> None:
    if not case.head.ends_early and not torch.cuda.is_available():
        pytest.skip("Triton's interpreter takes minutes for whole answers; on a GPU this runs")


class _Tokenizer:
    eos_ids: frozenset[int] = frozenset()

    def stream_decoder(self):
        return letters(131).stream_decoder()
