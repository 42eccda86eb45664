"""The CUDA path without a GPU: kernels in Triton's interpreter, bookkeeping as it is, against plain torch."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
import torch

pytest.importorskip("triton")

from contract import cuda_models, nan_model, tiny_models
from slipstream.backends.torch.batch import SequenceRows
from slipstream.backends.torch.cuda import runner
from slipstream.backends.torch.cuda.batch import chunk_keys
from slipstream.backends.torch.cuda.bucket import TargetBucket
from slipstream.backends.torch.cuda.choose import Chooser, RowChoice, narrowed
from slipstream.backends.torch.cuda.host_copies import HostCopies
from slipstream.backends.torch.cuda.tree_loop import TreeLoop
from slipstream.core.engine import Engine
from slipstream.core.protocols import ExtendRequest, KVSequence, Model, ScoreRequest, prefill
from slipstream.core.sampling import Sampling, sample
from slipstream.core.stream import Limits
from slipstream.core.tree import ROOT, DraftTree
from slipstream.models import open_checkpoint

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="tests/gpu runs the same kernels on the GPU")
TREE = DraftTree((1, 2, 3, 4, 5, 6, 7), (-1, 0, 1, 0, 3, -1, 5))
CHAIN = DraftTree.chain((4, 5))
SAMPLED = Sampling(temperature=0.8, seed=3)


@pytest.fixture(scope="module", params=["llama3-scaled-tied", "mistral-window-8", "qwen2-bias-tied", "qwen3-qk-norm"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Model, Model]:
    folder = cuda_models.save(request.param, tmp_path_factory.mktemp("cuda"))
    return cuda_models.load_interpreted(folder), tiny_models.load_reference(folder)


@pytest.mark.parametrize(("family", "head_dim"), [("qwen2-bias-tied", 128), ("qwen3-qk-norm", 64)])
def test_a_cache_of_codes_gives_the_logits_of_plain_torch(family: str, head_dim: int, tmp_path: Path) -> None:
    folder = cuda_models.save(family, tmp_path, head_dim=head_dim)
    coded, reference = cuda_models.load_interpreted(folder, kv_dtype=torch.int8), tiny_models.load_reference
    pair = coded, reference(folder, kv_type="q8_0")
    places = opened(pair, np.random.default_rng(1).integers(96, size=36).tolist())
    mine, theirs = (m.score([ScoreRequest(p, [9], TREE)])[0] for m, p in zip(pair, places, strict=True))
    for node in range(ROOT, len(TREE)):  # a code may fall to either side of a half
        np.testing.assert_allclose(mine.row(node), theirs.row(node), rtol=0, atol=0.05)


def opened(models: tuple[Model, Model], tokens: list[int]) -> list[KVSequence]:
    places = [model.open([], 200) for model in models]
    for model, place in zip(models, places, strict=True):
        prefill(model, place, tokens)
    return places


def test_logits_and_choices_are_those_of_plain_torch(pair: tuple[Model, Model]) -> None:
    tokens = np.random.default_rng(0).integers(96, size=36).tolist()  # more than a page
    long, short = opened(pair, tokens), opened(pair, [])
    scores = [
        model.score([ScoreRequest(a, [9], TREE, Sampling()), ScoreRequest(b, [1, 2, 3], CHAIN, SAMPLED, position=5)])
        for model, a, b in zip(pair, long, short, strict=True)
    ]
    for mine, theirs in zip(*scores, strict=True):
        for node in range(ROOT, len(TREE) if mine is scores[0][0] else len(CHAIN)):
            np.testing.assert_allclose(mine.row(node), theirs.row(node), rtol=0, atol=1e-4)
    assert [scores[0][0].chosen(n) for n in range(ROOT, 7)] == [scores[1][0].argmax(n) for n in range(ROOT, 7)]
    assert [scores[0][1].chosen(n) for n in range(ROOT, 2)] == [
        sample(scores[1][1].row(n), SAMPLED, 5 + n + 1) for n in range(ROOT, 2)
    ]
    for place in (*long, *short):
        place.close()


@pytest.mark.parametrize(("kv_type", "kv_dtype", "atol"), [("auto", torch.float32, 1e-4), ("q8_0", torch.int8, 0.05)])
def test_more_rows_than_a_graph_has_read_like_plain_torch(
    tmp_path: Path, kv_type: str, kv_dtype: torch.dtype, atol: float
) -> None:
    """Two prompts, one with a draft that branches, and a stream that decodes, in one forward; then all go on."""
    folder = cuda_models.save("llama3-scaled-tied", tmp_path, head_dim=16 if kv_type == "auto" else 64)
    tokens = np.random.default_rng(0).integers(96, size=190).tolist()
    rows = []
    models = (
        cuda_models.load_interpreted(folder, kv_dtype=kv_dtype),
        tiny_models.load_reference(folder, kv_type=kv_type),
    )
    for model in models:
        places = [model.open([], 300) for _ in range(3)]
        prefill(model, places[0], tokens[:9])
        requests = [(tokens, DraftTree((1, 2, 3), (-1, 0, 0))), ([5], DraftTree()), (tokens[:80], DraftTree())]
        assert sum(len(pending) + len(tree) for pending, tree in requests) > 256
        scores = model.score([ScoreRequest(place, *request) for place, request in zip(places, requests, strict=True)])
        rows.append(
            [s.row(n).copy() for s, (_, tree) in zip(scores, requests, strict=True) for n in range(-1, len(tree))]
        )
        places[0].commit((0, 2))
        for place in places[1:]:
            place.commit()
        rows[-1] += [s.row(ROOT).copy() for s in model.score([ScoreRequest(place, [7]) for place in places])]
    np.testing.assert_allclose(*map(np.stack, rows), rtol=0, atol=atol)


@pytest.mark.parametrize(("differs_from", "rows"), [(None, 4), (3, 2)])
def test_exactness_is_looked_at(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, differs_from: int | None, rows: int
) -> None:
    forward = TargetBucket.forward

    def another(self: TargetBucket) -> torch.Tensor:
        logits = forward(self)
        return torch.nextafter(logits, logits + 1) if differs_from and len(logits) >= differs_from else logits

    monkeypatch.setattr(TargetBucket, "forward", another)
    monkeypatch.setattr(runner, "BUCKETS", (1, 2, 4))
    model = cuda_models.load_interpreted(cuda_models.save("llama3-scaled-tied", tmp_path))
    assert model._runner.exact_rows() == rows  # type: ignore[attr-defined]


def test_a_graph_that_is_slower_than_one_for_more_rows_is_not_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seconds = {1: 3.0, 2: 1.0, 17: 2.1, 18: 2.0, 19: 2.0, 20: 2.5}
    monkeypatch.setattr(runner, "BUCKETS", tuple(seconds))
    monkeypatch.setattr(runner, "least_seconds", lambda run, repeats: seconds[run.__self__.batch.capacity])
    mine = cuda_models.load_interpreted(cuda_models.save("llama3-scaled-tied", tmp_path))._runner  # type: ignore[attr-defined]
    for size in seconds:
        mine.bucket(size)
    monkeypatch.setattr(mine, "_device", torch.device("cuda"))
    mine._leave_out_slow()
    assert [mine.bucket(rows).batch.capacity for rows in (1, 2, 3, 18, 20)] == [1, 2, 18, 18, 20]
    assert sorted(mine._buckets) == [1, 2, 18, 19, 20]


def test_a_prompt_is_read_alike_in_a_room_that_came_before_and_where_no_graph_can_be_captured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = cuda_models.load_interpreted(cuda_models.save("llama3-scaled-tied", tmp_path))
    reference = tiny_models.load_reference(tmp_path)
    forward = model._runner._long_forward()  # type: ignore[attr-defined]
    rows = []
    for count in (70, 80, 90):  # one room
        tokens = [1 + (i * count) % 40 for i in range(count)]
        place, plain = model.open([], 200), reference.open([], 200)
        place.prepare(tokens, ())  # type: ignore[attr-defined]
        if count == 90:
            monkeypatch.setattr(forward, "_memory", (0, 1))  # as if there were a GPU, with no memory left
            monkeypatch.setattr(torch.cuda, "synchronize", mock.Mock(side_effect=RuntimeError("out of memory")))
        forward.start([SequenceRows(place, 0, tokens)])  # type: ignore[arg-type]
        [scores] = reference.score([ScoreRequest(plain, tokens)])
        rows.append((forward.logits[0].numpy(), scores.row(ROOT)))
        for sequence in (place, plain):
            sequence.close()
    assert len(forward._rooms) == 1 and forward._memory is None and "without graphs" in caplog.text
    for mine, expected in rows:
        np.testing.assert_allclose(mine, expected, rtol=0, atol=1e-3)


def test_running_ahead_gives_the_text_of_plain_torch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Two streams of different lengths, past the end of a page; a third joins, which ends what is under way."""
    copies = mock.Mock(wraps=HostCopies.begin)
    monkeypatch.setattr(TargetBucket, "is_captured", True)  # as with graphs: the interpreter runs them step by step
    monkeypatch.setattr(HostCopies, "begin", lambda *arguments: copies(*arguments))
    folder = cuda_models.save("llama3-scaled-tied", tmp_path)
    tokenizer, answers = open_checkpoint(folder).tokenizer, []
    for model in (cuda_models.load_interpreted(folder), tiny_models.load_reference(folder)):
        engine = Engine(model, tokenizer)
        running = [engine.generate([3] * (26 + i), Sampling(), Limits(7 + i, ignore_eos=True)) for i in range(2)]
        for _ in range(4):
            engine.step()
        running.append(engine.generate([5, 6], Sampling(temperature=0.9, seed=3), Limits(4, ignore_eos=True)))
        answers.append([g.result().tokens for g in running])
    assert answers[0] == answers[1]
    assert copies.call_count >= 5  # rounds whose next one was started, or could have been


