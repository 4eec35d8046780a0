# SPDX-License-Identifier: Apache-2.0
"""MXFP4 as Quark writes it: e2m1 codes, two to a byte, and one e8m0 scale byte for 32 values along K.

A matrix [N, K] is stored as weight uint8 [N, K / 2], whose low nibble is the even k, and scale uint8 [N, ceil(K / 32)];
value = E2M1_VALUES[code] * 2 ** (byte - SCALE_BIAS). Sources: OCP Microscaling Formats (MX) v1.0, Quark 0.13 exports.
"""

from __future__ import annotations

import torch

GROUP_SIZE = 32
E2M1_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
SCALE_BIAS = 127
SCALE_NAN = 255
TILE_ROWS = 64  # rows the CPU kernels permute together; the N % TILE_ROWS last ones stay in checkpoint order


def group_count(k: int) -> int:
    """Scale bytes of one row of K values; the last group may be short."""
    return -(-k // GROUP_SIZE)


def check_tensors(weight: torch.Tensor, scale: torch.Tensor, name: str) -> None:
    """Check that two tensors of a checkpoint are one MXFP4 matrix.

    Args:
        weight: uint8 [N, K / 2], as in the checkpoint.
        scale: uint8 [N, ceil(K / 32)], as in the checkpoint.
        name: the layer, for the messages.

    Raises:
        ValueError: a dtype or shape is wrong, or a scale byte is 255, which means NaN in e8m0.
    """
    for tensor, what in ((weight, "weight"), (scale, "weight_scale")):
        if tensor.dtype != torch.uint8:
            raise ValueError(
                f"{name}: MXFP4 {what} has dtype {tensor.dtype}, but must be uint8: re-export with packed weights"
            )
        if tensor.dim() != 2:
            raise ValueError(
                f"{name}: MXFP4 {what} has shape {list(tensor.shape)}, but must have two dimensions: re-export it"
            )
    rows, k = weight.shape[0], weight.shape[1] * 2
    expected = [rows, group_count(k)]
    if list(scale.shape) != expected:
        raise ValueError(
            f"{name}: MXFP4 weight_scale has shape {list(scale.shape)}, but weight {list(weight.shape)} needs "
            f"{expected}, one byte for {GROUP_SIZE} values: re-export the checkpoint with group_size {GROUP_SIZE}, or, "
            f"if it was split for tensor parallelism, choose a size that leaves a multiple of {GROUP_SIZE} inputs"
        )
    if scale.numel() and int(scale.max()) == SCALE_NAN:
        row, group = (scale == SCALE_NAN).nonzero()[0].tolist()
        raise ValueError(
            f"{name}: MXFP4 weight_scale is {SCALE_NAN} at row {row}, group {group}, which means NaN in e8m0: the "
            "checkpoint is damaged or was exported from weights with NaN, so re-export it"
        )
