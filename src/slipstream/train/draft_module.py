"""DraftModule: a small decoder with weights that can be trained. Names of its tensors are those of hub files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import nn

from slipstream.backends.torch.decoder import DecoderWeights, assembled, rope_table, to_torch
from slipstream.models.checkpoint import Checkpoint
from slipstream.models.config import DecoderConfig
from slipstream.models.tensors import expected_tensors
from slipstream.train.forward import TextOps, over_texts


class DraftModule(nn.Module):
    """The forward is that of every decoder of the torch backend, in bf16 on GPUs; the weights are float32."""

    def __init__(self, config: DecoderConfig, weight_of: Callable[[str], torch.Tensor], length: int) -> None:
        """For texts of at most `length` tokens; on the device of its weights."""
        super().__init__()
        self.config = config
        for name in expected_tensors(config):
            _place(self, name, nn.Parameter(weight_of(name)))
        device = self.output_weight.device
        self._ops = TextOps(torch.bfloat16 if device.type == "cuda" else torch.float32)
        self._rope = rope_table(config, length, device)

    @property
    def output_weight(self) -> torch.Tensor:
        """[vocab, hidden]"""
        return self.get_parameter("model.embed_tokens.weight" if self.config.tied_head else "lm_head.weight")

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Hidden states [texts, length, hidden] after the last norm, of `tokens` [texts, length]."""
        weights = DecoderWeights(self.get_parameter, self.get_parameter)
        return over_texts(assembled(self.config, self._ops, weights, self._rope), self._ops, tokens)[0]


def first_layers(target: Checkpoint, num_layers: int, device: torch.device, length: int) -> DraftModule:
    """The target's own first layers, with its embedding, last norm and output head."""
    config = replace(target.config, num_layers=num_layers)
    return DraftModule(config, lambda name: to_torch(target.tensor(name), device).float().clone(), length)


def _place(root: nn.Module, name: str, weight: nn.Parameter) -> None:
    """`model.layers.0.mlp.up_proj.weight` is the weight of a module in a module."""
    *path, last = name.split(".")
    module = root
    for part in path:
        if part not in dict(module.named_children()):
            module.add_module(part, nn.Module())
        module = module.get_submodule(part)
    module.register_parameter(last, weight)
