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
from slipstream.core.prefix import common_prefix
from slipstream.core.sampling import Sampling
from slipstream.core.stream import Drafter, Limits, Stream
from slipstream.core.text import TextAssembler
from slipstream.core.verify import VERIFIERS
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
    plain = slipstream.load(target, drafter="none")
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
        answer = record_answer(plain, drafters, prompt, options.tokens, options.longest)
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
    plain: Engine, drafters: dict[str, Drafter], prompt: Prompt, max_tokens: int, longest: int
) -> RecordedAnswer:
    """One answer by plain greedy decoding. Drafters learn from it as from any other."""
    ids = plain.encode(prompt.request())
    answer = plain.generate(ids, Sampling(), Limits(max_tokens)).result().tokens
    return RecordedAnswer(
        kind=prompt.kind,
        num_prompt_tokens=len(ids),
        num_tokens=len(answer),
        proposals={name: _proposals(plain, drafter, ids, answer, longest) for name, drafter in drafters.items()},
    )


def _proposals(
    engine: Engine, drafter: Drafter, prompt: list[int], answer: list[int], longest: int
) -> tuple[Proposal, ...]:
    """What the drafter proposes with 1, 2, … tokens of the answer known; nothing is drafted for the last two."""
    stream = _stream(engine, drafter, prompt, len(answer))
    drafter.begin(stream)
    try:
        chains: list[_Chain] = []
        for known in range(1, len(answer) - 1):
            stream.tokens[:] = [*prompt, *answer[:known]]
            before = chains[-1] if chains and not drafter.is_free else _Chain()
            chains.append(_chain(drafter, stream, before, LONGEST_FREE if drafter.is_free else longest))
        stream.tokens[:] = [*prompt, *answer]
    finally:
        drafter.end(stream)
    return tuple(
        Proposal(common_prefix(chain.tokens, answer[known:]), tuple(chain.confidence)) if chain.tokens else NOTHING
        for known, chain in enumerate(chains, start=1)
    )


class _Chain:
    def __init__(self, tokens: Sequence[int] = (), confidence: Sequence[float] = ()) -> None:
        self.tokens = list(tokens)
        self.confidence = list(confidence)


def _chain(drafter: Drafter, stream: Stream, before: _Chain, longest: int) -> _Chain:
    """A model that was right about the last token goes on from its own chain: only what is missing is drafted."""
    chain = _Chain()
    if before.tokens[:1] == stream.tokens[-1:]:
        chain = _Chain(before.tokens[1:], before.confidence[1:])
    known = len(stream.tokens)
    stream.tokens += chain.tokens
    tree = drafter.propose([stream], [longest - len(chain.tokens)])[0]
    del stream.tokens[known:]
    return _Chain([*chain.tokens, *tree.tokens], [*chain.confidence, *tree.confidence])


def _stream(engine: Engine, drafter: Drafter, prompt: list[int], max_tokens: int) -> Stream:
    assembler = TextAssembler(engine.tokenizer.stream_decoder())
    limits = Limits(max_tokens + LONGEST_FREE)
    return Stream(prompt, Sampling(), limits, assembler, drafter, VERIFIERS["matching"])
