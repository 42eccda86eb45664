"""The llama.cpp backend beside llama.cpp's own server and llama-cpp-python's prompt lookup: same files, same prompts.

    python benchmarks/llamacpp.py --model big.gguf [--draft small.gguf] --prompts FILE [FILE …] [--json FILE]

Needs `slipstream[llamacpp,llama-server]`. All of them answer every prompt, interleaved, in random order, by the timing
method of `slipstream bench`: tokens after the first, over the time after it. Servers that are not asked sit idle. Also:
what rows cost, and what a round takes besides llama_decode.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import slipstream
from slipstream.backends.llamacpp.library import library
from slipstream.backends.llamacpp.options import LlamaCppOptions
from slipstream.core.generator import Answer, Conversation, Generator
from slipstream.core.sampling import Sampling
from slipstream.core.stats import Stats
from slipstream.core.stream import Limits
from slipstream.engines.engine_types import EngineSettings
from slipstream.engines.llama_server.driver import ENGINE
from slipstream.engines.session import running
from slipstream.loading import LoadedModel
from slipstream.measurement.engine_generator import EngineGenerator
from slipstream.measurement.prompt_files import read_prompts
from slipstream.measurement.results import PLAIN
from slipstream.measurement.row_cost import measure_row_cost
from slipstream.measurement.runner import BenchSettings, run_bench
from slipstream.measurement.samples import PromptSample
from slipstream.measurement.workload import Prompt

CONTEXT = 2048
LOOKUP = "lookup"  # llama-cpp-python's own
PEERS = ("none", "ngram-simple", "ngram-mod", "draft-simple", LOOKUP)  # the others are the server's
_FIRST_PORT = 18080


class PromptLookup:
    """llama-cpp-python's own speculation, through its high-level class."""

    label = "llama-cpp-python, prompt lookup"

    def __init__(self, path: str, target: LoadedModel, threads: int) -> None:
        from llama_cpp import Llama
        from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

        self._llama = Llama(
            path, n_ctx=CONTEXT, n_batch=CONTEXT, n_threads=threads, n_threads_batch=threads, verbose=False,
            draft_model=LlamaPromptLookupDecoding(num_pred_tokens=10),
        )  # fmt: skip
        self._tokenizer = target.tokenizer

    def answer(self, prompt: str | Conversation, sampling: Sampling, limits: Limits) -> Answer:
        ids = self._tokenizer.prompt_ids(prompt) if isinstance(prompt, str) else self._tokenizer.chat_ids(prompt)
        self._llama.reset()
        tokens: list[int] = []
        began = time.perf_counter()
        times: list[float] = []
        for token in self._llama.generate(ids, temp=0.0, top_k=1, repeat_penalty=1.0):
            tokens.append(token)
            times.append(time.perf_counter() - began)
            if len(tokens) >= limits.max_tokens or (token in self._tokenizer.eos_ids and not limits.ignore_eos):
                break
        decoder = self._tokenizer.stream_decoder()
        shown = [token for token in tokens if token not in self._tokenizer.eos_ids]
        text = "".join(decoder.push(token) for token in shown) + decoder.flush()
        ends = times or [0.0]
        return Answer(text, tuple(tokens), "", Stats(num_tokens=len(tokens), ttft_s=ends[0], total_s=ends[-1]))

    def forget_prompts(self) -> None:
        self._llama.reset()

    def forget_learned(self) -> None:
        pass


def overhead_ms(model: LoadedModel, drafter: str, policy: str) -> float:
    """The median of what a round of one stream takes besides llama_decode."""
    engine = slipstream.load(model, drafter=drafter, policy=policy)
    lib, decoding_s, rest = library(), [0.0], []
    decode = lib.llama_decode

    def timed(*arguments: Any) -> Any:
        began = time.perf_counter()
        try:
            return decode(*arguments)
        finally:
            decoding_s[0] += time.perf_counter() - began

    lib.llama_decode = timed
    try:
        for _ in range(2):
            prompt = "def add(a, b):\n    return a + b\n\n\ndef subtract(a, b):\n    return a - b\n"
            answer = engine.generate(prompt, Sampling(), Limits(64, ignore_eos=True))  # dropped, it would be cancelled
            engine.step()
            while True:
                decoding_s[0], began = 0.0, time.perf_counter()
                if not engine.step():
                    break
                rest.append(time.perf_counter() - began - decoding_s[0])
            assert answer.finish_reason
    finally:
        lib.llama_decode = decode
    return statistics.median(rest) * 1e3


def slipstream_generators(
    model: LoadedModel, draft: LoadedModel | None, drafters: Sequence[str]
) -> list[EngineGenerator]:
    return [
        EngineGenerator(drafter, partial(slipstream.load, model, draft=draft, drafter=drafter))
        for drafter in (PLAIN, *drafters)
    ]


def server_generators(
    stack: ExitStack, methods: Sequence[str], model: str, draft: str | None, threads: int
) -> list[Generator]:
    generators: list[Generator] = []
    for i, method in enumerate(methods):
        settings = EngineSettings(
            model=model,
            method=method,
            draft=draft if method.startswith("draft") else None,
            context=CONTEXT,
            port=_FIRST_PORT + i,
            extra=("--threads", str(threads), "--threads-batch", str(threads)),
        )
        server = stack.enter_context(running(ENGINE, settings))
        generators.append(server.generator(f"llama-server, {method}"))
        print(f"llama-server with {method} is ready", flush=True)
    return generators


