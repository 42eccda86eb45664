"""Drafting steps from every position at the same time are those of drafts made one by one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from slipstream.models import open_checkpoint
from slipstream.models.checkpoint import Checkpoint
from slipstream.models.draft_heads.config import FeatureNorm
from slipstream.train.forward import TargetForward, load_target, rotated
from slipstream.train.head_module import HeadModule, begin_new, head_config
from slipstream.train.rollout import unroll

LENGTH, STEPS = 12, 4
LAYERS = (1, 3, 5)


def head_of(checkpoint: Checkpoint, target: TargetForward, **changes: object) -> HeadModule:
    torch.manual_seed(0)
    head = HeadModule(replace(head_config(checkpoint, LAYERS, 50, LENGTH), **changes))
    begin_new(head, target, torch.arange(0, 100, 2))
    return head


class OneByOne:
    """A draft as the engine makes it: a cache of entries made from features, and those of the draft behind it."""

    def __init__(self, head: HeadModule, rope: tuple[torch.Tensor, torch.Tensor]) -> None:
        self.head, self.rope, self.cache = head, rope, []

    def entry(self, position: int, read: torch.Tensor, embedded: torch.Tensor) -> torch.Tensor:
        """Adds an entry, which sees all before it. Returns the output [hidden]."""
        layer, config = self.head.layer, self.head.config.layer
        normed = layer.hidden_norm(read)
        x = torch.cat((layer.input_layernorm(embedded), normed))
        cosine, sine = (part[position : position + 1] for part in self.rope)
        attention = layer.self_attn
        q = rotated(attention.q_proj(x).view(-1, 1, config.head_dim), cosine, sine)
        k = rotated(attention.k_proj(x).view(-1, 1, config.head_dim), cosine, sine)
        self.cache.append((k, attention.v_proj(x).view(-1, 1, config.head_dim)))
        keys, values = (torch.cat(parts, 1) for parts in zip(*self.cache, strict=True))
        group = config.num_heads // config.num_kv_heads
        keys, values = keys.repeat_interleave(group, 0), values.repeat_interleave(group, 0)
        weights = (q @ keys.transpose(1, 2) * config.head_dim**-0.5).softmax(-1)
        h = (normed if self.head.config.norm_before_residual else read) + attention.o_proj((weights @ values).flatten())
        return h + layer.mlp(layer.post_attention_layernorm(h))


@pytest.mark.parametrize(
    ("feature_norm", "before", "output"), [("none", False, False), ("each", True, False), ("all", False, True)]
)
@torch.no_grad()
def test_every_step_sees_what_a_draft_sees(
    tiny_folders: dict[str, Path], feature_norm: FeatureNorm, before: bool, output: bool
) -> None:
    checkpoint = open_checkpoint(tiny_folders["llama3-scaled-tied"])
    target = load_target(checkpoint, LAYERS, torch.device("cpu"), torch.float32, LENGTH + STEPS)
    head = head_of(checkpoint, target, feature_norm=feature_norm, norm_before_residual=before, norm_output=output)
    tokens = torch.randint(0, 96, (1, LENGTH), generator=torch.Generator().manual_seed(1))
    features = target(tokens).features
    read_by_step = [F.embedding(tokens.roll(-k - 1, 1), target.embedding) for k in range(STEPS)]
    embedded, rope = read_by_step[0], target.rope(LENGTH)
    steps = list(unroll(head, features, read_by_step, [target.rope(LENGTH, k) for k in range(STEPS)]))
    fused = head.fused(features)[0]
    for begin in range(LENGTH - STEPS):
        draft = OneByOne(head, rope)
        for position in range(begin):
            draft.entry(position, fused[position], embedded[0, position])
        read = fused[begin]
        for k in range(STEPS):
            made = draft.entry(begin + k, read, embedded[0, begin + k])
            torch.testing.assert_close(steps[k][0, begin], made, atol=1e-3, rtol=1e-4)
            read = head.handed_on(made)


def test_a_head_begins_with_the_targets_weights(tiny_folders: dict[str, Path]) -> None:
    checkpoint = open_checkpoint(tiny_folders["qwen3-qk-norm"])
    target = load_target(checkpoint, LAYERS, torch.device("cpu"), torch.float32, LENGTH)
    head = head_of(checkpoint, target, feature_norm="each")
    tensors = head.state_dict()
    hidden = checkpoint.config.hidden_size
    assert torch.equal(tensors["lm_head.weight"], target.output_weight[0:100:2])
    assert tensors["layers.0.self_attn.q_proj.weight"].shape == (4 * 24, 2 * hidden)
    assert sorted(tensors) == sorted(
        [
            "fc.weight", "fc_norm.0.weight", "fc_norm.1.weight", "fc_norm.2.weight", "norm.weight", "lm_head.weight",
            *(f"layers.0.{name}.weight" for name in (
                "input_layernorm", "hidden_norm", "post_attention_layernorm", "self_attn.q_proj", "self_attn.k_proj",
                "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")),
        ]
    )  # fmt: skip


@torch.no_grad()
def test_half_of_the_heads_see_their_own_token_at_first(tiny_folders: dict[str, Path]) -> None:
    checkpoint = open_checkpoint(tiny_folders["llama3-scaled-tied"])  # four heads, two of keys
    target = load_target(checkpoint, LAYERS, torch.device("cpu"), torch.float32, LENGTH)
    attention = head_of(checkpoint, target).layer.self_attn
    embedded = target.embedding[:96]
    x = torch.cat((embedded / embedded.pow(2).mean(-1, keepdim=True).sqrt(), torch.randn(96, 40)), dim=-1)
    q, k = attention.q_proj(x).view(96, 4, 10), attention.k_proj(x).view(96, 2, 10)
    scores = torch.einsum("nhd,md->hnm", q[:, :2], k[:, 0]) / 10**0.5
    own = scores.diagonal(dim1=1, dim2=2)
    assert own.mean() > 3 and (own.mean() - scores.mean()) > 3
