"""The memory that a run needs, before it starts."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from slipstream.errors import CapacityError
from slipstream.host import free_memory
from slipstream.models.config import DecoderConfig
from slipstream.models.head_config import HeadConfig
from slipstream.models.tensors import expected_tensors
from slipstream.train.settings import TrainOptions

_GB = 1e9
_COPIES = 6  # of a head's weights in float32: themselves, gradients, two moments, the best, a checkpoint being written
_FIXED_BYTES = {"cpu": 400 << 20, "cuda": 1800 << 20}  # the library itself, graphs, scratch of kernels and allocator


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """Bytes. Text is written first and the head is trained after it, so only the larger of the two counts."""

    target: int  # its weights
    writing: int  # keys and values of the streams
    head: int  # weights, gradients, moments
    activations: int  # of one step
    fixed: int
    free: int

    @property
    def total(self) -> int:
        return self.target + max(self.writing, self.head + self.activations) + self.fixed

    def text(self) -> str:
        return (
            f"memory: target {self.target / _GB:.1f} GB; writing text {self.writing / _GB:.1f} GB, then head and "
            f"optimiser {self.head / _GB:.1f} GB and one step {self.activations / _GB:.1f} GB; about "
            f"{self.total / _GB:.1f} GB of the {self.free / _GB:.1f} GB that are free"
        )

    def check(self) -> None:
        """Raises CapacityError where it does not fit."""
        if self.total > self.free:
            raise CapacityError(
                f"too little memory for this training. {self.text()}. Lower --batch-tokens, --streams, --length or "
                "--draft-vocab, or use a smaller target"
            )


def plan_training(
    target: DecoderConfig, head: HeadConfig, options: TrainOptions, device: torch.device, item_bytes: int
) -> TrainingPlan:
    """`item_bytes` is the size of one weight of the target."""
    weights = item_bytes * sum(math.prod(shape) for shape in expected_tensors(target).values())
    cache_item = 4 if device.type == "cpu" else item_bytes
    kv_token = 2 * target.num_layers * target.num_kv_heads * target.head_dim * cache_item
    streams = 0 if options.transcripts else options.streams
    return TrainingPlan(
        target=weights,
        writing=streams * options.length * kv_token,
        head=_COPIES * 4 * num_parameters(head),
        activations=_activation_bytes(target, head, options, item_bytes),
        fixed=_FIXED_BYTES[device.type],
        free=free_bytes(device),
    )


def free_bytes(device: torch.device) -> int:
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else free_memory()


def num_parameters(head: HeadConfig) -> int:
    layer, hidden = head.layer, head.layer.hidden_size
    queries, keys = layer.num_heads * layer.head_dim, layer.num_kv_heads * layer.head_dim
    attention = 2 * hidden * (queries + 2 * keys) + queries * hidden
    widths = head.features_size + 3 * layer.intermediate_size + head.draft_vocab_size
    return attention + hidden * widths


def _activation_bytes(target: DecoderConfig, head: HeadConfig, options: TrainOptions, item_bytes: int) -> int:
    """Per token of a batch: what the target's largest layer holds, what each drafting step keeps for the gradients
    (the keys of all steps before it among them), and logits of one step in several precisions."""
    steps, layer = options.draft_steps, head.layer
    in_target = 8 * target.hidden_size + 3 * target.intermediate_size + 3 * head.features_size
    of_step = 16 * layer.hidden_size + 4 * layer.intermediate_size + 4 * layer.num_heads * layer.head_dim
    keys = steps * (steps + 1) * layer.num_heads * layer.head_dim
    logits = head.draft_vocab_size * (2 * item_bytes + 4 * 4)
    return options.batch_tokens * ((in_target + steps * of_step + keys) * item_bytes + logits) + (1 << 30)
