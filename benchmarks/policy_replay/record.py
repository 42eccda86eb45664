"""`record`: answers of a real model, and what real drafters would propose at every position of them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import slipstream
from policy_replay.recording import NOTHING, Proposal, RecordedAnswer, Recording, write_recording
from slipstream.backends import BACKENDS, MachineOptions
from slipstream.core.engine import Engine
from slipstream.core.policy import Ask, PlainPlan, PolicyReport, RoundOutcome, RoundView
from slipstream.core.prefix import common_prefix_length
from slipstream.core.sampling import Sampling
from slipstream.core.stream import Drafter, Limits, Stream
from slipstream.core.tree import EMPTY_TREE, DraftTree
from slipstream.loading import LoadedModel
from slipstream.measurement.prompt_files import read_prompts
from slipstream.measurement.workload import Prompt, take

LONGEST_FREE = 16  # tokens of a proposal that are kept
CONTEXT = 2048  # tokens
SHORTEST_ANSWER = 12  # tokens; shorter ones say nothing about decoding


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", required=True)
    parser.add_argument("--draft")
    parser.add_argument("--prompts", nargs="+", required=True, type=Path)
    parser.add_argument("--out", required=True, type=Path, help="recordings/NAME.json.gz")
    parser.add_argument("--backend", default="llamacpp", choices=list(BACKENDS))
    parser.add_argument("--drafters", default="suffix,ngram", help="beside `model`, which a draft model adds")
    parser.add_argument("--of-each-kind", type=int, default=3, help="prompts, the shortest")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--longest", type=int, default=8, help="tokens of a proposal of a drafter that costs time")


def main(options: argparse.Namespace) -> None:
    backend = BACKENDS[options.backend].options(MachineOptions(context_length=CONTEXT))
    target = slipstream.load_model(options.model, backend)
    draft = slipstream.load_model(options.draft, backend) if options.draft else None
    names = [*options.drafters.split(","), *(["model"] if draft else [])]
    drafters = {name: _drafter(name, target, draft) for name in names}
    about = {
        "model": target.model.info.name,
        "draft": draft.model.info.name if draft else None,
        "backend": options.backend,
        "prompts": [path.name for path in options.prompts],
        "of_each_kind": options.of_each_kind,
        "max_tokens": options.tokens,
        "longest": {"free": LONGEST_FREE, "costly": options.longest},
    }
    answers: list[RecordedAnswer] = []
    prompts = _prompts(options.prompts, options.of_each_kind)
    for number, prompt in enumerate(prompts, start=1):
        answer = record_answer(target, drafters, prompt, options.tokens, options.longest)
        if answer.num_tokens >= SHORTEST_ANSWER:
            answers.append(answer)
            write_recording(options.out, Recording("", about, tuple(answers)))
        print(f"{number} of {len(prompts)}: {prompt.kind}, {answer.num_tokens} tokens", file=sys.stderr, flush=True)


def _drafter(name: str, target: LoadedModel, draft: LoadedModel | None) -> Drafter:
    drafter = slipstream.load(target, draft=draft, drafter=name, policy="fixed(1)").drafter
    assert drafter is not None
    return drafter


def _prompts(paths: Sequence[Path], of_each_kind: int) -> list[Prompt]:
    """The shortest prompts of each kind, first turns, in turns over the kinds: reading prompts is slow on few cores."""
    kinds: dict[str, list[Prompt]] = {}
    for path in paths:
        for prompt in read_prompts(path):
            kinds.setdefault(prompt.kind, []).append(replace(prompt, turns=prompt.turns[:1]))
    shortest = [p for same in kinds.values() for p in sorted(same, key=lambda p: len(str(p.turns)))[:of_each_kind]]
    return take(shortest)


def record_answer(
    target: LoadedModel, drafters: dict[str, Drafter], prompt: Prompt, max_tokens: int, longest: int
) -> RecordedAnswer:
    """An answer by plain greedy decoding, for each drafter again. Drafters learn from it as from any other.

    On a GPU it may differ by a rounding, so it is as long as the shortest.
    """
    num_prompt_tokens, num_tokens, proposals = 0, max_tokens, {}
    for name, drafter in drafters.items():
        watching = WatchingPolicy(LONGEST_FREE if drafter.is_free else longest)
        engine = Engine(target.model, target.tokenizer, drafter, watching)
        ids = engine.encode(prompt.request())
        answer = engine.generate(ids, Sampling(), Limits(max_tokens)).result().tokens
        num_prompt_tokens, num_tokens = len(ids), min(num_tokens, len(answer))
        proposals[name] = [
            _judged(watching.trees.get(known, EMPTY_TREE), answer[known:]) for known in range(1, len(answer) - 1)
        ]
    cut = {name: tuple(of_drafter[: max(0, num_tokens - 2)]) for name, of_drafter in proposals.items()}
    return RecordedAnswer(prompt.kind, num_prompt_tokens, num_tokens, cut)


def _judged(tree: DraftTree, answer: Sequence[int]) -> Proposal:
    return Proposal(common_prefix_length(list(tree.tokens), answer), tuple(tree.confidence)) if tree else NOTHING


class WatchingPolicy:
    """Asks the drafter of one stream for a draft in every round and scores none of it."""

    name = "watching"

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self.trees: dict[int, DraftTree] = {}  # by the tokens of the answer that were known

    def plan(self, view: RoundView) -> WatchingPlan:
        return WatchingPlan(view, self._budget, self.trees)

    def record(self, outcome: RoundOutcome) -> None:
        pass

    def forget(self, stream: Stream) -> None:
        pass

    def explain(self) -> PolicyReport:
        return PolicyReport(self.name, 0.0, "recording", None, None)


class WatchingPlan(PlainPlan):
    def __init__(self, view: RoundView, budget: int, trees: dict[int, DraftTree]) -> None:
        super().__init__(view, next_draft=None)
        self._left = [Ask(s, s.drafter, budget) for s in view.streams if s.drafter]
        self._trees = trees

    def asks(self) -> Sequence[Ask]:
        asks, self._left = self._left, []
        return asks

    def receive(self, asks: Sequence[Ask], proposals: Sequence[DraftTree], draft_s: float) -> None:
        for ask, tree in zip(asks, proposals, strict=True):
            self._trees[ask.stream.num_answer_tokens] = tree
