# SPDX-License-Identifier: Apache-2.0
"""The native MXFP4 multiplication against the float64 reference, on every path this CPU has."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_ext.native.load import load_native, set_cpu_path
from vllm_ext.quant.mxfp4 import cpu
from vllm_ext.quant.mxfp4.format import E2M1_VALUES, GROUP_SIZE, group_count
from vllm_ext.quant.mxfp4.reference import dequantize, linear_reference

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
PATHS = pytest.mark.parametrize("path", ["avx512_bf16", "avx2"])


@pytest.fixture(scope="module", autouse=True)
def native_library() -> None:
    status = load_native()
    assert status.available, status.reason


@contextmanager
def using(path: str) -> Iterator[None]:
    if not set_cpu_path(path):
        pytest.skip(f"this CPU has no {path}")
    try:
        yield
    finally:
        for best in ("avx512_bf16", "avx2"):
            if set_cpu_path(best):
                break


def random_matrix(n: int, k: int, low: int, high: int) -> tuple[torch.Tensor, torch.Tensor]:
    weight = torch.randint(0, 256, (n, k // 2), dtype=torch.uint8)
    scale = torch.randint(low, high + 1, (n, group_count(k)), dtype=torch.uint8)
    return weight, scale


def packed(weight: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    weight, scale = weight.clone(), scale.clone()
    cpu.pack_(weight, scale)
    return weight, scale


def linear(
    x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    return cpu.linear(x, *packed(weight, scale), bias)


def assert_close(
    result: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None = None
) -> None:
    """One rounding to the dtype of x, and fp32 sums whose error is relative to the sum of magnitudes."""
    dense = dequantize(weight, scale, torch.float64)
    exact = x.double() @ dense.T
    magnitude = x.double().abs() @ dense.abs().T
    if bias is not None:
        exact, magnitude = exact + bias.double(), magnitude + bias.double().abs()
    limit = torch.finfo(x.dtype)
    allowed = limit.eps * exact.abs() + 2.0**-20 * magnitude + limit.smallest_normal * limit.eps
    overflow = exact.abs() - allowed > limit.max
    assert result.dtype == x.dtype
    assert result.shape == exact.shape
    assert not result.isnan().any()
    assert torch.equal(result[overflow].double(), exact[overflow].sign() * math.inf)
    ok = ((result.double() - exact).abs() <= allowed) | (exact.abs() + allowed > limit.max)
    assert ok.all(), f"{int((~ok).sum())} of {ok.numel()} elements are wrong"


@PATHS
@settings(max_examples=120, deadline=None)
@given(
    n=st.integers(1, 200),
    k=st.one_of(st.integers(1, 9).map(lambda g: g * GROUP_SIZE), st.integers(1, 130).map(lambda h: 2 * h)),
    lead=st.lists(st.integers(0, 7), min_size=0, max_size=2),
    dtype=st.sampled_from(DTYPES),
    bias_dtype=st.sampled_from((None, *DTYPES)),
    seed=st.integers(0, 2**32),
)
def test_matches_reference(
    path: str, n: int, k: int, lead: list[int], dtype: torch.dtype, bias_dtype: torch.dtype | None, seed: int
) -> None:
    torch.manual_seed(seed)
    weight, scale = random_matrix(n, k, 110, 131)
    x = torch.randn(*lead, k).to(dtype)
    bias = None if bias_dtype is None else (torch.randn(n) * 8).to(bias_dtype)
    with using(path):
        result = linear(x, weight, scale, bias)
    assert result.is_contiguous()
    assert_close(result, x, weight, scale, bias)


@PATHS
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("m", [*range(1, 14), 47, 48, 49, 97, 260])
def test_every_row_count(path: str, dtype: torch.dtype, m: int) -> None:
    torch.manual_seed(m)
    weight, scale = random_matrix(80, 96, 118, 128)
    x = torch.randn(m, 96).to(dtype)
    with using(path):
        assert_close(linear(x, weight, scale), x, weight, scale)


@PATHS
@pytest.mark.parametrize("dtype", DTYPES)
def test_padded_rows_and_odd_strides(path: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    k = 64
    weight, scale = random_matrix(96, k, 120, 128)
    wide = torch.randn(9, k + 13).to(dtype)
    wide[:, k + 5 :] = math.nan  # a read beyond a row would show
    views = {
        "padded": wide[:, 5 : 5 + k],
        "expanded": wide[:1, 5 : 5 + k].expand(9, k),
        "every second row": wide[::2, 5 : 5 + k],
        "transposed": wide[:, 5 : 5 + k].T.contiguous().T,
        "3-D": torch.randn(4, 3, k + 2).to(dtype)[:, :, 1 : 1 + k],
        "0 rows": wide[:0, 5 : 5 + k],
    }
    with using(path):
        for name, x in views.items():
            assert torch.equal(linear(x, weight, scale), linear(x.contiguous(), weight, scale)), name
            assert_close(linear(x, weight, scale), x, weight, scale)


@PATHS
@pytest.mark.parametrize("dtype", DTYPES)
def test_row_does_not_depend_on_threads_or_batch(path: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    weight, scale = packed(*random_matrix(200, 320, 2, 130))
    x = torch.randn(71, 320).to(dtype)
    threads = torch.get_num_threads()
    with using(path):
        try:
            results = []
            for count in (1, 2, 5):
                torch.set_num_threads(count)
                results.append(cpu.linear(x, weight, scale))
        finally:
            torch.set_num_threads(threads)
        rows = torch.cat([cpu.linear(row, weight, scale) for row in x.split(5)])
    for other in (*results[1:], rows):
        assert torch.equal(results[0].view(torch.uint8), other.view(torch.uint8))


@PATHS
def test_equals_rounded_float64_product(path: str) -> None:
    torch.manual_seed(0)
    for m, n, k in ((4, 128, 14336), (1, 256, 4096), (33, 72, 2048)):
        weight, scale = random_matrix(n, k, 2, 239)
        x = torch.randn(m, k).bfloat16()
        with using(path):
            result = linear(x, weight, scale)
        share = (result == linear_reference(x, weight, scale)).double().mean().item()
        assert share >= 0.999, f"{share:.5f} of {m} x {n} x {k}"


@PATHS
@pytest.mark.parametrize("n", [64, 5])  # a tile, and checkpoint order
@pytest.mark.parametrize("flush", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_scale_byte_is_exact(path: str, n: int, flush: bool, dtype: torch.dtype) -> None:
    """One value per row: the product is exact where the dtype can hold it, infinite above, rounded once below."""
    weight = torch.zeros(n, 16, dtype=torch.uint8)
    codes = torch.arange(n) % 16
    weight[:, 3] = (codes << 4).to(torch.uint8)
    limit = torch.finfo(dtype)
    values = torch.tensor([1.0, -1.75, 100.0, limit.max, limit.smallest_normal, limit.smallest_normal * 1.25])
    x = torch.zeros(len(values), 32, dtype=dtype)
    x[:, 7] = values.to(dtype)
    torch.set_flush_denormal(flush)
    try:
        with using(path):
            results = {
                byte: linear(x, weight, torch.full((n, 1), byte, dtype=torch.uint8)).clone() for byte in range(255)
            }
    finally:
        torch.set_flush_denormal(False)
    codes_value = torch.tensor(E2M1_VALUES, dtype=torch.float64)[codes]
    for byte, result in results.items():
        exact = x[:, 7:8].double() * codes_value * 2.0 ** (byte - 127)
        assert torch.equal(result, exact.float().to(dtype)), byte


@PATHS
@pytest.mark.parametrize("dtype", DTYPES)
def test_flush_denormal_changes_nothing(path: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    weight, scale = packed(*random_matrix(130, 128, 0, 20))
    x = torch.randn(3, 128).to(dtype)
    with using(path):
        expected = cpu.linear(x, weight, scale)
        torch.set_flush_denormal(True)
        try:
            result = cpu.linear(x, weight, scale)
            still_flushing = (torch.tensor([1e-39]) * 0.5).item() == 0.0
        finally:
            torch.set_flush_denormal(False)
    assert torch.equal(result.view(torch.uint8), expected.view(torch.uint8))
    assert still_flushing


@PATHS
@settings(max_examples=60, deadline=None)
@given(
    dtype=st.sampled_from(DTYPES), n=st.sampled_from((64, 70)), k=st.sampled_from((64, 80)), seed=st.integers(0, 2**32)
)
def test_overflow_is_infinite_never_nan(path: str, dtype: torch.dtype, n: int, k: int, seed: int) -> None:
    """The largest scales and activations: partial sums overflow in both directions, the result is the true one."""
    torch.manual_seed(seed)
    weight, scale = random_matrix(n, k, 235, 254)
    x = (torch.randn(4, k) * torch.randint(-4, 120, (4, 1)).double().exp2()).clamp(-3e38, 3e38).to(dtype).nan_to_num()
    with using(path):
        result = linear(x, weight, scale)
    assert_close(result, x, weight, scale)


@PATHS
@pytest.mark.parametrize("dtype", DTYPES)
def test_cancelling_overflow_gives_the_true_value(path: str, dtype: torch.dtype) -> None:
    weight = torch.zeros(64, 32, dtype=torch.uint8)
    weight[:, 0], weight[:, 16], weight[:, 17] = 0x07, 0x0F, 0x02  # 6, then -6 and 1 in the second group
    scale = torch.tensor([[254, 254]], dtype=torch.uint8).repeat(64, 1)
    x = torch.zeros(1, 64, dtype=dtype)
    x[0, 0] = x[0, 32] = 1024.0
    x[0, 34] = 2.0**-14
    with using(path):
        result = linear(x, weight, scale, torch.full((64,), 0.0))
    assert torch.equal(result, torch.full((1, 64), 2.0**113, dtype=torch.float64).to(dtype))


@PATHS
@pytest.mark.parametrize("dtype", DTYPES)
def test_nan_and_infinity_of_x_and_bias(path: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    weight, scale = random_matrix(70, 64, 120, 130)
    x = torch.randn(4, 64).to(dtype)
    x[1, 3], x[2, 5], x[3, 7], x[3, 8] = math.nan, math.inf, math.inf, -math.inf
    bias = torch.randn(70)
    bias[10], bias[66] = math.nan, -math.inf
    with using(path):
        result = linear(x, weight, scale, bias)
    expected = linear_reference(x, weight, scale, bias)
    assert torch.equal(result.isnan(), expected.isnan())
    assert torch.equal(result.isinf(), expected.isinf())
    assert torch.equal(result[result.isinf()], expected[expected.isinf()])


@PATHS
def test_fp16_with_large_scales(path: str) -> None:
    """Scale bytes from 141 on make weights beyond fp16's range; the products may still be in it."""
    torch.manual_seed(0)
    weight, scale = random_matrix(128, 256, 141, 150)
    x = (torch.randn(7, 256) * 2.0**-16).half()
    with using(path):
        result = linear(x, weight, scale)
    assert result.isfinite().all()
    assert_close(result, x, weight, scale)


