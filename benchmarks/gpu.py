"""The CUDA path on one GPU: speeds against the memory's limit, correctness, many streams, transformers beside it.

    python benchmarks/gpu.py [--only plain,rows,…] [--tokens 256] [--real smollm2-135m] [--json FILE]

Models are random weights in the shapes of Llama 3 and Qwen 2.5, bf16; acceptance is forced where it says synthetic.
Everything else is the real engine on the real kernels. `real` holds a real model's text on the GPU against its text on
the CPU in float32. Figures are medians; `spread` is the lowest and the highest of the repeats. The whole takes about 10
minutes on an H200.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import torch
from quantised_shapes import Fp8Shape, QuantisedShape, packed_once

import slipstream
from slipstream.backends.torch.load import load_model
from slipstream.backends.torch.options import TorchOptions
from slipstream.core.engine import Engine
from slipstream.core.prefix import common_prefix_length
from slipstream.core.protocols import ScoreRequest, prefill
from slipstream.core.sampling import Sampling
from slipstream.core.stats import Stats
from slipstream.core.stream import Drafter, Limits, Stream
from slipstream.core.tree import ROOT, DraftTree
from slipstream.drafters.base import FreeDrafter
from slipstream.drafters.head.drafter import HeadDrafter, HeadOptions
from slipstream.drafters.model import DraftModelDrafter
from slipstream.loading import LoadedModel, freeze_loaded
from slipstream.measurement.row_cost import measure_row_cost
from slipstream.measurement.synthetic import forced_acceptance
from slipstream.models.checkpoint import RawTensor
from slipstream.models.draft_heads.config import HeadConfig, default_feature_layers
from slipstream.models.draft_heads.layouts import head_tensors
from slipstream.models.shapes import RandomCheckpoint
from slipstream.policy import make_policy

PROMPT_TOKENS = 256
ROWS = (1, 2, 4, 8, 16, 32)
STREAMS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
PROMPTS = (512, 2048, 8192, 16_384)
SHAPES = ("qwen-0.5b", "qwen-1.5b", "llama-3b", "qwen-3b", "qwen-7b")
BURST = (256, 128, 128)  # requests, all at once; tokens of each prompt and of each answer
Report = dict[str, Any]
Answers = dict[tuple[int, ...], list[int]]  # by prompt


class Guesses(FreeDrafter):
    """Proposes something at no cost, as an n-gram drafter does. Whether it is taken is forced."""

    name = "free"

    def propose(self, streams: Sequence[Stream], budgets: Sequence[int]) -> list[DraftTree]:
        return [DraftTree.chain([7] * budget, [0.8] * budget) for budget in budgets]


class RandomHead:
    """A draft head of EAGLE-3's shape for a target, with random weights."""

    def __init__(self, target: RandomCheckpoint, draft_vocab: int = 32_000) -> None:
        layer = replace(target.config, num_layers=1, tied_head=False)
        layers = default_feature_layers(target.config.num_layers)
        self.config = HeadConfig(layer, draft_vocab, layers, layer.hidden_size)
        self.name, self.path = f"head of {target.name}", Path("synthetic/head")
        self._shapes = head_tensors(self.config)
        self._block = (np.random.default_rng(1).standard_normal(1 << 20) * 0.02).astype(np.float32)

    def tensor(self, name: str) -> RawTensor:
        shape = self._shapes[name]
        return RawTensor("F32", np.ones(shape, np.float32)) if "norm" in name else RawTensor("F32", self._block, shape)

    def token_ids(self) -> Any:
        return np.arange(self.config.draft_vocab_size, dtype=np.int64)


