"""Draft heads between Slipstream and the speculators package: does each load what the other wrote, and draft the same?

Needs an environment of its own with both (pip install -e . speculators; torchvision must match torch or be left out):

    PYTHONPATH=src:tests python tools/check_speculators.py               random heads, written by each of the two
    PYTHONPATH=src:tests python tools/check_speculators.py HEAD          a head on this disk with random features
    PYTHONPATH=src:tests python tools/check_speculators.py --record DIR  tiny heads of the package, for the tests
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from head_oracle import HeadOracle
from slipstream.models.checkpoint import RawTensor
from slipstream.models.config import DecoderConfig
from slipstream.models.draft_heads.config import HeadConfig
from slipstream.models.draft_heads.export import save_head
from slipstream.models.draft_heads.files import open_head
from slipstream.models.draft_heads.layouts import head_tensors
from slipstream.models.hf.checkpoint import stored_tensors
from slipstream.models.rope import Llama3Scaling, llama3_divisors

STEPS = 4
LENGTHS = (1, 2, 9, 33, 65)  # of the texts before the draft
TOLERANCE = 1e-3  # of the spread of the logits, in float32
OF_TARGET = {"embed_tokens.weight", "verifier_norm.weight", "verifier_lm_head.weight"}  # read from there if not saved
SMOLLM2 = DecoderConfig(
    architecture="llama", vocab_size=49152, hidden_size=576, intermediate_size=1536, num_layers=1, num_heads=9,
    num_kv_heads=3, head_dim=64, context_length=8192, norm_eps=1e-5, rope_theta=100000.0,
)  # fmt: skip
LLAMA3_ROPE = {
    "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip


def compare(folder: Path) -> bool:
    """Whether both draft the same, with the embedding that the package uses."""
    head = open_head(folder, folder.name)
    theirs = load_theirs(folder)
    oracle = HeadOracle.of(head, theirs.embed_tokens.weight.detach())
    generator = torch.Generator().manual_seed(0)
    same, differences = 0, []
    for length in LENGTHS:
        features = torch.randn(length + STEPS - 1, head.config.features_size, generator=generator)
        tokens = torch.randint(head.config.layer.vocab_size, (length,), generator=generator)
        ours = replace(oracle, keys=[], values=[]).draft_logits(features[:length], tokens, STEPS)
        drafted = oracle.token_ids[ours.argmax(-1)]
        logits = logits_of_theirs(theirs, features, tokens, drafted)
        same += int((oracle.token_ids[logits.argmax(-1)] == drafted).sum())
        differences.append(float((ours - logits).abs().max() / logits.std()))
    total, furthest = len(LENGTHS) * STEPS, max(differences)
    print(f"{folder.name}: {same} of {total} drafted tokens are the same; logits differ by at most {furthest:.1e}")
    return same == total and furthest < TOLERANCE


def load_theirs(folder: Path) -> Any:
    from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig

    config = Eagle3SpeculatorConfig.from_pretrained(folder)
    config.transformer_layer_config._attn_implementation = "eager"  # the default is for GPUs
    model = Eagle3DraftModel.from_pretrained(folder, config=config, dtype=torch.float32)
    differing = (set(model.state_dict()) ^ set(stored_tensors(folder))) - OF_TARGET
    if differing:
        raise SystemExit(f"{folder}: the package has other tensors than the file: {sorted(differing)}")
    return model.eval()


def logits_of_theirs(model: Any, features: torch.Tensor, tokens: torch.Tensor, drafted: torch.Tensor) -> torch.Tensor:
    """Logits [steps, draft_vocab] along a chain. The package drafts from every position of a text at once, and reads
    later tokens from the text: with the drafted ones as its end, the last position before them has the chain.
    """
    seen: list[torch.Tensor] = []
    hook = model.lm_head.register_forward_hook(lambda module, inputs, output: seen.append(output[0, len(tokens) - 1]))
    text = torch.cat([tokens, drafted[:-1]])[None]
    with torch.no_grad():
        model(features[None], text, torch.zeros_like(text), ttt_steps=STEPS)
    hook.remove()
    return torch.stack(seen)


def write_target(folder: Path, layer: DecoderConfig, num_layers: int) -> Path:
    """As much of a target as the package reads: its shape, embedding, last norm and output head, at random."""
    from safetensors.torch import save_file
    from transformers import LlamaConfig

    LlamaConfig(
        architectures=["LlamaForCausalLM"],
        vocab_size=layer.vocab_size,
        hidden_size=layer.hidden_size,
        num_hidden_layers=num_layers,
        num_attention_heads=layer.num_heads,
    ).save_pretrained(folder)
    generator = torch.Generator().manual_seed(0)
    weights = {
        name: torch.randn(layer.vocab_size, layer.hidden_size, generator=generator).bfloat16()
        for name in ("model.embed_tokens.weight", "lm_head.weight")
    }
    weights["model.norm.weight"] = torch.ones(layer.hidden_size).bfloat16()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def write_ours(folder: Path, config: HeadConfig) -> None:
    """A random head, by Slipstream."""
    rng = np.random.default_rng(0)
    tensors = {}
    for name, shape in head_tensors(config).items():
        values = rng.standard_normal(shape, np.float32)
        is_norm = "norm" in name
        tensors[name] = RawTensor("F32", 1 + 0.1 * values if is_norm else 2 * values * shape[-1] ** -0.5)
    ids = np.sort(rng.permutation(config.layer.vocab_size)[: config.draft_vocab_size])
    save_head(folder, config, tensors, None if config.draft_vocab_size == config.layer.vocab_size else ids)


def write_theirs(folder: Path, target: Path, layer: Any, **settings: Any) -> None:
    """A random head, by the package."""
    from speculators.config import SpeculatorsConfig, VerifierConfig
    from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig
    from speculators.proposals.greedy import GreedyTokenProposalConfig

    verifier = VerifierConfig.from_pretrained(str(target))
    method = GreedyTokenProposalConfig(speculative_tokens=STEPS)
    speculators = SpeculatorsConfig(
        algorithm="eagle3", proposal_methods=[method], default_proposal_method="greedy", verifier=verifier
    )
    config = Eagle3SpeculatorConfig(
        transformer_layer_config=layer,
        eagle_aux_hidden_state_layer_ids=[1, 2, 3],
        speculators_config=speculators,
        **settings,
    )
    torch.manual_seed(0)
    model = Eagle3DraftModel(config)
    if config.draft_vocab_size != layer.vocab_size:
        ids = torch.randperm(layer.vocab_size)[: config.draft_vocab_size].sort().values
        in_draft = torch.zeros(layer.vocab_size, dtype=torch.bool)
        in_draft[ids] = True
        model.load_vocab_mappings(in_draft, ids - torch.arange(len(ids)))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.copy_(torch.randn_like(weight) * 0.2 + (1.0 if "norm" in name else 0.0))
            if name.endswith("o_proj.bias"):  # not supported by Slipstream
                weight.zero_()
    model.to(torch.bfloat16).save_pretrained(folder)


def tiny_heads(folder: Path) -> list[Path]:
    """One by the package for each of its two families, with the options spread over them."""
    from transformers import LlamaConfig, Qwen3Config

    target = write_target(folder / "target", replace(SMOLLM2, vocab_size=48, hidden_size=16, num_heads=2), 4)
    sizes = {
        "vocab_size": 48, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2,
        "num_key_value_heads": 1, "head_dim": 8, "max_position_embeddings": 256,
    }  # fmt: skip
    write_theirs(
        folder / "llama",
        target,
        LlamaConfig(**sizes, attention_bias=True, rope_parameters=LLAMA3_ROPE),
        draft_vocab_size=20,
        norm_before_fc=True,
    )
    write_theirs(
        folder / "qwen3",
        target,
        Qwen3Config(**sizes),
        draft_vocab_size=48,
        norm_before_residual=True,
        fc_norm=True,
        norm_output=True,
    )
    return [folder / "llama", folder / "qwen3"]


def our_heads(folder: Path) -> list[Path]:
    target = write_target(folder / "target", SMOLLM2, 30)
    plain = HeadConfig(SMOLLM2, 2048, (3, 15, 27), 576, trained_context=2048, target=str(target))
    with_bias = replace(SMOLLM2, qkv_bias=True, rope_divisors=(4.0,) * 32)
    llama3 = llama3_divisors(Llama3Scaling(8.0, 1.0, 4.0, 64), SMOLLM2.rope_theta, SMOLLM2.head_dim)
    heads = {
        "plain": plain,
        "normed": replace(plain, feature_norm="each", norm_before_residual=True, norm_output=True),
        "all-ids": replace(plain, draft_vocab_size=49152, feature_norm="all", own_embedding=True),
        "qk-norm": replace(plain, layer=replace(SMOLLM2, qk_norm=True, rope_divisors=llama3)),
        "bias": replace(plain, layer=with_bias),
    }
    for name, config in heads.items():
        write_ours(folder / name, config)
    return [folder / name for name in heads]


def record(folder: Path) -> None:
    """Tiny heads of the package, with the logits that it gives for features."""
    for head_folder in tiny_heads(folder):
        theirs, head = load_theirs(head_folder), open_head(head_folder, "recorded")
        generator = torch.Generator().manual_seed(1)
        features = torch.randn(8 + STEPS - 1, head.config.features_size, generator=generator).bfloat16().float()
        tokens = torch.randint(head.config.layer.vocab_size, (8,), generator=generator)
        drafted = torch.tensor(HeadOracle.of(head).draft(features[:8], tokens, STEPS))
        logits = logits_of_theirs(theirs, features, tokens, drafted)
        given = {"features": _rounded(features[:8]), "next_tokens": tokens.tolist(), "logits": _rounded(logits)}
        (head_folder / "drafted.json").write_text(json.dumps(given) + "\n")
        values = json.loads((head_folder / "config.json").read_text())
        values["speculators_config"]["verifier"]["name_or_path"] = "example/target"  # not a path of this machine
        (head_folder / "config.json").write_text(json.dumps(values, indent=2) + "\n")
        (head_folder / "config.py").unlink()
    shutil.rmtree(folder / "target")


def _rounded(values: torch.Tensor) -> list[list[float]]:
    return [[float(f"{value:.6g}") for value in row] for row in values.tolist()]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("head", nargs="?", type=Path)
    parser.add_argument("--record", type=Path, metavar="DIR")
    options = parser.parse_args()
    if options.record:
        record(options.record)
        return 0
    if options.head:
        return 0 if compare(options.head) else 1
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        print("written by Slipstream:")
        good = [compare(head) for head in our_heads(folder / "ours")]
        print("written by speculators:")
        good += [compare(head) for head in tiny_heads(folder / "theirs")]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