def test_a_kept_side_branch_reads_like_plain_text(pair: tuple[Model, Model]) -> None:
    places = opened(pair, list(range(1, 41)))
    rows = []
    for model, place in zip(pair, places, strict=True):
        model.score([ScoreRequest(place, [9], TREE)])
        place.commit((0, 3, 4))
        rows.append(model.score([ScoreRequest(place, [8])])[0].row(ROOT).copy())
        place.close()
    np.testing.assert_allclose(*rows, rtol=0, atol=1e-4)


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.9, seed=5, top_k=20)], ids=["greedy", "top-k"])
def test_a_draft_goes_on_by_itself_as_it_would_step_by_step(pair: tuple[Model, Model], sampling: Sampling) -> None:
    mine, reference = pair
    places, others = opened(pair, [3, 1, 4, 1, 5]), opened(pair, [])
    extensions = mine.extend(  # type: ignore[attr-defined]
        [ExtendRequest(places[0], [9], 4, sampling, 0), ExtendRequest(others[0], [2, 7, 1], 3, sampling, 7)]
    )
    expected = [_step_by_step(reference, places[1], [9], 4, sampling, 0)]
    expected.append(_step_by_step(reference, others[1], [2, 7, 1], 3, sampling, 7))
    assert [e.tokens for e in extensions] == expected
    assert all(0 < chance <= 1 for e in extensions for chance in e.chances)
    assert (places[0].length, others[0].length) == (5 + 4, 3 + 2)
    for place in (*places, *others):
        place.close()


