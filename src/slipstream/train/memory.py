"""The memory that a run needs, before it starts."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from slipstream.backends.torch.memory import free_bytes
from slipstream.errors import CapacityError
from slipstream.models.config import DecoderConfig
from slipstream.models.draft_heads.config import HeadConfig
from slipstream.models.tensors import expected_tensors
from slipstream.train.settings import RunOptions, TrainOptions

_GB = 1e9
_COPIES = 5  # of trained weights in float32: themselves, gradients, two moments, the best; checkpoints need none
_STORED_SHARE = 0.6  # of what is free, at most, for states of the target
_FIXED_BYTES = {"cpu": 400 << 20, "cuda": 1800 << 20}  # the library itself, graphs, scratch of kernels and allocator


@dataclass(frozen=True, slots=True)
class TraineeSize:
    """What is trained, and the bytes of its activations for one step: those of the target included."""

    num_parameters: int
    step_bytes: int
    smaller: str  # what makes both smaller, for a message


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """Bytes. Text is written first and training comes after it, so only the larger of the two counts."""

    target: int  # its weights
    writing: int  # keys and values of the streams
    trained: int  # weights, gradients, moments, the best
    activations: int  # of one step
    fixed: int
    free: int
    smaller: str  # what else would help

    @property
    def total(self) -> int:
        return self.target + max(self.writing, self.trained + self.activations) + self.fixed

    def stored(self, free: int) -> int:
        """For the target's states of all texts, of `free` that are left once the target is loaded: what training takes
        besides is left free, and a part for others."""
        return min(int(free * _STORED_SHARE), free - self.trained - self.activations)

    def text(self) -> str:
        return (
            f"memory: target {self.target / _GB:.1f} GB; writing text {self.writing / _GB:.1f} GB, then trained "
            f"weights and optimiser {self.trained / _GB:.1f} GB and one step {self.activations / _GB:.1f} GB; about "
            f"{self.total / _GB:.1f} GB of the {self.free / _GB:.1f} GB that are free"
        )

    def check(self) -> None:
        """Raises CapacityError where it does not fit."""
        if self.total > self.free:
            raise CapacityError(
                f"too little memory for this training. {self.text()}. Lower --batch-tokens, --streams or --length, "
                f"or use {self.smaller}"
            )


def plan_training(
    target: DecoderConfig, size: TraineeSize, streams: int, length: int, device: torch.device, item_bytes: int
) -> TrainingPlan:
    """`streams` texts of `length` tokens are written at a time. `item_bytes`: of one weight of the target."""
    cache_item = 4 if device.type == "cpu" else item_bytes
    kv_token = 2 * target.num_layers * target.num_kv_heads * target.head_dim * cache_item
    return TrainingPlan(
        target=item_bytes * decoder_parameters(target),
        writing=streams * length * kv_token,
        trained=_COPIES * 4 * size.num_parameters,
        activations=size.step_bytes,
        fixed=_FIXED_BYTES[device.type],
        free=free_bytes(device),
        smaller=size.smaller,
    )


def decoder_parameters(config: DecoderConfig) -> int:
    return sum(math.prod(shape) for shape in expected_tensors(config).values())


def head_size(target: DecoderConfig, head: HeadConfig, options: TrainOptions, item_bytes: int) -> TraineeSize:
    """`item_bytes`: of one activation."""
    smaller = "a smaller --draft-vocab or another target"
    return TraineeSize(head_parameters(head), _head_step_bytes(target, head, options, item_bytes), smaller)


def draft_size(target: DecoderConfig, draft: DecoderConfig, options: RunOptions, item_bytes: int) -> TraineeSize:
    """`item_bytes`: of one activation. Per token of a batch: what the target's largest layer holds, and what each layer
    of the draft keeps for the gradients (a quarter more than was measured on an H200). Logits are made a piece at a
    time; gradients of the vocabulary are whole."""
    in_target = 8 * target.hidden_size + 3 * target.intermediate_size
    of_layer = 12 * draft.hidden_size + 4 * draft.intermediate_size + 4 * draft.num_heads * draft.head_dim
    per_token = (in_target + (draft.num_layers + 1) * of_layer) * item_bytes
    vocabulary = 3 * 4 * draft.vocab_size * draft.hidden_size
    smaller = "fewer --layers or another target"
    return TraineeSize(decoder_parameters(draft), options.batch_tokens * per_token + vocabulary + (3 << 29), smaller)


def head_parameters(head: HeadConfig) -> int:
    layer, hidden = head.layer, head.layer.hidden_size
    queries, keys = layer.num_heads * layer.head_dim, layer.num_kv_heads * layer.head_dim
    attention = 2 * hidden * (queries + 2 * keys) + queries * hidden
    widths = head.features_size + 3 * layer.intermediate_size + head.draft_vocab_size
    return attention + hidden * widths


def _head_step_bytes(target: DecoderConfig, head: HeadConfig, options: TrainOptions, item_bytes: int) -> int:
    """Per token of a batch: what the target's largest layer holds, what each drafting step keeps for the gradients
    (the keys of all steps before it among them), and logits of one step in several precisions."""
    steps, layer = options.draft_steps, head.layer
    in_target = 8 * target.hidden_size + 3 * target.intermediate_size + 3 * head.features_size
    of_step = 16 * layer.hidden_size + 4 * layer.intermediate_size + 4 * layer.num_heads * layer.head_dim
    keys = steps * (steps + 1) * layer.num_heads * layer.head_dim
    logits = head.draft_vocab_size * (2 * item_bytes + 4 * 4)
    return options.batch_tokens * ((in_target + steps * of_step + keys) * item_bytes + logits) + (1 << 30)
