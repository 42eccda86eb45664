"""Attention of prompts on Hopper: against plain torch in float32, and the same bits in any company."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton")
if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)

from slipstream.backends.torch.cuda.kernels.prompt_attention import Blocks, PromptAttention
from slipstream.backends.torch.cuda.long_batch import _blocks
from slipstream.backends.torch.kv_pool import PAGE_SIZE
from slipstream.backends.torch.ops import LayerCache
from slipstream.models.config import DecoderConfig
from slipstream.models.shapes import SHAPES

DEVICE = torch.device("cuda", 0)
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.get_device_capability(DEVICE) != (9, 0), reason="this GPU has no such kernel"),
]
LENGTHS = (1000, 333)  # of two texts in one cache


def config(heads: int, kv_heads: int, head_dim: int) -> DecoderConfig:
    return replace(SHAPES["llama-8b"], num_heads=heads, num_kv_heads=kv_heads, head_dim=head_dim)


def blocks_of(starts: tuple[int, ...], own: PromptAttention, pages: torch.Tensor) -> Blocks:
    """The rows of both texts from `starts` on."""
    row, page, blocks = 0, 0, []
    for start, length in zip(starts, LENGTHS, strict=True):
        blocks.append(torch.from_numpy(_blocks(row, start, length - start, page, own.rows_a_block)))
        row, page = row + length - start, page - (-length // PAGE_SIZE)
    return Blocks(torch.cat(blocks).flatten().to(DEVICE), pages, len(pages))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("heads", [(32, 8, 128), (8, 8, 128), (9, 3, 64), (14, 2, 64)], ids=str)
def test_rows_see_what_plain_attention_sees_in_any_company(heads: tuple[int, int, int], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    shape = config(*heads)
    num_heads, kv_heads, width = heads
    counts = [-(-length // PAGE_SIZE) for length in LENGTHS]
    pages = torch.randperm(sum(counts), device=DEVICE).to(torch.int32)
    keys, values = (torch.randn(sum(counts) * PAGE_SIZE, kv_heads, width, device=DEVICE).to(dtype) for _ in range(2))
    queries = torch.randn(sum(LENGTHS), (num_heads + 2 * kv_heads) * width, device=DEVICE).to(dtype)
    own, cache = PromptAttention(shape, dtype, DEVICE), LayerCache(keys, values)
    assert own._hopper

    def attend(starts: tuple[int, ...]) -> list[torch.Tensor]:
        firsts = (0, LENGTHS[0])
        asked = torch.cat([queries[f + s : f + n] for f, s, n in zip(firsts, starts, LENGTHS, strict=True)])
        out = torch.full((len(asked), num_heads * width), float("nan"), device=DEVICE, dtype=dtype)
        own.attend(asked, blocks_of(starts, own, pages), cache, out)
        return list(out.split([n - s for n, s in zip(LENGTHS, starts, strict=True)]))

    whole, later = attend((0, 0)), attend((701, 77))
    for text, (length, start) in enumerate(zip(LENGTHS, (701, 77), strict=True)):
        assert torch.equal(whole[text][start:], later[text])
        own_pages = pages[text * counts[0] :][: counts[text]].long()
        cells = (own_pages[:, None] * PAGE_SIZE + torch.arange(PAGE_SIZE, device=DEVICE)).flatten()[:length]
        q = queries[text * LENGTHS[0] :][:length, : num_heads * width].float().view(length, num_heads, width)
        k, v = (x[cells].float().repeat_interleave(num_heads // kv_heads, 1) for x in (keys, values))
        hidden = torch.ones(length, length, device=DEVICE).triu(1).bool()
        scores = torch.einsum("rhd,khd->hrk", q, k) * width**-0.5
        weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
        expected = torch.einsum("hrk,khd->rhd", weights, v).reshape(length, -1)
        assert (whole[text].float() - expected).norm() < 4e-3 * expected.norm()
