# SPDX-License-Identifier: Apache-2.0
"""Packing in place, the checks on checkpoint tensors, and the reference itself."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_ext.native.load import load_native
from vllm_ext.quant.mxfp4 import cpu
from vllm_ext.quant.mxfp4.format import E2M1_VALUES, SCALE_NAN, TILE_ROWS, check_tensors, group_count
from vllm_ext.quant.mxfp4.reference import dequantize, linear_reference


@pytest.fixture(scope="module")
def native_library() -> None:
    status = load_native()
    assert status.available, status.reason


def random_matrix(n: int, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    weight = torch.randint(0, 256, (n, k // 2), dtype=torch.uint8)
    return weight, torch.randint(0, 255, (n, group_count(k)), dtype=torch.uint8)


@pytest.mark.usefixtures("native_library")
@settings(max_examples=100, deadline=None)
@given(n=st.integers(0, 300), k=st.integers(1, 150).map(lambda h: 2 * h), seed=st.integers(0, 2**32))
def test_round_trip(n: int, k: int, seed: int) -> None:
    torch.manual_seed(seed)
    weight, scale = random_matrix(n, k)
    w, s = weight.clone(), scale.clone()
    cpu.pack_(w, s)
    tail = n // TILE_ROWS * TILE_ROWS if k % 32 == 0 else 0
    assert torch.equal(w[tail:], weight[tail:])
    assert torch.equal(s[tail:], scale[tail:])
    cpu.unpack_(w, s)
    assert torch.equal(w, weight)
    assert torch.equal(s, scale)


@pytest.mark.usefixtures("native_library")
def test_tile_order() -> None:
    """The documented place of every code: nibble j of half-word l of vector i is code(l / 2, 2 (4 i + j) + l % 2)."""
    torch.manual_seed(0)
    n, k = 128, 96
    weight, scale = random_matrix(n, k)
    w, s = weight.clone(), scale.clone()
    cpu.pack_(w, s)
    codes = torch.stack((weight & 15, weight >> 4), dim=-1).reshape(n, k)
    halves = w.view(torch.int16).view(n // 64, k // 32, 4, 4, 32).int() & 0xFFFF  # tile, group, block, i, l
    for j in range(4):
        for i in range(4):
            for half in range(32):
                column = 2 * (4 * i + j) + half % 2
                expected = codes.view(n // 64, 4, 16, k // 32, 32)[:, :, half // 2, :, column].transpose(1, 2)
                assert torch.equal(halves[:, :, :, i, half] >> (4 * j) & 15, expected.int())
    assert torch.equal(s.view(n // 64, k // 32, 64), scale.view(n // 64, 64, k // 32).transpose(1, 2))


@pytest.mark.usefixtures("native_library")
def test_packing_keeps_storage() -> None:
    weight, scale = random_matrix(192, 64)
    addresses = weight.data_ptr(), scale.data_ptr()
    cpu.pack_(weight, scale)
    assert (weight.data_ptr(), scale.data_ptr()) == addresses
    assert weight.shape == (192, 32)
    assert scale.shape == (192, 2)


@pytest.mark.usefixtures("native_library")
def test_packing_does_not_depend_on_threads() -> None:
    weight, scale = random_matrix(640, 256)
    threads = torch.get_num_threads()
    results = []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            w, s = weight.clone(), scale.clone()
            cpu.pack_(w, s)
            results.append((w, s))
    finally:
        torch.set_num_threads(threads)
    for w, s in results[1:]:
        assert torch.equal(w, results[0][0])
        assert torch.equal(s, results[0][1])


@pytest.mark.usefixtures("native_library")
def test_packing_refuses_views() -> None:
    weight, scale = random_matrix(64, 128)
    with pytest.raises(RuntimeError, match="weight must be contiguous"):
        cpu.pack_(weight[:, ::2], scale)
    with pytest.raises(RuntimeError, match="scale has shape"):
        cpu.pack_(weight, scale[:32])


def test_dequantize_every_code_and_byte() -> None:
    weight = torch.arange(256, dtype=torch.uint8).repeat(1, 1)  # all bytes: 512 codes, 16 groups
    for first in range(0, 255, 16):
        scale = torch.arange(first, first + 16).clamp(max=254).to(torch.uint8).view(1, 16)
        dense = dequantize(weight, scale, torch.float64)
        for k in range(512):
            code = (int(weight[0, k // 2]) >> (4 * (k % 2))) & 15
            assert dense[0, k].item() == math.ldexp(E2M1_VALUES[code], int(scale[0, k // 32]) - 127)


def test_dequantize_is_exact_in_bfloat16() -> None:
    torch.manual_seed(0)
    weight, scale = random_matrix(16, 80)
    scale.clamp_(2, 252)
    exact = dequantize(weight, scale, torch.float64)
    for dtype in (torch.bfloat16, torch.float32):
        assert torch.equal(dequantize(weight, scale, dtype).double(), exact)


def test_reference_multiplies_and_adds() -> None:
    weight = torch.tensor([[0x21]], dtype=torch.uint8)  # k = 0: 0.5, k = 1: 1.0
    scale = torch.tensor([[128]], dtype=torch.uint8)
    result = linear_reference(torch.tensor([[3.0, 5.0]]), weight, scale, torch.tensor([0.25]))
    assert result.tolist() == [[13.25]]


def test_check_accepts_short_groups() -> None:
    check_tensors(*random_matrix(3, 48), "layer")
    check_tensors(*random_matrix(0, 64), "layer")


def test_check_names_the_layer_and_the_fault() -> None:
    weight, scale = random_matrix(4, 96)
    bad = scale.clone()
    bad[2, 1] = bad[3, 0] = SCALE_NAN
    for w, s, words in (
        (weight.to(torch.int8), scale, "weight has dtype torch.int8"),
        (weight, scale.float(), "weight_scale has dtype torch.float32"),
        (weight, scale[:, :2], r"weight_scale has shape \[4, 2\], but weight \[4, 48\] needs \[4, 3\]"),
        (weight[0], scale, "must have two dimensions"),
        (weight, bad, "255 at row 2, group 1, which means NaN"),
    ):
        with pytest.raises(ValueError, match=r"model\.layers\.0: MXFP4.*" + words):
            check_tensors(w, s, "model.layers.0")