class Remembering(FreeDrafter):
    """Proposes what plain decoding gave for the same prompt, some of it wrong, with the right one beside it."""

    name = "remembering"

    def __init__(self, answers: Answers, wrong: float = 0.2) -> None:
        self._answers = answers
        self._wrong = wrong
        self._texts: dict[int, list[int]] = {}  # by stream: looking a prompt up takes longer than drafting should
        noise = random.Random(0)
        self._is_wrong = [noise.random() < wrong for _ in range(4099)]

    def propose(self, streams: Sequence[Stream], budgets: Sequence[int]) -> list[DraftTree]:
        return [self._one(stream, budget) for stream, budget in zip(streams, budgets, strict=True)]

    def _one(self, stream: Stream, budget: int) -> DraftTree:
        if stream.id not in self._texts:
            self._texts[stream.id] = self._answers[tuple(stream.tokens[: stream.prompt_length])]
        at = stream.num_answer_tokens
        right = self._texts[stream.id][at : at + max(budget - 2, 1)]
        places = range(31 * stream.id + at, 31 * stream.id + at + len(right))
        tokens = [t + self._is_wrong[place % 4099] for t, place in zip(right, places, strict=True)]
        chain = DraftTree.chain(tokens, [1 - self._wrong] * len(tokens))
        if len(right) < 2 or tokens[0] == right[0] or budget < 3:
            return chain
        return DraftTree((*tokens, right[0], right[1]), (*chain.parents, ROOT, len(tokens)))


def load_quantised(checkpoint: QuantisedShape | Fp8Shape) -> LoadedModel:
    """With room for 8,192 tokens and a little."""
    with packed_once():
        loaded = load_model(checkpoint, TorchOptions(device="cuda", context_length=8192, kv_tokens=8192 + 2048))
    torch.cuda.empty_cache()
    model = LoadedModel(loaded, checkpoint.tokenizer)
    freeze_loaded()
    return model


def load(shape: str, exact: bool = False) -> LoadedModel:
    checkpoint = RandomCheckpoint(shape)
    options = TorchOptions(device="cuda", context_length=20_000, kv_tokens=130_000, exact=exact)
    model = LoadedModel(load_model(checkpoint, options), checkpoint.tokenizer)
    freeze_loaded()
    return model


def prompt(length: int = PROMPT_TOKENS, seed: int = 0) -> list[int]:
    return [random.Random(seed * 10_007 + i).randrange(1000, 100_000) for i in range(length)]


def decode(
    model: LoadedModel,
    tokens: int,
    drafter: Drafter | None = None,
    policy: str = "auto",
    acceptance: float | None = None,
    streams: int = 1,
    repeats: int = 3,
    draft: LoadedModel | None = None,
) -> Report:
    """Medians over repeats: tokens a second, milliseconds and tokens a round, of all streams together.

    `draft` is the model that `drafter` asks.
    """
    verifier = "matching" if acceptance is None else forced_acceptance(acceptance)
    seen: list[Report] = []
    engine = slipstream.load(model, draft=draft, drafter=drafter or "none", policy=policy, max_streams=streams)
    for turn in range(repeats + 1):
        limits = Limits(max_tokens=tokens if turn else 48, ignore_eos=True)
        running = [
            engine.generate(prompt(seed=i), Sampling(seed=turn * streams + i), limits, verifier=verifier)
            for i in range(streams)
        ]
        while any(len(g.stream.tokens) <= g.stream.prompt_length for g in running):
            engine.step()
        made = sum(g.stream.num_answer_tokens for g in running)
        rounds, began = 0, time.perf_counter()
        while not any(g.stream.done for g in running):  # those that are left would have the GPU to themselves
            engine.step()
            rounds += 1
        seconds = time.perf_counter() - began
        gained = sum(g.stream.num_answer_tokens for g in running) - made
        stats = running[0].stats
        while engine.step():
            pass
        if turn:
            seen.append(
                {
                    "tokens_per_s": gained / seconds,
                    "ms_per_round": seconds / rounds * 1e3,
                    "tokens_per_round": gained / streams / rounds,
                    "draft_ms": stats.draft_s / max(stats.rounds - 1, 1) * 1e3,
                    "score_ms": stats.score_s / max(stats.rounds - 1, 1) * 1e3,
                    "rest_ms": stats.rest_s / max(stats.rounds - 1, 1) * 1e3,
                    "drafted": stats.num_drafted / max(stats.rounds - 1, 1),
                }
            )
    model.model.forget_prompts()
    speeds = [run["tokens_per_s"] for run in seen]
    return {key: statistics.median(run[key] for run in seen) for key in seen[0]} | {
        "spread": (min(speeds), max(speeds))
    }


