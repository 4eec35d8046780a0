// SPDX-License-Identifier: Apache-2.0
//
// Activations to the kernels' formats, and accumulators to the output dtype. Needs AVX2 and F16C, like every path here.
#include <immintrin.h>

#include "mxfp4.h"

namespace vllm_ext {
namespace {

constexpr int64_t element_size(Dtype dtype) { return dtype == Dtype::kFloat ? 4 : 2; }

const uint8_t* element(const void* base, Dtype dtype, int64_t index) {
  return static_cast<const uint8_t*>(base) + index * element_size(dtype);
}

// Eight elements as fp32; exact for every value, NaN and infinity included.
__m256 load8(const uint8_t* p, Dtype dtype) {
  if (dtype == Dtype::kFloat) return _mm256_loadu_ps(reinterpret_cast<const float*>(p));
  const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  if (dtype == Dtype::kHalf) return _mm256_cvtph_ps(half);
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}

// The first `count` < 8 elements, then zeros.
__m256 load_some(const uint8_t* p, Dtype dtype, int64_t count) {
  alignas(32) uint8_t buffer[32] = {};
  __builtin_memcpy(buffer, p, count * element_size(dtype));
  return load8(buffer, dtype);
}

// Low halves of eight 32-bit lanes.
__m128i narrow16(__m256i v) {
  const __m256i packed = _mm256_packus_epi32(v, v);
  return _mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0x08));
}

// Round to nearest even in integers: vcvtneps2bf16 would flush subnormal results to zero.
__m128i to_bfloat16(__m256 v) {
  const __m256i bits = _mm256_castps_si256(v);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF)));
  const __m256i quiet =
      _mm256_or_si256(bits, _mm256_set1_epi32(0x00400000));  // a NaN must not round to infinity or zero
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
  return narrow16(_mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16));
}

void store8(uint8_t* p, Dtype dtype, __m256 v) {
  if (dtype == Dtype::kFloat) {
    _mm256_storeu_ps(reinterpret_cast<float*>(p), v);
  } else {
    const __m128i half =
        dtype == Dtype::kHalf ? _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC) : to_bfloat16(v);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), half);
  }
}

// One bit per lane that is infinite or NaN.
int not_finite(__m256 v) {
  const __m256 magnitude = _mm256_andnot_ps(_mm256_set1_ps(-0.0f), v);
  return _mm256_movemask_ps(_mm256_cmp_ps(magnitude, _mm256_set1_ps(__builtin_inff()), _CMP_NLT_UQ));
}

// Replace the lanes of `wrong` (a bit mask) by the product in double plus the bias. A row that holds a NaN has no other
// result.
__m256 recompute(const LinearArgs& args, int64_t m, int64_t n, int wrong, __m256 sum, __m256 bias) {
  alignas(32) float result[8], addend[8];
  _mm256_store_ps(result, _mm256_add_ps(sum, bias));
  _mm256_store_ps(addend, bias);
  const bool nan = row_has_nan(args, m);
  for (int lane = 0; lane < 8; ++lane) {
    if (wrong >> lane & 1) {
      result[lane] = nan ? __builtin_nanf("") : static_cast<float>(exact_element(args, m, n + lane) + addend[lane]);
    }
  }
  return _mm256_load_ps(result);
}

}  // namespace

void widen_row_avx2(const LinearArgs& args, int64_t m, int64_t padded, float* out) {
  const uint8_t* row = element(args.x, args.x_dtype, m * args.x_stride);
  for (int64_t k = 0; k < padded; k += 8) {
    const uint8_t* p = row + k * element_size(args.x_dtype);
    const int64_t left = args.k - k;
    __m256 v = _mm256_setzero_ps();
    if (left >= 8) {
      v = load8(p, args.x_dtype);
    } else if (left > 0) {
      v = load_some(p, args.x_dtype, left);
    }
    _mm256_storeu_ps(out + k, v);
  }
}

void split_row_avx2(const LinearArgs& args, int64_t m, uint16_t* out) {
  const uint8_t* row = element(args.x, args.x_dtype, m * args.x_stride);
  for (int64_t k = 0; k < args.k; k += 8) {
    const __m256 v = load8(row + 2 * k, Dtype::kHalf);
    // hi by truncation cannot become infinite, and the 3 of fp16's 11 bits that are left fit in lo. Infinity and NaN
    // stay in hi (the load made NaNs quiet, so truncation keeps them); their lo, infinity minus infinity, is replaced
    // by zero.
    const __m256i hi = _mm256_and_si256(_mm256_castps_si256(v), _mm256_set1_epi32(0xFFFF0000));
    const __m256 rest = _mm256_sub_ps(v, _mm256_castsi256_ps(hi));
    const __m256 lo = _mm256_and_ps(rest, _mm256_cmp_ps(rest, rest, _CMP_ORD_Q));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + k), narrow16(_mm256_srli_epi32(hi, 16)));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + args.k + k),
                     narrow16(_mm256_srli_epi32(_mm256_castps_si256(lo), 16)));
  }
}

void store_rows_avx2(const LinearArgs& args, const float* acc, int planes, int64_t m0, int64_t m1, int64_t n0,
                     int64_t columns) {
  const int64_t size = element_size(args.x_dtype);
  alignas(32) float bias[kTileRows] = {};
  if (args.bias) {
    for (int64_t n = 0; n < columns; n += 8) {
      const uint8_t* p = element(args.bias, args.bias_dtype, n0 + n);
      const int64_t left = columns - n;
      _mm256_store_ps(bias + n, left >= 8 ? load8(p, args.bias_dtype) : load_some(p, args.bias_dtype, left));
    }
  }
  for (int64_t m = m0; m < m1; ++m) {
    const float* row = acc + (m - m0) * planes * kTileRows;
    uint8_t* out = static_cast<uint8_t*>(args.out) + (m * args.n + n0) * size;
    for (int64_t n = 0; n < columns; n += 8) {
      __m256 sum = _mm256_loadu_ps(row + n);
      if (planes == 2) sum = _mm256_add_ps(sum, _mm256_loadu_ps(row + kTileRows + n));
      const __m256 addend = _mm256_load_ps(bias + n);
      const int64_t left = columns - n;
      const int wrong = not_finite(sum) & (left >= 8 ? 0xFF : (1 << left) - 1);
      const __m256 result =
          __builtin_expect(wrong, 0) ? recompute(args, m, n0 + n, wrong, sum, addend) : _mm256_add_ps(sum, addend);
      if (left >= 8) {
        store8(out + n * size, args.x_dtype, result);
      } else {
        alignas(32) uint8_t buffer[32];
        store8(buffer, args.x_dtype, result);
        __builtin_memcpy(out + n * size, buffer, left * size);
      }
    }
  }
}

}  // namespace vllm_ext