def test_a_greedy_draft_keeps_nothing_of_a_sampled_one_before_it(pair: tuple[Model, Model]) -> None:
    """Nor where a shorter greedy draft was made between the two."""
    mine, reference = pair
    settings = [(Sampling(temperature=2.0, seed=5), 6), (Sampling(), 1), (Sampling(), 5)]
    for sampling, steps in settings:
        places = opened(pair, [3, 1, 4, 1, 5])
        [extension] = mine.extend([ExtendRequest(places[0], [9], steps, sampling, 0)])  # type: ignore[attr-defined]
        assert extension.tokens == _step_by_step(reference, places[1], [9], steps, sampling, 0)
        for place in places:
            place.close()


def test_a_greedy_tree_keeps_nothing_of_a_sampled_one_before_it() -> None:
    """Nor where a shallower greedy tree was grown between the two."""
    level = SimpleNamespace(batch=SimpleNamespace(capacity=3))
    loop = TreeLoop(level, torch.arange(8, dtype=torch.int32))  # type: ignore[arg-type]
    for sampling, levels in ((SAMPLED, 8), (Sampling(), 4), (Sampling(), 8)):
        loop._send_plan(ExtendRequest(mock.Mock(), [1], levels, sampling, 0, 3), levels)
        assert bool((loop._plan[:levels, 0].view(torch.float64) == sampling.temperature).all())