def test_errors_say_what_is_wrong() -> None:
    weight, scale = random_matrix(64, 64, 120, 130)
    x = torch.randn(2, 64)
    for args, words in (
        ((x.double(), weight, scale), "x has dtype Double"),
        ((x[:, :62], weight, scale), "last dimension of x is 62"),
        ((x, weight.to(torch.int8), scale), "weight has dtype Char"),
        ((x, weight, scale[:, :1]), "scale must be contiguous"),
        ((x, weight, scale[:, :1].contiguous()), "scale has shape"),
        ((x, weight[0], scale), "weight has 1 dimensions"),
        ((x, weight, scale, torch.zeros(63)), "bias must be a CPU tensor of shape"),
        ((x, weight, scale, torch.zeros(64).double()), "bias has dtype Double"),
        ((torch.tensor(1.0), weight, scale), "last dimension of x"),
    ):
        with pytest.raises(RuntimeError, match=words):
            cpu.linear(*args)


def test_compiled_function_equals_eager() -> None:
    torch.manual_seed(0)
    weight, scale = packed(*random_matrix(96, 128, 120, 130))
    bias = torch.randn(96).bfloat16()

    def layer(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(cpu.linear(x * 2, weight, scale, bias))

    # eager backend: the graph is traced with the fake operator, without Inductor's C++ build
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager", dynamic=True)
    for shape in ((3, 128), (5, 128), (2, 3, 128)):
        x = torch.randn(shape).bfloat16()
        assert torch.equal(compiled(x), layer(x))


def test_operators_are_registered_correctly() -> None:
    weight, scale = random_matrix(64, 64, 120, 130)
    torch.library.opcheck(torch.ops.vllm_ext.mxfp4_pack.default, (weight.clone(), scale.clone()))
    torch.library.opcheck(torch.ops.vllm_ext.mxfp4_unpack.default, (weight.clone(), scale.clone()))
    for x in (torch.randn(3, 64), torch.randn(2, 3, 64).bfloat16(), torch.randn(3, 70).half()[:, :64]):
        torch.library.opcheck(torch.ops.vllm_ext.mxfp4_linear.default, (x, weight, scale, torch.randn(64)))


def test_self_check_passes() -> None:
    cpu.self_check()
