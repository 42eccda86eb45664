"""The target over whole texts agrees with the engine's decoder."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from contract import tiny_models
from slipstream.backends.torch.decoder import load_decoder
from slipstream.backends.torch.reference import ReferenceOps
from slipstream.core.protocols import ScoreRequest
from slipstream.core.tree import DraftTree
from slipstream.models import open_checkpoint
from slipstream.train.forward import TargetForward, load_target

LENGTH = 24


@pytest.mark.parametrize("family", tiny_models.FAMILIES)
def test_logits_are_those_of_the_engine(family: str, tiny_folders: dict[str, Path]) -> None:
    target = load_target(open_checkpoint(tiny_folders[family]), (1, 3, 5), torch.device("cpu"), torch.float32, LENGTH)
    tokens = torch.randint(0, 96, (2, LENGTH), generator=torch.Generator().manual_seed(0))
    states = target(tokens)
    logits = F.linear(states.hidden, target.output_weight)
    model = tiny_models.load_native(tiny_folders[family])
    for text, ours in zip(tokens.tolist(), logits, strict=True):
        sequence = model.open()
        scores = model.score([ScoreRequest(sequence, text[:1], DraftTree.chain(text[1:]))])[0]
        theirs = torch.stack([torch.from_numpy(scores.row(node).copy()) for node in range(-1, LENGTH - 1)])
        sequence.close()
        torch.testing.assert_close(ours, theirs, atol=2e-3, rtol=1e-3)


def test_features_are_hidden_states_after_so_many_layers(tiny_folders: dict[str, Path]) -> None:
    checkpoint, cpu = open_checkpoint(tiny_folders["llama2-mha"]), torch.device("cpu")
    tokens = torch.arange(12).view(1, 12)
    states = load_target(checkpoint, (1, 3, 5), cpu, torch.float32, LENGTH)(tokens)
    ops = ReferenceOps(torch.float32)
    for place, count in enumerate((1, 3, 5)):
        cut = load_decoder(checkpoint, ops, cpu, LENGTH).first_layers(count)
        normed = TargetForward(cut, ops, (count,))(tokens).hidden
        hidden = states.features[..., place * 40 : (place + 1) * 40]
        torch.testing.assert_close(ops.norm(hidden, cut.final_norm), normed)


def test_padding_at_the_end_changes_nothing(tiny_folders: dict[str, Path]) -> None:
    target = load_target(
        open_checkpoint(tiny_folders["qwen2-bias-tied"]), (1,), torch.device("cpu"), torch.float32, LENGTH
    )
    tokens = torch.arange(16).view(1, 16)
    padded = F.pad(tokens, (0, 8))
    torch.testing.assert_close(target(padded).hidden[:, :16], target(tokens).hidden)