def graph_ms(model: LoadedModel, rows: int) -> float:
    """The device's own time for a forward of so many rows: what is left of a round is the host's."""
    place = model.model.open([], PROMPT_TOKENS + 200)
    prefill(model.model, place, prompt(PROMPT_TOKENS + 128))
    model.model.score([ScoreRequest(place, [7], DraftTree.chain([7] * (rows - 1)))])  # what the graph will read
    place.close()
    bucket = model.model._runner.bucket(rows)  # type: ignore[attr-defined]
    times = []
    for _ in range(15):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        bucket.run()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times)


def read_bandwidth() -> float:
    """Bytes a second of reading alone: the best of a product and of a maximum over 2 GB."""
    weight = torch.randn(256 * 1024, 4096, device="cuda", dtype=torch.bfloat16)
    x = torch.randn(1, 4096, device="cuda", dtype=torch.bfloat16)
    best = float("inf")
    for read in (lambda: torch.nn.functional.linear(x, weight), lambda: weight.view(torch.int32).amax()) * 20:
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        read()
        end.record()
        torch.cuda.synchronize()
        best = min(best, start.elapsed_time(end))
    return weight.nbytes / best * 1e3


class Bench:
    def __init__(self, tokens: int, real: str) -> None:
        self.tokens = tokens
        self.real_model = real
        self.report: Report = {
            "date": date.today().isoformat(), "gpu": torch.cuda.get_device_name(), "torch": torch.__version__,
            "slipstream": slipstream.__version__, "read_bytes_per_s": read_bandwidth(),
        }  # fmt: skip
        self._models: dict[str, LoadedModel] = {}
        self.say(f"{self.report['gpu']}, reads {self.report['read_bytes_per_s'] / 1e12:.2f} TB/s")

    def say(self, line: str) -> None:
        print(line, flush=True)

    def model(self, shape: str) -> LoadedModel:
        if shape not in self._models:
            began = time.perf_counter()
            self._models[shape] = load(shape)
            self.say(f"loaded {shape} in {time.perf_counter() - began:.1f} s")
        return self._models[shape]

    # -- sections -------------------------------------------------------------------------------------------------

    def correctness(self) -> None:
        """Graphs in bf16 against plain torch in float32: the worst relative error of a row of logits."""
        from slipstream.backends.torch.decoder import load_decoder
        from slipstream.backends.torch.eager import EagerRunner
        from slipstream.backends.torch.kv_pool import KVPool
        from slipstream.backends.torch.load import _model, _Setup
        from slipstream.backends.torch.reference import ReferenceOps

        checkpoint, device = RandomCheckpoint("llama-1b"), torch.device("cuda", 0)
        with torch.inference_mode():
            ops = ReferenceOps(torch.float32)
            decoder = load_decoder(checkpoint, ops, device, 4096)
            pool = KVPool(checkpoint.config, 4096, torch.float32, device)
        torch.backends.cuda.matmul.allow_tf32 = False

        def eager(decoder: Any, pool: KVPool) -> EagerRunner:
            return EagerRunner(decoder, pool, device)

        truth = _model(_Setup("reference", device, "fp32", 4096, 4096, torch.float32, 512, 512), decoder, pool, eager)
        mine = self.model("llama-1b").model
        tree = DraftTree((11, 12, 13, 14, 15), (-1, 0, 1, 0, 3))
        worst = 0.0
        places = [m.open([], 400) for m in (truth, mine)]
        for place, m in zip(places, (truth, mine), strict=True):
            prefill(m, place, prompt(300))
        scores = [m.score([ScoreRequest(p, [5], tree)])[0] for p, m in zip(places, (truth, mine), strict=True)]
        for node in range(-1, len(tree)):
            a, b = (torch.from_numpy(s.row(node).copy()).double() for s in scores)
            worst = max(worst, float((a - b).norm() / a.norm()))
        for place in places:
            place.close()
        self.report["logits_error"] = worst
        self.say(f"logits against float32 plain torch (1B, prompt of 300, a tree): relative error {worst:.1e}")

    def plain(self) -> None:
        self.report["plain"] = {}
        self.say(f"{'plain':>10} | tok/s | ms/round | graph ms | host ms | of the limit")
        for shape in ("llama-1b", "llama-3b", "llama-8b"):
            model = self.model(shape)
            run = decode(model, self.tokens)
            run["graph_ms"] = graph_ms(model, 1)
            limit_ms = model.model.info.weight_bytes / self.report["read_bytes_per_s"] * 1e3
            run["share_of_limit"] = limit_ms / run["ms_per_round"]
            self.report["plain"][shape] = run
            self.say(
                f"{shape:>10} | {run['tokens_per_s']:5.0f} | {run['ms_per_round']:8.3f} | {run['graph_ms']:8.3f} | "
                f"{run['ms_per_round'] - run['graph_ms']:7.3f} | {run['share_of_limit']:.0%}"
            )

    def kernels(self) -> None:
        """Where a step's time goes: the mean duration of each kernel, one after the other."""
        from torch.profiler import ProfilerActivity, profile

        self.report["kernels"] = {}
        for shape in ("llama-1b", "llama-8b"):
            graph_ms(self.model(shape), 1)
            bucket = self.model(shape).model._runner.bucket(1)  # type: ignore[attr-defined]
            with profile(activities=[ProfilerActivity.CUDA]) as profiler:
                bucket.run()
                torch.cuda.synchronize()
            events = sorted(
                (e for e in profiler.events() if "kernel" in e.name and e.device_time_total),
                key=lambda e: e.time_range.start,
            )
            layer = [(e.name, e.device_time_total) for e in events]
            width = 5  # qkv, attention, output, gate and up, down
            body = [t for _, t in layer[1:-3]]
            means = [statistics.mean(body[i::width]) for i in range(width)]
            self.report["kernels"][shape] = {"layer_us": means, "rest_us": layer[:1] + layer[-3:]}
            self.say(
                f"{shape}: qkv, attention, output, gate-up, down {[round(t, 1) for t in means]} us; "
                f"embedding, head, choice {[round(t, 1) for _, t in layer[:1] + layer[-3:]]} us"
            )

    def speculative(self) -> None:
        """8B with free drafts and with a 1B draft, four tokens each, synthetic acceptance 0.8."""
        target, draft = self.model("llama-8b"), self.model("llama-1b")
        plain = decode(target, self.tokens)
        smaller = draft.model.first_tokens(32_768)  # type: ignore[attr-defined]
        drafters: dict[str, Drafter] = {
            "free": Guesses(),
            "llama-1b": DraftModelDrafter(draft.model),
            "llama-1b (head of 32,768)": DraftModelDrafter(smaller),
        }
        self.report["speculative"] = {"plain": plain}
        for name, drafter in drafters.items():
            run = decode(target, self.tokens, drafter, "fixed(4)", 0.8)
            drafting = draft if name == "llama-1b" else replace(draft, model=smaller)
            device_ms = graph_ms(target, 8) + (4 * graph_ms(drafting, 1) if name != "free" else 0.0)
            ideal = run["tokens_per_round"] * plain["ms_per_round"] / device_ms
            run |= {"device_ms": device_ms, "speedup": run["tokens_per_s"] / plain["tokens_per_s"], "ideal": ideal}
            self.report["speculative"][name] = run
            self.say(
                f"8B + {name}, k=4, synthetic 0.8: {run['tokens_per_s']:.0f} tok/s, {run['tokens_per_round']:.2f} "
                f"tokens and {run['ms_per_round']:.2f} ms a round (device {device_ms:.2f}, host "
                f"{run['ms_per_round'] - device_ms:.2f}); {run['speedup']:.2f}x of plain, {run['speedup'] / ideal:.0%} "
                "of the theoretical speed-up"
            )

    def heads(self) -> None:
        """8B with a head of EAGLE-3's shape: what drafting costs against one forward of the target. Where acceptance is
        forced, each round waits for the host; `rounds` goes on by itself, and nothing is accepted in it."""
        target = self.model("llama-8b")
        plain = decode(target, self.tokens)
        head = target.model.attach_head(RandomHead(RandomCheckpoint("llama-8b")))  # type: ignore[attr-defined]
        chains = decode(
            target, self.tokens, HeadDrafter(head, target.model.info.vocab_size, HeadOptions(1)), "fixed(5)"
        )
        chains["cost"] = (chains["ms_per_round"] - graph_ms(target, 8)) / plain["ms_per_round"]
        self.report["heads"] = {"plain": plain, "rounds": chains}
        self.say(
            f"8B + head, rounds with a draft of 5 that go on by themselves: {chains['ms_per_round']:.2f} ms, "
            f"{chains['cost']:.2f}x of a plain step more than a forward of 6 tokens ({graph_ms(target, 8):.2f} ms)"
        )
        cases = (("chain of 5", 1, 5, 0.8), ("chain of 8", 1, 8, 0.9), ("tree of 32", 8, 32, 0.8))
        for name, width, nodes, acceptance in cases:
            drafter = HeadDrafter(head, target.model.info.vocab_size, HeadOptions(width))
            run = decode(target, self.tokens, drafter, f"fixed({nodes})", acceptance)
            run["cost"] = run["draft_ms"] / plain["ms_per_round"]
            self.report["heads"][name] = run
            self.say(
                f"8B + head, {name}, synthetic {acceptance}: {run['tokens_per_s']:.0f} tok/s "
                f"({run['tokens_per_s'] / plain['tokens_per_s']:.2f}x of plain), {run['tokens_per_round']:.2f} tokens "
                f"and {run['ms_per_round']:.2f} ms a round, drafting {run['draft_ms']:.2f} ms: {run['cost']:.2f}x of a "
                f"plain step ({plain['ms_per_round']:.2f} ms)"
            )

    def quantised(self) -> None:
        """Random weights in Q4_K_M: rows, plain decoding, free drafts, memory; then 70B alone and with drafts."""
        self.report["quantised"] = {}
        small, draft = (load_quantised(QuantisedShape(shape)) for shape in ("llama-8b", "llama-1b"))
        self._quantised_alone("llama-8b", small)
        self._quantised_drafts("llama-8b", small, {"free": Guesses(), "llama-1b": DraftModelDrafter(draft.model)})
        large = load_quantised(QuantisedShape("llama-70b"))
        self._quantised_alone("llama-70b", large)
        helpers = {"llama-8b": small, "llama-1b": draft}
        self._quantised_drafts("llama-70b", large, {k: DraftModelDrafter(m.model) for k, m in helpers.items()})

    def fp8(self) -> None:
        """Random weights in FP8, embedding and head in bf16: rows, plain decoding, free drafts, memory."""
        self.report.setdefault("quantised", {})
        model = load_quantised(Fp8Shape("llama-8b"))
        assert model.model.info.dtype == "fp8"
        self._quantised_alone("llama-8b-fp8", model, "FP8")
        self._quantised_drafts("llama-8b-fp8", model, {"free": Guesses()})

    def _quantised_alone(self, shape: str, model: LoadedModel, form: str = "Q4_K_M") -> None:
        config, plain = model.model._runner._decoder.config, decode(model, self.tokens)  # type: ignore[attr-defined]
        embedding = model.model._runner._decoder.embedding.num_bytes  # type: ignore[attr-defined]
        cache = 8192 * 2 * 2 * config.num_layers * config.num_kv_heads * config.head_dim
        rows = {count: graph_ms(model, count) for count in (1, 2, 4, 8, 16, 32, 64)}
        held = model.model.info.weight_bytes + embedding + cache
        place = model.model.open([], 4096)
        began = time.perf_counter()
        prefill(model.model, place, prompt(2048))
        read_s = time.perf_counter() - began
        place.close()
        self.report["quantised"][shape] = plain | {
            "rows_ms": rows,
            "held_bytes": held,
            "prompt_tokens_per_s": 2048 / read_s,
        }
        self.say(
            f"{shape} in {form}: {plain['tokens_per_s']:.0f} tok/s plain; {held / 1e9:.2f} GB of weights and 8k of "
            f"cache; reads {2048 / read_s:.0f} tok/s of a prompt; rows "
            + ", ".join(f"{count}: {ms:.2f} ms ({ms / rows[1]:.2f}x)" for count, ms in rows.items())
        )

    def _quantised_drafts(self, shape: str, model: LoadedModel, drafters: Mapping[str, Drafter]) -> None:
        plain = self.report["quantised"][shape]["tokens_per_s"]
        for name, drafter in drafters.items():
            for acceptance in (0.7, 0.8):
                run = decode(model, self.tokens, drafter, "fixed(4)", acceptance)
                self.report["quantised"][f"{shape} + {name}, {acceptance}"] = run
                self.say(
                    f"{shape} + {name}, k=4, synthetic {acceptance}: {run['tokens_per_s']:.0f} tok/s, "
                    f"{run['tokens_per_s'] / plain:.2f}x of plain"
                )

    def pairs(self) -> None:
        """A 1B draft for 3B and 8B, as the policy drafts, at synthetic acceptance."""
        draft = self.model("llama-1b")
        self.report["pairs"] = []
        for shape in ("llama-3b", "llama-8b"):
            target = self.model(shape)
            plain = decode(target, self.tokens)
            step, one = graph_ms(draft, 1), graph_ms(target, 1)
            cost = {bucket: graph_ms(target, bucket) for bucket in (2, 4, 8, 16)}
            for acceptance in (0.7, 0.8, 0.9):
                run = decode(target, self.tokens, DraftModelDrafter(draft.model), "auto", acceptance, draft=draft)
                best = max(
                    sum(acceptance**i for i in range(k + 1)) * one / (cost[min(b for b in cost if b > k)] + k * step)
                    for k in range(1, 16)
                )
                row = {
                    "target": shape, "acceptance": acceptance, "plain": plain["tokens_per_s"],
                    "tokens_per_s": run["tokens_per_s"], "speedup": run["tokens_per_s"] / plain["tokens_per_s"],
                    "possible": best, "drafted": run["drafted"],
                }  # fmt: skip
                self.report["pairs"].append(row)
                self.say(
                    f"{shape} + 1B, synthetic {acceptance}: {row['speedup']:.2f}x at {row['drafted']:.1f} drafted a "
                    f"round; {best:.2f}x is possible with these costs"
                )

    def rows(self) -> None:
        model = self.model("llama-8b").model
        self.report["rows"] = {}
        for context in (256, 2048, 16384):
            costs = measure_row_cost(model, ROWS, context=context, repeats=9)
            self.report["rows"][context] = {cost.rows: cost.seconds * 1e3 for cost in costs}
            cells = "  ".join(f"{c.rows}: {c.seconds * 1e3:.2f} ms ({c.over_one:.2f}x)" for c in costs)
            self.say(f"8B rows at {context}: {cells}")

    def prompts(self) -> None:
        """Milliseconds from a prompt to its first token."""
        model = self.model("llama-8b")
        engine = slipstream.load(model, drafter="none", max_streams=1)
        self.report["prompts"] = {}
        for length in PROMPTS:
            times = []
            for tokens in [prompt(length, seed) for seed in range(6)]:  # the first is not counted
                began = time.perf_counter()
                engine.generate(tokens, Sampling(), Limits(max_tokens=1, ignore_eos=True)).result()
                times.append((time.perf_counter() - began) * 1e3)
                model.model.forget_prompts()
            median, spread = statistics.median(times[1:]), (min(times[1:]), max(times[1:]))
            self.report["prompts"][length] = {"ms": median, "spread": spread}
            self.say(f"8B, prompt of {length}: {median:.1f} ms ({spread[0]:.1f} to {spread[1]:.1f})")

    def burst(self) -> None:
        """Many requests at once, until the last is answered: reading prompts is part of it."""
        count, prompt_tokens, tokens = BURST
        model, speeds = self.model("llama-8b"), []
        for turn in range(4):  # the first is not counted
            engine = slipstream.load(model, drafter="none", max_streams=count)
            prompts = [prompt(prompt_tokens, turn * count + i) for i in range(count)]
            limits, began = Limits(max_tokens=tokens, ignore_eos=True), time.perf_counter()
            running = [engine.generate(one, Sampling(), limits) for one in prompts]
            while engine.step():
                pass
            speeds.append(sum(len(g.tokens) for g in running) / (time.perf_counter() - began))
            model.model.forget_prompts()
        median, spread = statistics.median(speeds[1:]), (min(speeds[1:]), max(speeds[1:]))
        self.report["burst"] = {"tokens_per_s": median, "spread": spread}
        self.say(f"8B, {count} requests at once: {median:.0f} tok/s ({spread[0]:.0f} to {spread[1]:.0f})")

    def shapes(self) -> None:
        """Other shapes: plain, and with free drafts of four tokens, synthetic acceptance 0.8."""
        self.report["shapes"] = {}
        for shape in SHAPES:
            model = load(shape)
            plain = decode(model, self.tokens)
            free = decode(model, self.tokens, Guesses(), "fixed(4)", 0.8)
            limit = self.report["read_bytes_per_s"] / model.model.info.weight_bytes
            self.report["shapes"][shape] = {"plain": plain, "free": free, "limit": limit}
            self.say(
                f"{shape}: plain {plain['tokens_per_s']:.0f} tok/s ({plain['spread'][0]:.0f} to "
                f"{plain['spread'][1]:.0f}), {plain['tokens_per_s'] / limit:.0%} of the limit; free drafts "
                f"{free['tokens_per_s']:.0f} tok/s"
            )

    def streams(self) -> None:
        """Throughput of many streams, plain and as the policy drafts, with free drafts of which so many are forced to
        be right."""
        model = self.model("llama-8b")
        self.report["streams"] = []
        for count in STREAMS:
            run = decode(model, 128, streams=count)
            plain = run["tokens_per_s"]
            row = {"streams": count, "plain": plain, "lowest": run["spread"][0], "highest": run["spread"][1]}
            for right in (0.0, 0.2, 0.8):
                run = decode(model, 128, Guesses(), "auto", right, streams=count)
                row[f"{right:.0%} right"] = run["tokens_per_s"] / plain
            self.report["streams"].append(row)
            self.say("streams " + "  ".join(f"{k}: {v:.2f}" for k, v in row.items()))

    def exact(self) -> None:
        """50 prompts x 256 tokens at 8B: speculative decoding against plain decoding, bit for bit."""
        self._models.clear()
        torch.cuda.empty_cache()
        model = load("llama-8b", exact=True)
        self.report["exact"] = {}
        for name, sampling in (("greedy", Sampling()), ("sampled", Sampling(temperature=0.8, seed=11))):
            limits = Limits(max_tokens=256, ignore_eos=True)
            prompts = [prompt(48, seed) for seed in range(50)]
            together = Engine(model.model, model.tokenizer, None, make_policy("auto"), max_streams=25)
            running = [together.generate(p, sampling, limits) for p in prompts]
            answers = {tuple(p): g.result().tokens for p, g in zip(prompts, running, strict=True)}
            alone = Engine(model.model, model.tokenizer, None, make_policy("auto"))
            lone = sum(alone.generate(p, sampling, limits).result().tokens == answers[tuple(p)] for p in prompts[:4])
            drafting = Engine(model.model, model.tokenizer, Remembering(answers), make_policy("fixed(7)"))
            stats: list[Stats] = []
            same = 0
            for p in prompts:
                done = drafting.generate(p, sampling, limits).result()
                stats.append(done.stats)
                same += done.tokens == answers[tuple(p)]
            accepted = sum(s.num_accepted for s in stats) / sum(s.num_drafted for s in stats)
            self.report["exact"][name] = {"same": same, "of": len(prompts), "accepted": accepted, "alone": lone}
            self.say(
                f"exact, {name}: {same} of {len(prompts)} answers of 256 tokens bit-identical to plain decoding "
                f"({accepted:.0%} of drafted tokens accepted; plain alone and among 25: {lone} of 4 the same)"
            )

    def real(self) -> None:
        """A real model: its text on the GPU against the CPU's in float32, and its speed."""
        from slipstream.measurement.audit import logit_gap
        from slipstream.measurement.prompt_files import own_prompts

        prompts = own_prompts()[:12]
        limits = Limits(max_tokens=64)
        self.report["real"] = {}
        on_cpu = slipstream.load(self.real_model, drafter="none", options=TorchOptions(device="cpu", dtype="fp32"))
        expected = [on_cpu.generate(p.request(), Sampling(), limits).result().tokens for p in prompts]
        gap_of = logit_gap(on_cpu.target, lambda p: on_cpu.encode(p.request()))
        for dtype in ("fp32", "bf16"):
            options = TorchOptions(device="cuda", dtype=dtype, context_length=2048)
            model = slipstream.load_model(self.real_model, options)
            freeze_loaded()
            figures: Report = {"ties": []}
            for drafter in ("none", "suffix"):
                engine = slipstream.load(model, drafter=drafter)
                answers = [engine.generate(p.request(), Sampling(), limits).result() for p in prompts]
                for prompt, answer, truth in zip(prompts, answers, expected, strict=True):
                    at = common_prefix_length(answer.tokens, truth)
                    if at < max(len(truth), len(answer.tokens)):
                        other, own = ([*t, -1][at] for t in (answer.tokens, truth))
                        gap = gap_of(prompt, Sampling(), truth[:at], own, other)
                        figures["ties"].append((drafter, prompt.id, at, gap))
                seconds = sum(a.stats.total_s - a.stats.ttft_s for a in answers)
                figures[drafter] = sum(len(a.tokens) - 1 for a in answers) / seconds
            self.report["real"][dtype] = figures
            gaps = "; ".join(f"{d} {i} at token {at}, logits {gap:.4f} apart" for d, i, at, gap in figures["ties"])
            self.say(
                f"{self.real_model}, {dtype}: {figures['none']:.0f} tok/s plain, {figures['suffix']:.0f} with suffix; "
                f"text of {2 * len(prompts) - len(figures['ties'])} of {2 * len(prompts)} answers as on the CPU in "
                f"fp32{'; others part at ' + gaps if gaps else ''}"
            )

    def transformers(self) -> None:
        from transformers import LlamaConfig, LlamaForCausalLM

        config = LlamaConfig(
            vocab_size=128256, hidden_size=4096, intermediate_size=14336, num_hidden_layers=32,
            num_attention_heads=32, num_key_value_heads=8, max_position_embeddings=8192, rope_theta=500000.0,
        )  # fmt: skip
        with torch.device("cuda"):
            torch.set_default_dtype(torch.bfloat16)
            peer = LlamaForCausalLM(config).eval()
            torch.set_default_dtype(torch.float32)
        ids = torch.tensor([prompt()], device="cuda")

        def run(count: int) -> float:
            torch.cuda.synchronize()
            began = time.perf_counter()
            peer.generate(ids, max_new_tokens=count, min_new_tokens=count, do_sample=False, pad_token_id=0)
            torch.cuda.synchronize()
            return time.perf_counter() - began

        run(8)
        short, long = run(8), run(72)
        self.report["transformers"] = 64 / (long - short)
        self.say(f"transformers, 8B, dynamic cache: {self.report['transformers']:.0f} tok/s")


SECTIONS = [
    "plain",
    "kernels",
    "speculative",
    "rows",
    "prompts",
    "streams",
    "burst",
    "shapes",
    "heads",
    "pairs",
    "quantised",
    "fp8",
    "correctness",
    "exact",
    "real",
    "transformers",
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(SECTIONS), help=f"sections: {', '.join(SECTIONS)}")
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--real", default="smollm2-135m", help="a real model, for its text")
    parser.add_argument("--json", help="a file for all figures")
    options = parser.parse_args()
    began = time.perf_counter()
    bench = Bench(options.tokens, options.real)
    for name in options.only.split(","):
        section: Callable[[], None] = getattr(bench, name)
        section()
        bench.say(f"-- {name}: {time.perf_counter() - began:.0f} s so far")
        if options.json:
            Path(options.json).write_text(json.dumps(bench.report, indent=1))


if __name__ == "__main__":
    main()
