"""HeadTrainee: a draft head, its vocabulary and its files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from slipstream.errors import UsageError
from slipstream.models.checkpoint import Checkpoint
from slipstream.models.draft_heads.config import HeadConfig, default_feature_layers
from slipstream.models.draft_heads.export import HeadNotes, save_head
from slipstream.models.draft_heads.files import HeadCheckpoint, check_finite, check_head_for, open_head
from slipstream.models.draft_heads.layouts import head_tensors
from slipstream.models.export.weights import floats
from slipstream.models.sources.builtin import builtin_head
from slipstream.models.sources.spec import locate, store_of
from slipstream.train.card import head_card
from slipstream.train.forward import TargetForward
from slipstream.train.head_module import HeadModule, begin_new, head_config
from slipstream.train.memory import TraineeSize, head_parameters, head_size
from slipstream.train.rollout import Rollout
from slipstream.train.saving import in_bf16, replaced
from slipstream.train.settings import TrainOptions
from slipstream.train.shards import Text
from slipstream.train.vocabulary import DraftVocabulary, choose_vocabulary

_LEAST_LAYERS = 7  # of a target for which the usual feature layers are three


class HeadTrainee:
    what = "head"

    def __init__(self, options: TrainOptions, target: Checkpoint) -> None:
        self.steps_ahead = options.draft_steps
        self._options = options
        self._target = target
        self._vocabulary: DraftVocabulary | None = None
        self._before = _opened(options.begin_with, target) if options.begin_with else None
        self.feature_layers = self._before.config.feature_layers if self._before else self._feature_layers()

    def _feature_layers(self) -> tuple[int, ...]:
        count = self._target.config.num_layers
        few = tuple(sorted({1, max(1, count // 2), count}))
        layers = self._options.chosen_layers() or (default_feature_layers(count) if count >= _LEAST_LAYERS else few)
        if not all(1 <= layer <= count for layer in layers) or len(set(layers)) < len(layers):
            raise UsageError(f"--feature-layers {self._options.feature_layers}; expected different ones, 1 to {count}")
        return layers

    def notes(self) -> list[str]:
        return []

    def size(self, item_bytes: int) -> TraineeSize:
        all_ids = self._target.config.vocab_size
        config = self._config(min(self._options.draft_vocab or all_ids, all_ids))
        return head_size(self._target.config, config, self._options, item_bytes)

    def settings(self) -> dict[str, Any]:
        return {}

    @property
    def ids(self) -> torch.Tensor | None:
        return torch.from_numpy(self._known.ids)

    def read(self, texts: Sequence[Text], ids: torch.Tensor | None) -> str:
        before, target = self._before, self._target
        kept: list[int] = ids.tolist() if ids is not None else before.token_ids().tolist() if before else []
        size, always = len(kept) or self._options.draft_vocab, kept or target.tokenizer.eos_ids
        self._vocabulary = choose_vocabulary(texts, size, target.config.vocab_size, always)
        num_ids, coverage = len(self._vocabulary.ids), self._vocabulary.coverage
        return f"the draft vocabulary of {num_ids:,} ids has {coverage:.1%} of the answer tokens"

    def begin(self, target: TargetForward, device: torch.device, num_kinds: int) -> Rollout:
        draft_ids = torch.from_numpy(self._known.ids).to(device)
        head = HeadModule(self._config(len(draft_ids))).to(device)
        if before := self._before:
            head.load_state_dict({name: torch.from_numpy(floats(before.tensor(name))) for name in head.state_dict()})
        else:
            begin_new(head, target, draft_ids)
        return Rollout(head, target, draft_ids, num_kinds, self._options)

    def facts(self) -> dict[str, Any]:
        num_ids = len(self._known.ids)
        return {
            "parameters": head_parameters(self._config(num_ids)) / 1e6,
            "layers": list(self.feature_layers),
            "draft_vocab": num_ids,
            "coverage": self._known.coverage,
            "draft_steps": self._options.draft_steps,
        }

    def outputs(self, folder: Path) -> list[Path]:
        return [folder]

    def save(self, folder: Path, tensors: Mapping[str, torch.Tensor], facts: Mapping[str, Any]) -> None:
        """In bf16."""
        raw = {name: in_bf16(tensor) for name, tensor in tensors.items()}
        notes = HeadNotes(training=facts, card=head_card(facts))
        ids = None if self._known.is_full else self._known.ids
        with replaced(folder) as scratch:
            save_head(scratch, self._config(len(self._known.ids)), raw, ids, notes=notes)

    @property
    def _known(self) -> DraftVocabulary:
        assert self._vocabulary is not None  # texts were read
        return self._vocabulary

    def _config(self, draft_vocab_size: int) -> HeadConfig:
        options = self._options
        if self._before:
            return replace(self._before.config, trained_context=options.length)
        return replace(
            head_config(self._target, self.feature_layers, draft_vocab_size, options.length),
            feature_norm=options.feature_norm,
            norm_before_residual=options.norm_before_residual,
            norm_output=options.norm_output,
        )


def _opened(spec: str, target: Checkpoint) -> HeadCheckpoint:
    """A head for this target; the name of a built-in model is its own head's. Raises ModelError, and UsageError for one
    that can't be trained."""
    built_in = builtin_head(spec) if store_of(spec) == "built-in" else None
    head = open_head(built_in or locate(spec).path, spec)
    check_finite(head)
    head = replace(head, config=check_head_for(head, target.config))
    if other := set(head_tensors(head.config)) ^ set(HeadModule(head.config).state_dict()):
        raise UsageError(f"--begin-with {spec}: a head with {sorted(other)[0]!r} can't be trained further")
    if (np.diff(head.token_ids()) <= 0).any():
        raise UsageError(f"--begin-with {spec}: a head whose ids are not in rising order can't be trained further")
    return head
