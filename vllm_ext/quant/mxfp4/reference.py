# SPDX-License-Identifier: Apache-2.0
"""What MXFP4 means, in plain torch: the measure of every kernel, too slow to serve with."""

from __future__ import annotations

import torch

from vllm_ext.quant.mxfp4.format import E2M1_VALUES, GROUP_SIZE, SCALE_BIAS


def dequantize(weight: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The matrix an MXFP4 pair stands for.

    Exact in float64. In float32 and bfloat16 too, up to what these cannot hold: 6 * 2**127 is infinite, and bytes near
    0 give subnormals.

    Args:
        weight: uint8 [N, K / 2] in checkpoint order.
        scale: uint8 [N, ceil(K / 32)] in checkpoint order, no byte 255.
        dtype: of the result.

    Returns:
        `dtype` [N, K].
    """
    codes = torch.stack((weight & 15, weight >> 4), dim=-1).flatten(-2)
    values = torch.tensor(E2M1_VALUES, dtype=torch.float64, device=weight.device)[codes.long()]
    # float64, since no narrower type holds all of e8m0 times e2m1 as normal numbers
    powers = torch.ldexp(torch.ones_like(scale, dtype=torch.float64), scale.int() - SCALE_BIAS)
    return (values * powers.repeat_interleave(GROUP_SIZE, dim=-1)[:, : values.shape[-1]]).to(dtype)


def linear_reference(
    x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """x @ dequantize(weight, scale).T + bias in float64, rounded once to the dtype of x.

    Args:
        x: floating point [..., K].
        weight: uint8 [N, K / 2] in checkpoint order.
        scale: uint8 [N, ceil(K / 32)] in checkpoint order.
        bias: floating point [N], or None.

    Returns:
        dtype of x, [..., N].
    """
    product = x.double() @ dequantize(weight, scale, torch.float64).T
    if bias is not None:
        product = product + bias.double()
    return product.to(x.dtype)
