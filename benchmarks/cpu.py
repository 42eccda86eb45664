"""Slipstream against transformers on the CPU, in one interleaved run.

    python benchmarks/cpu.py [--rounds 5] [--tokens 128] [--json]

SmolLM2-135M, fp32, greedy, the same weights, the same prompt and the same threads for both. Prints medians and the
ratios that matter: plain decoding over `transformers.generate`; speculative over plain decoding on a text that copies,
and with drafters that are always wrong; the cost of n rows over one row; many streams at once over one at a time.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from datetime import date

import torch
import transformers
from transformers import LlamaConfig, LlamaForCausalLM

import slipstream
from slipstream.backends.torch.options import TorchOptions
from slipstream.core.protocols import ScoreRequest, prefill
from slipstream.core.stream import Drafter, Stream
from slipstream.core.tree import DraftTree
from slipstream.drafters.base import FreeDrafter
from slipstream.loading import LoadedModel
from slipstream.models import open_checkpoint
from slipstream.models.checkpoint import Checkpoint
from slipstream.models.tensors import expected_tensors

STORY = (
    "The lighthouse keeper climbed the stairs every evening at six. He lit the lamp, wound the clock and wrote the "
    "weather into a heavy green book. In winter the waves reached the windows, and in summer the gulls slept on the "
    "railing. Nobody had visited the island for eleven years, but the keeper laid two plates on the table every night."
)
PROMPT = [{"role": "user", "content": f"Copy the following text, and change nothing:\n\n{STORY}"}]
ROWS = (1, 2, 3, 4, 6, 8, 16)
NUM_STREAMS = 32


class AlwaysWrong(FreeDrafter):
    """Proposes a token that never follows. `is_free` False makes it one whose proposals are taken to cost time."""

    def __init__(self, is_free: bool) -> None:
        self.is_free = is_free
        self.name = "wrong (free)" if is_free else "wrong (costly)"

    def propose(self, streams: Sequence[Stream], budgets: Sequence[int]) -> list[DraftTree]:
        return [DraftTree.chain([0] * budget, [0.9] * budget) for budget in budgets]


def peer_model(checkpoint: Checkpoint) -> LlamaForCausalLM:
    """The same weights in transformers."""
    c = checkpoint.config
    config = LlamaConfig(
        vocab_size=c.vocab_size, hidden_size=c.hidden_size, intermediate_size=c.intermediate_size,
        num_hidden_layers=c.num_layers, num_attention_heads=c.num_heads, num_key_value_heads=c.num_kv_heads,
        max_position_embeddings=c.context_length, rms_norm_eps=c.norm_eps, tie_word_embeddings=c.tied_head,
        rope_parameters={"rope_type": "default", "rope_theta": c.rope_theta},
        bos_token_id=None, eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    weights = {name: torch.from_numpy(checkpoint.tensor(name).data.copy()) for name in expected_tensors(c)}
    model.load_state_dict(weights, strict=False)
    return model


def timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def row_cost(target: LoadedModel, prompt: list[int], rounds: int) -> dict[int, float]:
    """Median seconds of a forward of n rows, the sizes interleaved."""
    sequence = target.model.open(prompt, len(prompt) + 64)
    prefill(target.model, sequence, prompt[sequence.length :])
    seconds: dict[int, list[float]] = {rows: [] for rows in ROWS}
    for _ in range(4 * rounds):
        for rows in ROWS:
            request = ScoreRequest(sequence, prompt[-1:], DraftTree.chain(prompt[: rows - 1]))
            seconds[rows].append(timed(lambda request=request: target.model.score([request])))
    sequence.close()
    return {rows: statistics.median(samples) for rows, samples in seconds.items()}


def many_streams(target: LoadedModel, tokens: int = 32) -> dict[str, object]:
    """Prompts of mixed lengths, one after the other and all at once: tokens/s and whether the texts agree."""
    prompts = [STORY[: 40 + 13 * i] for i in range(NUM_STREAMS)]
    limits = slipstream.Limits(tokens, ignore_eos=True)

    def run_alone() -> list[list[int]]:
        return [slipstream.load(target, drafter="ngram").generate(p, None, limits).result().tokens for p in prompts]

    def run_together() -> list[list[int]]:
        engine = slipstream.load(target, drafter="ngram", max_streams=NUM_STREAMS)
        running = [engine.generate(p, None, limits) for p in prompts]
        return [generation.result().tokens for generation in running]

    texts: list[list[list[int]]] = []
    alone_s = timed(lambda: texts.append(run_alone()))
    together_s = timed(lambda: texts.append(run_together()))
    total = NUM_STREAMS * tokens
    return {
        "streams": NUM_STREAMS,
        "alone_tokens_per_s": total / alone_s,
        "together_tokens_per_s": total / together_s,
        "text_identical": texts[0] == texts[1],
    }


def measure(rounds: int, tokens: int) -> dict[str, object]:
    checkpoint = open_checkpoint("smollm2-135m")
    target = slipstream.load_model("smollm2-135m", TorchOptions(device="cpu", dtype="fp32"))
    peer = peer_model(checkpoint)
    prompt = checkpoint.tokenizer.chat_ids(PROMPT)
    limits = slipstream.Limits(tokens, ignore_eos=True)
    to_the_end = slipstream.Limits(tokens)  # the copy alone: what comes after its end token is no rewriting
    ids = torch.tensor([prompt])

    def run_peer() -> list[int]:
        with torch.inference_mode():
            out = peer.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, do_sample=False)
        return out[0, len(prompt) :].tolist()

    drafters: dict[str, Callable[[], str | Drafter]] = {
        "none": lambda: "none",
        "ngram": lambda: "ngram",
        "suffix": lambda: "suffix",
        "wrong (free)": lambda: AlwaysWrong(True),
        "wrong (costly)": lambda: AlwaysWrong(False),
    }

    def run_ours(name: str) -> slipstream.Generation:
        return slipstream.load(target, drafter=drafters[name]()).generate(prompt, None, limits).result()

    def copy_speed(name: str) -> float:
        engine = slipstream.load(target, drafter=drafters[name]())
        return engine.generate(prompt, None, to_the_end).result().stats.tokens_per_s

    names = ("transformers", *drafters)
    speeds: dict[str, list[float]] = {name: [] for name in names}
    copies: dict[str, list[float]] = {name: [] for name in ("none", "ngram", "suffix")}
    texts: dict[str, list[int]] = {}
    for turn in range(rounds + 1):
        for name in names:
            if name == "transformers":
                prefill_s = timed(lambda: peer.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=1))
                seconds = timed(lambda: texts.update(transformers=run_peer())) - prefill_s
                speed = (tokens - 1) / seconds
            else:
                generation = run_ours(name)
                texts[name], speed = generation.tokens, generation.stats.tokens_per_s
            if turn:  # the first turn warms up
                speeds[name].append(speed)
                if name in copies:
                    copies[name].append(copy_speed(name))
    cost = row_cost(target, prompt, rounds)
    medians = {name: statistics.median(values) for name, values in speeds.items()}
    return {
        "date": date.today().isoformat(),
        "machine": f"{platform.machine()}, {torch.get_num_threads()} threads",
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        "tokens": tokens,
        "tokens_per_s": medians,
        "plain_over_transformers": medians["none"] / medians["transformers"],
        "speedup": {name: medians[name] / medians["none"] for name in drafters},
        "speedup_of_copying": {
            name: statistics.median(a / b for a, b in zip(copies[name], copies["none"], strict=True)) for name in copies
        },
        "rows_ms": {rows: seconds * 1e3 for rows, seconds in cost.items()},
        "rows_over_one": {rows: seconds / cost[1] for rows, seconds in cost.items()},
        "many_streams": many_streams(target),
        "text_identical": all(texts[name] == texts["none"] for name in drafters),
        "same_as_transformers": texts["none"] == texts["transformers"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    result = measure(arguments.rounds, arguments.tokens)
    if arguments.json:
        print(json.dumps(result))
        return
    for name, value in result.items():
        print(f"{name}: {value}")


if __name__ == "__main__":
    main()