def by_kind(samples: Sequence[PromptSample]) -> dict[str, dict[str, float]]:
    """Tokens a second by kind of prompt and by generator: the median over prompts and passes."""
    speeds: dict[str, dict[str, list[float]]] = {}
    for s in samples:
        speeds.setdefault(s.prompt.kind, {}).setdefault(s.generator, []).append(s.tokens_per_s)
    return {kind: {g: statistics.median(v) for g, v in rows.items()} for kind, rows in speeds.items()}


def print_speeds(speeds: dict[str, dict[str, float]], own: Sequence[str], ours: str) -> None:
    for kind, row in speeds.items():
        peers = {name: speed for name, speed in row.items() if name not in own}
        print(f"{kind}: " + "  ".join(f"{name} {speed:.1f}" for name, speed in row.items()))
        if peers and ours in row:
            best = max(peers, key=lambda name: peers[name])
            print(f"    {ours} over the best of them ({best}): {row[ours] / peers[best]:.2f}x")


def same_texts(samples: Sequence[PromptSample]) -> dict[str, str]:
    """How many answers have plain decoding's text."""
    plain = {(s.prompt.id, s.pass_number): s for s in samples if s.generator == PLAIN}
    told: dict[str, list[bool]] = {}
    for s in samples:
        reference = plain.get((s.prompt.id, s.pass_number))
        if reference and s.generator != PLAIN:
            same = [a.text == b.text for a, b in zip(s.answers, reference.answers, strict=True)]
            told.setdefault(s.generator, []).append(all(same))
    return {name: f"{sum(same)} of {len(same)}" for name, same in told.items()}


def acceptance(samples: Sequence[PromptSample]) -> dict[str, float]:
    names = dict.fromkeys(s.generator for s in samples)
    drafted = {name: sum(s.total("num_drafted") for s in samples if s.generator == name) for name in names}
    accepted = {name: sum(s.total("num_accepted") for s in samples if s.generator == name) for name in names}
    return {name: accepted[name] / drafted[name] for name in names if drafted[name]}


def read_all(paths: Sequence[str], of_each_kind: int) -> list[Prompt]:
    """The shortest prompts of each kind, their first turns: reading prompts is slow on few cores, and not measured."""
    kinds: dict[str, list[Prompt]] = {}
    for path in paths:
        for prompt in read_prompts(Path(path)):
            kinds.setdefault(prompt.kind, []).append(replace(prompt, turns=prompt.turns[:1]))
    return [p for prompts in kinds.values() for p in sorted(prompts, key=lambda p: len(str(p.turns)))[:of_each_kind]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--draft")
    parser.add_argument("--prompts", nargs="*", default=[])
    parser.add_argument("--of-each-kind", type=int, default=1, help="prompts, the shortest")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--drafters", default="ngram,suffix", help="of Slipstream, beside plain decoding and model")
    parser.add_argument("--kv-type", default="auto")
    parser.add_argument("--peers", default=",".join(PEERS), help="what to run beside, or nothing: --peers ''")
    parser.add_argument("--json")
    options = parser.parse_args()

    backend = LlamaCppOptions(threads=options.threads, context_length=CONTEXT, kv_type=options.kv_type)
    model = slipstream.load_model(options.model, backend)
    draft = slipstream.load_model(options.draft, backend) if options.draft else None
    lib = library()
    print(f"llama-cpp-python {lib.__version__}: {lib.llama_print_system_info().decode()}")
    report: dict[str, Any] = {"model": options.model, "draft": options.draft, "threads": options.threads}
    costs = measure_row_cost(model.model)
    report["rows"] = {cost.rows: cost.seconds for cost in costs}
    print("rows: " + "  ".join(f"{c.rows}: {c.seconds * 1e3:.1f} ms ({c.over_one:.2f}x)" for c in costs), flush=True)
    for drafter, policy in ((PLAIN, "auto"), ("suffix", "auto"), ("suffix", "fixed(4)")):
        report[f"overhead {drafter} {policy}"] = ms = overhead_ms(model, drafter, policy)
        print(f"a round besides llama_decode, {drafter} {policy}: {ms:.2f} ms", flush=True)
    if options.prompts:
        drafters = [*options.drafters.split(","), *(["model"] if draft else [])]
        own = slipstream_generators(model, draft, drafters)
        with ExitStack() as stack:
            wanted = [name for name in options.peers.split(",") if name and (draft or name != "draft-simple")]
            methods = [name for name in wanted if name != LOOKUP]
            peers = server_generators(stack, methods, options.model, options.draft, options.threads)
            if LOOKUP in wanted:
                peers.append(PromptLookup(options.model, model, options.threads))
            prompts = read_all(options.prompts, options.of_each_kind)
            settings = BenchSettings(limits=Limits(options.tokens), passes=1, warm_prompts=True)
            samples, complete = run_bench([*own, *peers], prompts, settings, _progress)
        speeds = by_kind(samples)
        report |= {"speeds": speeds, "same": same_texts(samples), "acceptance": acceptance(samples)}
        report["complete"] = complete
        print_speeds(speeds, [g.label for g in own], "suffix")
        print(f"text as in plain decoding: {report['same']}")
        print("accepted: " + "  ".join(f"{name} {rate:.0%}" for name, rate in report["acceptance"].items()))
        for generator in own[1:]:
            print(f"policy of {generator.label}: {generator.explain().reason}")
    if options.json:
        Path(options.json).write_text(json.dumps(report, indent=1))


def _progress(done: int, total: int, what: str) -> None:
    if done % 20 == 0:
        print(f"{done} of {total}: {what}", flush=True)


if __name__ == "__main__":
    main()
