"""Draft heads, which read a decoder's features and use its cells and its ops. TorchHead is for eager forwards."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from slipstream.backends.torch.batch import RowLists
from slipstream.backends.torch.decoder import Decoder, rope_table, to_torch
from slipstream.backends.torch.kv_pool import PAGE_SIZE, KVPool, PooledSequence, own_sequence
from slipstream.backends.torch.ops import (
    ChainChoice,
    DraftHead,
    EagerOps,
    Features,
    Layer,
    LayerCache,
    Linear,
    Norm,
    QKNorm,
)
from slipstream.backends.torch.trail import Trail, joined_rows
from slipstream.core.noise import stream_key
from slipstream.core.protocols import DraftNodes, ExtendRequest, Extension, KVSequence, Logits
from slipstream.core.sampling import Sampling
from slipstream.core.tree import ROOT
from slipstream.models.draft_heads.config import HeadConfig
from slipstream.models.draft_heads.files import HeadCheckpoint

_CATCH_UP = 64  # unread features of a stream: from this many on, they are read in one forward pass


class FollowingHead(ABC):
    """What all heads have in common: weights, a cache beside the target's, and streams that they follow."""

    ends_early: bool

    def __init__(self, path: Path, head: DraftHead) -> None:
        self.path = path
        self.token_ids: npt.NDArray[np.int64] = head.token_ids.cpu().numpy()
        self._head = head
        self._device = head.token_ids.device

    @abstractmethod
    def _read_features(self, sequences: Sequence[PooledSequence], tokens: Sequence[int]) -> None:
        """Reads all unread features, each with the token after it; `tokens` are those after the last features."""
        ...

    def follow(self, sequence: KVSequence) -> None:
        own = own_sequence(sequence)
        own.rewind(own.head_length)
        own.trail = Trail()

    def leave(self, sequence: KVSequence) -> None:
        own_sequence(sequence).trail = None

    def catch_up(self, sequences: Sequence[PooledSequence], tokens: Sequence[int]) -> None:
        """Reads the features of sequences with many of them: prompts, and streams that were not drafted for."""
        behind = [(s, t) for s, t in zip(sequences, tokens, strict=True) if s.trail and s.trail.num_unread >= _CATCH_UP]
        if behind:
            self._read_features([s for s, _ in behind], [t for _, t in behind])


class TorchHead(FollowingHead):
    ends_early = True

    def __init__(self, path: Path, head: DraftHead, ops: EagerOps) -> None:
        super().__init__(path, head)
        self._ops = ops

    def features(self, num_rows: int) -> Features:
        """Room for the features of a forward pass of the target."""
        config = self._head.config
        width = config.features_size
        out = torch.empty(num_rows, width, dtype=self._ops.activation_dtype, device=self._device)
        return Features(config.feature_layers, out)

    # -- drafting -----------------------------------------------------------------------------------------------------

    def extends(self, sampling: Sampling, width: int) -> bool:
        return self._ops.drafts_chains and width == 1 and not sampling.changes_logits and not sampling.narrows

    @torch.inference_mode()
    def extend(self, requests: Sequence[ExtendRequest]) -> list[Extension]:
        """Chains, of all streams together."""
        sequences = [own_sequence(request.sequence) for request in requests]
        steps = max(request.steps for request in requests)
        for sequence in sequences:
            sequence.make_room(steps - 1)
        rows = RowLists()
        features = self._add_unread(rows, sequences, [request.pending[-1] for request in requests])
        for step in range(steps - 1):
            for number, sequence in enumerate(sequences):
                position = sequence.length + step
                rows.add(0, position, sequence.cell(position), number, position + 1)
        batch = rows.build([sequence.pages for sequence in sequences], PAGE_SIZE, self._device)
        return self._ops.draft_chains(self._head, features, batch, [_chain_choice(r, steps) for r in requests])

    @torch.inference_mode()
    def begin_draft(self, sequences: Sequence[KVSequence], tokens: Sequence[int]) -> list[Logits]:
        own = [own_sequence(sequence) for sequence in sequences]
        self._read_features(own, tokens)
        return self._logits(torch.cat([output for s in own if (output := trail_of(s).output) is not None]))

    def _read_features(self, sequences: Sequence[PooledSequence], tokens: Sequence[int]) -> None:
        rows = RowLists()
        features = self._add_unread(rows, sequences, tokens)
        batch = rows.build([sequence.pages for sequence in sequences], PAGE_SIZE, self._device)
        outputs = self._ops.read_features(self._head, features, batch)
        for sequence, last in zip(sequences, rows.logit_rows, strict=True):
            trail_of(sequence).output = outputs[last : last + 1]

    def _add_unread(self, rows: RowLists, sequences: Sequence[PooledSequence], tokens: Sequence[int]) -> torch.Tensor:
        """Adds rows that read all unread features, or the last one again if there are none; `tokens` are those after
        the last features. Returns the features of all rows."""
        pieces = []
        for number, (sequence, last) in enumerate(zip(sequences, tokens, strict=True)):
            trail = trail_of(sequence)
            if not trail.num_unread:
                trail.read_again()
                sequence.head_length -= 1
            start = sequence.head_length
            for position, token in enumerate([*sequence.tokens[start + 1 :], last], start=start):
                rows.add(token, position, sequence.cell(position), number, position + 1)
            rows.logit_rows.append(len(rows.tokens) - 1)
            pieces.append(trail.take())
            sequence.head_length = sequence.length
        return joined_rows(pieces)

    @torch.inference_mode()
    def read(self, drafts: Sequence[DraftNodes]) -> list[list[Logits]]:
        rows, inputs = RowLists(), []
        for number, draft in enumerate(drafts):
            inputs += self._add_nodes(rows, number, draft)
        batch = rows.build([own_sequence(draft.sequence).pages for draft in drafts], PAGE_SIZE, self._device)
        outputs = self._ops.read_tokens(self._head, torch.cat(inputs), batch)
        logits = self._logits(outputs)
        found, at = [], 0
        for draft in drafts:
            end = at + len(draft.nodes)
            trail_of(own_sequence(draft.sequence)).drafted += torch.split(outputs[at:end], 1)
            found.append(logits[at:end])
            at = end
        return found

    def _add_nodes(self, rows: RowLists, number: int, draft: DraftNodes) -> list[torch.Tensor]:
        """Node i is in the i-th cell after the text. Returns the parents' outputs, which take the place of features."""
        sequence = own_sequence(draft.sequence)
        base, position = sequence.length, sequence.length - 1 + draft.depth
        sequence.make_room(max(draft.nodes) + 1)
        trail = trail_of(sequence)
        if draft.depth == 1:
            trail.drafted = []
        inputs = []
        for node in draft.nodes:
            path = _path(draft.parents, node)
            token = draft.tokens[node]
            if path == list(range(node + 1)):
                rows.add(token, position, sequence.cell(base + node), number, base + node + 1)
            else:
                cells = [sequence.cell(base + i) for i in path]
                rows.add(token, position, cells[-1], number, base, cells)
            parent = draft.parents[node]
            output = trail.output if parent == ROOT else trail.drafted[parent]
            assert output is not None
            inputs.append(output)
        return inputs

    def _logits(self, outputs: torch.Tensor) -> list[Logits]:
        head = self._head
        normed = outputs if head.config.norm_output else self._ops.norm(outputs, head.final_norm)
        return list(self._ops.linear(normed, head.logits).float().cpu().numpy())


