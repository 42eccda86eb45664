"""The kernels of quantised.cu in numpy: they read and write the same places, so a layout that is wrong shows."""

from __future__ import annotations

import numpy as np
import torch

from slipstream.backends.torch.cuda.kernels.quantised_kernels import CodedRows, Source
from slipstream.backends.torch.cuda.kernels.quantised_layout import (
    BYTES,
    BYTES16,
    FLOAT,
    HALF,
    QUAD,
    CodedLinear,
    CodedPart,
)
from slipstream.backends.torch.ops import Norm

WARPS = 8


class EmulatedKernels:
    def quantise(self, x: torch.Tensor, source: Source, norm: Norm | None = None) -> CodedRows:
        x = x.float()
        if source == "normed":
            assert norm is not None
            x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + norm.eps) * norm.gain
        elif source == "gated":
            gate, up = x.chunk(2, dim=-1)
            x = torch.nn.functional.silu(gate) * up
        return placed(x)

    def multiply(self, rows: CodedRows, weight: CodedLinear, out: torch.Tensor, add: bool = False) -> None:
        first = 0
        for part in weight.parts:
            y = torch.from_numpy(product(rows, part))
            to = out[:, first : first + part.outputs]
            if weight.bias is not None:
                y = y + weight.bias[first : first + part.outputs]
            to.copy_(to + y if add else y)
            first += part.outputs

    def lookup(self, table: CodedPart, tokens: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(weights_of(table)[tokens.numpy()])

    def unpack(self, part: CodedPart, first: int, out: torch.Tensor) -> None:
        out.copy_(torch.from_numpy(weights_of(part)[first : first + len(out)]))


# -- weights, by the places that `weight_at` reads --------------------------------------------------------------------


def codes_of(part: CodedPart) -> np.ndarray:
    """[outputs, inputs], padding included"""
    bits, quads = part.layout.bits, part.num_quads
    output, k = np.ogrid[: part.num_tiles * 16, : quads * QUAD]
    tile, side, quad, group = output // 16, output % 16 // 8, k // QUAD, k % QUAD // 32
    half, lane, byte = k % 32 // 16, output % 8 * 4 + k % 16 // 4, k % 4
    at = tile * quads + quad
    low, high = (piece.contiguous().numpy().ravel() for piece in part.pieces()[:2])
    if bits == 8:
        return low[((at * 4 + group) * 32 + lane) * 16 + (half * 2 + side) * 4 + byte].view(np.int8).astype(np.int32)
    pair = low[((at * 2 + group // 2) * 32 + lane) * 16 + (group % 2 * 2 + side) * 4 + byte]
    codes = (pair >> (4 * half) & 15).astype(np.int32)
    if bits == 6:
        top = high[(at * 32 + lane) * 16 + group * 4 + byte] >> (2 * (half * 2 + side)) & 3
        codes += top.astype(np.int32) * 16 - 32
    return codes


def numbers_of(part: CodedPart, kind: int) -> np.ndarray:
    """Scales or minimums [outputs, groups of 32 or 16], padding included."""
    layout, quads, each = part.layout, part.num_quads, part.layout.scales_a_quad
    output, group = np.ogrid[: part.num_tiles * 16, : quads * each]
    tile, side, quad = output // 16, output % 16 // 8, group // each
    place = (((tile * quads + quad) * 8 + output % 8) * 2 + side) * layout.numbers + kind
    stored, supers = (piece.contiguous().numpy().ravel() for piece in part.pieces()[2:])
    kinds = {HALF: np.float16, FLOAT: np.float32, BYTES: np.uint8, BYTES16: np.uint8}
    values = stored.view(kinds[layout.scale])[place * each + group % each].astype(np.float32)
    if layout.scale in (HALF, FLOAT):
        return values
    floats = supers.view(np.float16 if layout.super_bytes == 2 else np.float32).astype(np.float32)
    return floats[place] * (values - 128)


def minimums_of(part: CodedPart, scales: np.ndarray) -> np.ndarray | None:
    if part.layout.minimum == 1:
        return numbers_of(part, 1)
    return scales * np.float32(part.offset) if part.layout.minimum == 2 else None


def weights_of(part: CodedPart) -> np.ndarray:
    length = QUAD // part.layout.scales_a_quad
    codes, scales = codes_of(part), np.repeat(numbers_of(part, 0), length, axis=1)
    if part.layout.minimum == 2:
        codes = codes + part.offset
    weights = scales * codes.astype(np.float32)
    if part.layout.minimum == 1:
        weights = weights + np.repeat(numbers_of(part, 1), length, axis=1)
    return weights[: part.outputs, : part.inputs]


# -- activations, by the places that `quantise` writes and `read_rows` reads ------------------------------------------


def placed(x: torch.Tensor) -> CodedRows:
    rows, quads = len(x), -(-x.shape[1] // QUAD)
    values = np.zeros((rows, quads * QUAD), np.float32)
    values[:, : x.shape[1]] = x.numpy()
    acts = CodedRows.empty(rows, x.shape[1], x.device)
    groups = values.reshape(rows, -1, 32)
    top = np.abs(groups).max(2, keepdims=True)
    with np.errstate(all="ignore"):
        is_finite = np.isfinite(top)
        inverse = np.where(is_finite & (top >= 1e-30), np.float32(127) / top, 0)
        scale = np.where(is_finite, top / np.float32(127), np.nan).astype(np.float32)[:, :, 0]
        codes = np.rint(np.where(inverse == 0, 0, groups * inverse)).astype(np.int32)
    row, k = np.ogrid[: rows * acts.apart : acts.apart, : quads * QUAD]
    group, quarter = k % QUAD // 32, k % 32 // 4
    record = (row // 8 * quads + k // QUAD) * 1408
    word = group // 2 * 512 + (row % 8 * 4 + quarter % 4) * 16 + (group % 2 * 2 + quarter // 4) * 4
    acts.records.numpy().ravel()[record + word + k % 4] = codes.reshape(rows, -1).astype(np.int8).view(np.uint8)
    halves = codes.reshape(rows, -1, 2, 16).sum(3)
    place, words = _places(acts), acts.records.numpy().ravel().view(np.float32)
    words[place + 1024 // 4] = scale
    words[place + 1152 // 4] = scale * halves.sum(2).astype(np.float32)
    words.view(np.int32)[place + 1280 // 4] = (halves[..., 0] & 0xFFFF) | halves[..., 1] << 16
    return acts


def _places(acts: CodedRows) -> np.ndarray:
    """Where the numbers of each row and group are, in words of 4 bytes."""
    quads = acts.records.shape[1]
    row, g = np.ogrid[: acts.rows * acts.apart : acts.apart, : quads * 4]
    return (row // 8 * quads + g // 4) * (1408 // 4) + row % 8 // 2 * 8 + g % 4 * 2 + row % 2


def read_rows(acts: CodedRows) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Codes [rows, inputs], scales [rows, groups], sums of halves [rows, groups, 2]."""
    quads, stored = acts.records.shape[1], acts.records.numpy().ravel()
    row, k = np.ogrid[: acts.rows * acts.apart : acts.apart, : quads * QUAD]
    group, half, lane = k % QUAD // 32, k % 32 // 16, row % 8 * 4 + k % 16 // 4
    at = (row // 8 * quads + k // QUAD) * 1408 + group // 2 * 512 + lane * 16 + (group % 2 * 2 + half) * 4 + k % 4
    place = _places(acts)
    halves = stored.view(np.int32)[place + 1280 // 4]
    sums = np.stack([(halves << 16) >> 16, halves >> 16], axis=-1)
    return stored[at].view(np.int8).astype(np.int32), stored.view(np.float32)[place + 1024 // 4], sums


# -- products ---------------------------------------------------------------------------------------------------------


def product(acts: CodedRows, part: CodedPart) -> np.ndarray:
    """[rows, outputs]: each warp its quads in order, then the warps in theirs."""
    codes, scale, sums = read_rows(acts)
    scales, weights = numbers_of(part, 0), codes_of(part)
    minimums = minimums_of(part, scales)
    length = QUAD // part.layout.scales_a_quad
    quads, total = part.num_quads, np.zeros((acts.rows, len(weights)), np.float32)
    with np.errstate(all="ignore"):
        for warp in range(WARPS):
            t = np.zeros_like(total)
            for piece in range(
                quads * warp // WARPS * (QUAD // length), quads * (warp + 1) // WARPS * (QUAD // length)
            ):
                at, of_row = slice(piece * length, (piece + 1) * length), scale[:, piece * length // 32]
                whole = codes[:, at] @ weights[:, at].T
                t = _fused(whole, of_row[:, None] * scales[:, piece], t)
                if minimums is not None:
                    own = sums[:, piece // 2, piece % 2] if length == 16 else sums[:, piece].sum(1)
                    t = _fused(minimums[:, piece], (of_row * own.astype(np.float32))[:, None], t)
            total = t if warp == 0 else total + t
    return total[:, : part.outputs]


def _fused(a: np.ndarray, b: np.ndarray, t: np.ndarray) -> np.ndarray:
    return (np.asarray(a, np.float64) * b + t).astype(np.float32)