def _step_by_step(
    model: Model, place: KVSequence, pending: list[int], steps: int, sampling: Sampling, position: int
) -> list[int]:
    tokens: list[int] = []
    for step in range(steps):
        row = model.score([ScoreRequest(place, pending)])[0].row(ROOT)
        place.commit()
        tokens.append(sample(row, sampling, position + step))
        pending = tokens[-1:]
    return tokens


@pytest.mark.parametrize("temperature", [0.0, 0.3, 1.0, 2.5])
def test_the_device_chooses_what_the_host_would(temperature: float) -> None:
    rng = np.random.default_rng(1)
    logits = rng.standard_normal((3, 9001)).astype(np.float32) * 3
    chooser = Chooser(4, logits.shape[1], torch.device("cpu"))
    settings = [Sampling(temperature=temperature, seed=seed) for seed in (0, 7, 2**63 + 5)]
    chooser.ask([RowChoice(s, 11 + i) for i, s in enumerate(settings)])
    chooser.choose(torch.from_numpy(logits))
    expected = [sample(row, s, 11 + i) for i, (row, s) in enumerate(zip(logits, settings, strict=True))]
    assert chooser.read(3) == expected
    chances = chooser.chosen[1, :3].view(torch.float32).numpy()
    softmax = torch.from_numpy(logits).softmax(-1).numpy()
    np.testing.assert_allclose(chances, [p[t] for p, t in zip(softmax, expected, strict=True)], rtol=1e-4)


@pytest.mark.parametrize("family", ["llama2-mha", "qwen3-qk-norm"])
def test_a_drafted_token_with_nan_is_felt_only_by_rows_that_see_it(family: str, tmp_path: Path) -> None:
    model = cuda_models.load_interpreted(nan_model.save(tmp_path, family))
    place = model.open([], 200)
    prefill(model, place, list(range(20, 30)))

    def rows(tree: DraftTree) -> np.ndarray:
        (scores,) = model.score([ScoreRequest(place, [9], tree)])
        return np.stack([scores.row(node) for node in range(ROOT, len(tree))])

    poisoned = rows(DraftTree((5, nan_model.POISON, 6, nan_model.POISON, 8), (-1, 0, 1, -1, 3)))
    assert np.isnan(poisoned[[2, 3, 4, 5]]).all()
    np.testing.assert_array_equal(poisoned[:2], rows(DraftTree((5, 1, 6, 2, 8), (-1, 0, 1, -1, 3)))[:2])
    place.close()


@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_the_device_says_where_logits_are_no_numbers(value: float, temperature: float) -> None:
    logits = np.random.default_rng(1).standard_normal((4, 9001)).astype(np.float32)
    logits[1, 5000], logits[2, :] = value, value
    chooser = Chooser(4, logits.shape[1], torch.device("cpu"))
    chooser.ask([RowChoice(Sampling(temperature=temperature), i) for i in range(4)])
    chooser.choose(torch.from_numpy(logits))
    assert [token < 0 for token in chooser.read(len(logits))] == [False, True, True, False]


@pytest.mark.parametrize(
    "sampling",
    [Sampling(0.7, top_k=5), Sampling(1.1, top_p=0.6), Sampling(0.9, min_p=0.1), Sampling(1.3, 40, 0.8, 0.02)],
    ids=["top-k", "top-p", "min-p", "all"],
)
def test_the_device_leaves_out_the_tokens_that_the_host_leaves_out(sampling: Sampling) -> None:
    from slipstream.core.sampling import candidates

    logits = np.random.default_rng(2).standard_normal((6, 500)).astype(np.float32) * 4
    kept = torch.isfinite(narrowed(torch.from_numpy(logits), sampling))
    for row, mask in zip(logits, kept, strict=True):
        assert torch.nonzero(mask)[:, 0].tolist() == candidates(row, sampling).tokens.tolist()


def test_chunks_grow_with_the_position_and_never_shrink() -> None:
    sizes = [chunk_keys(position) for position in range(0, 40_000, 64)]
    assert sizes == sorted(sizes)
    assert all(size % 128 == 0 for size in sizes)
