"""The decoder against transformers: same weights, same logits, same text."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

import slipstream
from contract import tiny_models
from head_oracle import to_torch
from slipstream.backends.torch.model import TorchModel
from slipstream.backends.torch.options import DTYPES
from slipstream.core.protocols import ScoreRequest, prefill
from slipstream.core.tree import ROOT, DraftTree
from slipstream.models import open_checkpoint
from slipstream.models.checkpoint import Checkpoint
from slipstream.models.tensors import expected_tensors

TOLERANCE = 2e-4
LENGTH = 300  # far beyond the window of 8 and, for llama3, beyond the original context of 64

Logits = np.ndarray[tuple[int, int], np.dtype[np.float32]]


def our_logits(model: TorchModel, tokens: list[int]) -> Logits:
    """[tokens, vocab]: the first token is pending, the others are a draft, so that every position is scored."""
    sequence = model.open()
    (scores,) = model.score([ScoreRequest(sequence, tokens[:1], DraftTree.chain(tokens[1:]))])
    rows = np.stack([scores.row(node) for node in range(ROOT, len(tokens) - 1)])
    sequence.close()
    return rows


@torch.inference_mode()
def their_logits(model: transformers.PreTrainedModel, tokens: list[int]) -> Logits:
    logits: Logits = model(torch.tensor([tokens])).logits[0].float().numpy()
    return logits


def our_greedy(model: TorchModel, prompt: list[int], count: int) -> list[int]:
    sequence = model.open()
    prefill(model, sequence, prompt[:-1])
    text = list(prompt)
    for _ in range(count):
        (scores,) = model.score([ScoreRequest(sequence, text[-1:])])
        text.append(scores.argmax(ROOT))
        sequence.commit()
    sequence.close()
    return text[len(prompt) :]


@torch.inference_mode()
def their_greedy(model: transformers.PreTrainedModel, prompt: list[int], count: int) -> list[int]:
    ids = torch.tensor([prompt])
    model.generation_config.eos_token_id = None  # goes on to the end, as ours does
    settings = transformers.GenerationConfig(max_new_tokens=count, do_sample=False, pad_token_id=0)
    answer = model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=settings)
    tokens: list[int] = answer[0, len(prompt) :].tolist()
    return tokens


def round_matrices(model: transformers.PreTrainedModel, dtype: torch.dtype) -> transformers.PreTrainedModel:
    """What loading in 16 bits does: norms and biases stay in float32."""
    with torch.no_grad():
        for values in model.parameters():
            if values.ndim == 2:
                values.copy_(values.to(dtype).float())
    return model


def random_tokens(seed: int, count: int = LENGTH, vocab: int = 131) -> list[int]:
    tokens: list[int] = np.random.default_rng(seed).integers(vocab, size=count).tolist()
    return tokens


def assert_close(got: Logits, expected: Logits, atol: float = TOLERANCE) -> None:
    worst = float(np.abs(got - expected).max())
    print(f"largest difference {worst:.2e}, of logits up to {np.abs(expected).max():.1f}")
    assert worst <= atol


@pytest.mark.parametrize("family", tiny_models.FAMILIES)
@pytest.mark.parametrize("load", [tiny_models.load_native, tiny_models.load_reference])
def test_logits_equal_those_of_transformers(
    tiny_references: dict[str, transformers.PreTrainedModel],
    tiny_folders: dict[str, Path],
    family: str,
    load: object,
) -> None:
    model = load(tiny_folders[family])  # type: ignore[operator]
    for seed in range(2):
        tokens = random_tokens(seed)
        assert_close(our_logits(model, tokens), their_logits(tiny_references[family], tokens))


@pytest.mark.parametrize("family", tiny_models.FAMILIES)
def test_greedy_text_equals_that_of_transformers(
    tiny_references: dict[str, transformers.PreTrainedModel], tiny_folders: dict[str, Path], family: str
) -> None:
    model, prompt = tiny_models.load_native(tiny_folders[family]), random_tokens(5, 40)
    assert our_greedy(model, prompt, 60) == their_greedy(tiny_references[family], prompt, 60)


def test_the_sliding_window_matters_in_these_tests(
    tiny_references: dict[str, transformers.PreTrainedModel], tiny_folders: dict[str, Path]
) -> None:
    """The last row sees the last 8 tokens of each layer below it: what came long before changes nothing."""
    model, tokens = tiny_models.load_native(tiny_folders["mistral-window-8"]), random_tokens(1, 60)
    other = [(t + 1) % 131 for t in tokens[:30]] + tokens[30:]
    first, second = our_logits(model, tokens), our_logits(model, other)
    assert np.abs(first[35] - second[35]).max() > 0.01
    np.testing.assert_allclose(first[-1], second[-1], atol=1e-5)


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("family", ["llama2-mha", "qwen2-bias-tied", "qwen3-qk-norm"])
def test_16_bit_weights_give_the_logits_of_the_rounded_model(
    tiny_folders: dict[str, Path], family: str, dtype: str
) -> None:
    """Activations stay in float32 on the CPU, so a float32 model with rounded matrices must agree closely."""
    reference = round_matrices(tiny_models.make_model(family), DTYPES[dtype])
    tokens = random_tokens(3)
    model = tiny_models.load_native(tiny_folders[family], dtype=dtype)
    assert_close(our_logits(model, tokens), their_logits(reference, tokens), atol=1e-3)


@pytest.mark.parametrize("dtype", DTYPES.values())
def test_16_bit_files_are_read_as_they_are(tmp_path: Path, dtype: torch.dtype) -> None:
    folder = tiny_models.save_folder(tiny_models.make_model("qwen3-qk-norm").to(dtype), tmp_path)
    reference = tiny_models.make_model("qwen3-qk-norm")
    with torch.no_grad():
        for values in reference.parameters():
            values.copy_(values.to(dtype).float())
    tokens = random_tokens(4, 100)
    assert_close(our_logits(tiny_models.load_native(folder), tokens), their_logits(reference, tokens))


def test_plain_torch_in_bfloat16_stays_near(
    tiny_references: dict[str, transformers.PreTrainedModel], tiny_folders: dict[str, Path]
) -> None:
    tokens = random_tokens(6, 60)
    model = tiny_models.load_reference(tiny_folders["llama2-mha"], dtype="bf16")
    expected = their_logits(tiny_references["llama2-mha"], tokens)
    got = our_logits(model, tokens)
    assert np.corrcoef(got.ravel(), expected.ravel())[0, 1] > 0.99


@pytest.mark.parametrize("family", ["llama2-mha", "qwen2-bias-tied"])
def test_sharded_weights_equal_those_in_one_file(
    tiny_references: dict[str, transformers.PreTrainedModel], tiny_folders: dict[str, Path], tmp_path: Path, family: str
) -> None:
    sharded = tiny_models.save_folder(tiny_references[family], tmp_path, max_shard_size="50KB")
    assert len(list(sharded.glob("*.safetensors"))) > 2
    tokens = random_tokens(7, 80)
    got = our_logits(tiny_models.load_native(sharded), tokens)
    np.testing.assert_array_equal(got, our_logits(tiny_models.load_native(tiny_folders[family]), tokens))


# -- the built-in model -------------------------------------------------------------------------------------------


def llama_of(checkpoint: Checkpoint) -> transformers.LlamaForCausalLM:
    """transformers' Llama with the checkpoint's own, dequantised weights."""
    c = checkpoint.config
    assert c.architecture == "llama"
    assert c.rope_divisors is None
    config = transformers.LlamaConfig(
        vocab_size=c.vocab_size,
        hidden_size=c.hidden_size,
        intermediate_size=c.intermediate_size,
        num_hidden_layers=c.num_layers,
        num_attention_heads=c.num_heads,
        num_key_value_heads=c.num_kv_heads,
        head_dim=c.head_dim,
        max_position_embeddings=c.context_length,
        rms_norm_eps=c.norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": c.rope_theta},
        tie_word_embeddings=c.tied_head,
    )
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(config)
    weights = {name: to_torch(checkpoint.tensor(name)) for name in expected_tensors(c)}
    if c.tied_head:
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    model.load_state_dict(weights, assign=True)
    model.model.rotary_emb = type(model.model.rotary_emb)(config)  # its table is no weight, and was left on meta
    return model.eval()


@pytest.fixture(scope="module")
def smollm2_reference() -> transformers.LlamaForCausalLM:
    return llama_of(open_checkpoint("smollm2-135m"))


@pytest.mark.real_model
def test_logits_of_smollm2_equal_those_of_transformers(
    smollm2_in_floats: slipstream.LoadedModel, smollm2_reference: transformers.LlamaForCausalLM
) -> None:
    text = "Speculative decoding drafts several tokens and checks them in one forward pass. " * 8
    tokens = smollm2_in_floats.tokenizer.encode(text)[:110]
    assert_close(our_logits(smollm2_in_floats.model, tokens), their_logits(smollm2_reference, tokens), atol=1e-3)  # type: ignore[arg-type]


@pytest.mark.real_model
def test_greedy_text_of_smollm2_equals_that_of_transformers(
    smollm2_in_floats: slipstream.LoadedModel, smollm2_reference: transformers.LlamaForCausalLM
) -> None:
    prompt = smollm2_in_floats.tokenizer.chat_ids([{"role": "user", "content": "What is the capital of France?"}])
    expected = their_greedy(smollm2_reference, prompt, 24)
    assert our_greedy(smollm2_in_floats.model, prompt, 24) == expected  # type: ignore[arg-type]
    engine = slipstream.load(smollm2_in_floats, drafter="none")
    answer = engine.generate(prompt, limits=slipstream.Limits(24, ignore_eos=True)).result()
    assert answer.tokens == expected