def load_head(
    checkpoint: HeadCheckpoint, config: HeadConfig, decoder: Decoder[Any], pool: KVPool, device: torch.device
) -> DraftHead:
    """Its weights, read and packed as `decoder.ops` do, and a cache of its own in the cells of `pool`."""
    ops, layer = decoder.ops, config.layer

    def read(*names: str) -> torch.Tensor:
        return torch.cat([to_torch(checkpoint.tensor(name), device) for name in names])

    def packed(*names: str, bias: torch.Tensor | None = None) -> Linear:
        """Codes stay codes where the ops take them."""
        codes = [checkpoint.quantised(name) if ops.takes_quantised else None for name in names]
        return ops.pack([read(name) if part is None else part for name, part in zip(names, codes, strict=True)], bias)

    def norm(name: str) -> Norm:
        return Norm(read(name).float().contiguous(), layer.norm_eps)

    def qk_norm(at: str) -> QKNorm:
        return QKNorm(*(read(f"{at}{x}_norm.weight").float().contiguous() for x in "qk"))

    at, mlp = "layers.0.self_attn.", "layers.0.mlp."
    bias = read(*(f"{at}{x}_proj.bias" for x in "qkv")) if layer.qkv_bias else None
    each = [f"fc_norm.{k}.weight" for k in range(len(config.feature_layers))]
    feature_norms = {"none": [], "all": ["input_norm.weight"], "each": each}[config.feature_norm]
    return DraftHead(
        config=config,
        feature_norms=tuple(map(norm, feature_norms)),
        fuse=packed("fc.weight"),
        embedding=packed("embed_tokens.weight") if config.own_embedding else decoder.embedding,
        token_norm=norm("layers.0.input_layernorm.weight"),
        layer=Layer(
            attention_norm=norm("layers.0.hidden_norm.weight"),
            qkv=packed(*(f"{at}{x}_proj.weight" for x in "qkv"), bias=bias),
            qk_norm=qk_norm(at) if layer.qk_norm else None,
            output=packed(f"{at}o_proj.weight"),
            mlp_norm=norm("layers.0.post_attention_layernorm.weight"),
            gate_up=packed(f"{mlp}gate_proj.weight", f"{mlp}up_proj.weight"),
            down=packed(f"{mlp}down_proj.weight"),
        ),
        final_norm=norm("norm.weight"),
        logits=packed("lm_head.weight"),
        rope=rope_table(layer, len(decoder.rope.cosine), device),
        token_ids=torch.from_numpy(checkpoint.token_ids()).to(device),
        cache=LayerCache(*pool.add_cache(layer.num_kv_heads, layer.head_dim)),
    )


def _chain_choice(request: ExtendRequest, steps: int) -> ChainChoice:
    sampling, first = request.sampling, request.position
    keys = [stream_key(sampling.seed, first + step) for step in range(steps)] if sampling.temperature else []
    return ChainChoice(request.steps, sampling.temperature, keys, request.least_chance)


def _path(parents: Sequence[int], node: int) -> list[int]:
    path = []
    while node != ROOT:
        path.append(node)
        node = parents[node]
    return path[::-1]


def trail_of(sequence: PooledSequence) -> Trail:
    assert sequence.trail is not None
    return sequence.trail
