# SPDX-License-Identifier: Apache-2.0
"""MXFP4 on the CPU: the native operators, in the terms of the rest of the package.

`vllm_ext.native.load.load_native` must have loaded the library. A matrix is packed once, in place, before it is
multiplied; its tensors keep shape, dtype and storage.
"""

from __future__ import annotations

import torch

from vllm_ext.quant.mxfp4.format import group_count
from vllm_ext.quant.mxfp4.reference import linear_reference


def pack_(weight: torch.Tensor, scale: torch.Tensor) -> None:
    """Bring a matrix from checkpoint order to the order the kernels read, in place.

    Whether a matrix is packed cannot be seen: the caller must know, and packing twice makes garbage.

    Args:
        weight: uint8 [N, K / 2], contiguous, on the CPU.
        scale: uint8 [N, ceil(K / 32)], contiguous, on the CPU.

    Raises:
        RuntimeError: dtype, shape, device or strides are wrong.
    """
    torch.ops.vllm_ext.mxfp4_pack(weight, scale)


def unpack_(weight: torch.Tensor, scale: torch.Tensor) -> None:
    """The inverse of `pack_`, in place; same arguments and errors."""
    torch.ops.vllm_ext.mxfp4_unpack(weight, scale)


def linear(
    x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """x @ W.T + bias with fp32 accumulation, rounded once to the dtype of x.

    The result of a row depends on neither the number of threads nor the other rows. It is NaN only where x or bias have
    NaN, or infinities that give one.

    Args:
        x: bfloat16, float16 or float32 [..., K]; padded rows of a 2-D x are not copied.
        weight: uint8 [N, K / 2], packed by `pack_`.
        scale: uint8 [N, ceil(K / 32)], packed by `pack_`.
        bias: bfloat16, float16 or float32 [N], or None.

    Returns:
        dtype of x, [..., N], contiguous.

    Raises:
        RuntimeError: a dtype, shape or device is wrong.
    """
    return torch.ops.vllm_ext.mxfp4_linear(x, weight, scale, bias)


def self_check() -> None:
    """Multiply one small matrix and compare with the reference.

    Raises:
        RuntimeError: the library is not loaded, or its result is wrong; the message says by how much.
    """
    if not hasattr(torch.ops.vllm_ext, "mxfp4_linear"):
        raise RuntimeError("the native MXFP4 kernel is not loaded: call vllm_ext.native.load.load_native first")
    generator = torch.Generator().manual_seed(0)
    rows, n, k = 5, 72, 96  # one tile, and a tail
    weight = torch.randint(0, 256, (n, k // 2), dtype=torch.uint8, generator=generator)
    scale = torch.randint(119, 130, (n, group_count(k)), dtype=torch.uint8, generator=generator)
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        x = torch.randn(rows, k, generator=generator).to(dtype)
        expected = linear_reference(x, weight, scale)
        packed_weight, packed_scale = weight.clone(), scale.clone()
        pack_(packed_weight, packed_scale)
        result = linear(x, packed_weight, packed_scale)
        # one rounding of the result, and fp32 sums of about 6 * |x| * 2**2 per term
        tolerance = torch.finfo(dtype).eps * expected.double().abs() + 1e-3
        error = (result.double() - expected.double()).abs()
        if not bool((error <= tolerance).all()):
            worst = int((error - tolerance).argmax())
            raise RuntimeError(
                f"the native MXFP4 kernel is wrong for {dtype}: element {worst} is {result.flatten()[worst].item()}, "
                f"but the reference says {expected.flatten()[worst].item()}: set VLLM_EXT_QUARK_MXFP4=0 and report this"
            )
