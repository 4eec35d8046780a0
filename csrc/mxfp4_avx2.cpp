// SPDX-License-Identifier: Apache-2.0
//
// Kernels in fp32 for any CPU with AVX2 and FMA. They also serve fp32 activations and checkpoint-order rows on
// AVX512-BF16 machines: one fp32 multiplication per weight costs less there than three exact bf16 planes would.
#include <immintrin.h>

#include "mxfp4.h"

namespace vllm_ext {
namespace {

constexpr float kUnit = 1 << kCodeShift;
constexpr int64_t kPrefetchBytes = 4096;

// LUT of the three magnitude bits, times 2^kCodeShift.
alignas(32) constexpr float kMagnitudes[8] = {0.0f,         0.5f * kUnit, 1.0f * kUnit, 1.5f * kUnit,
                                              2.0f * kUnit, 3.0f * kUnit, 4.0f * kUnit, 6.0f * kUnit};

// 2^(byte - 127 - kCodeShift), subnormal where that is below 2^-126.
inline __m256 scale_factors(__m256i byte) {
  const __m256i shift = _mm256_set1_epi32(kCodeShift);
  const __m256i normal = _mm256_slli_epi32(_mm256_sub_epi32(byte, shift), 23);
  const __m256i subnormal = _mm256_sllv_epi32(_mm256_set1_epi32(1), byte);
  return _mm256_castsi256_ps(_mm256_blendv_epi8(subnormal, normal, _mm256_cmpgt_epi32(byte, shift)));
}

// One nibble of every 32-bit lane as fp32. `kBit` is the place of its lowest bit.
template <int kBit>
inline __m256 decode(__m256i words) {
  const __m256 magnitude = _mm256_permutevar8x32_ps(_mm256_load_ps(kMagnitudes),
                                                    _mm256_srli_epi32(words, kBit));  // uses 3 bits of the index
  const __m256i sign = _mm256_and_si256(_mm256_slli_epi32(words, 28 - kBit), _mm256_set1_epi32(INT32_MIN));
  return _mm256_xor_ps(magnitude, _mm256_castsi256_ps(sign));
}

// One group of a packed tile as fp32: out[k][64 rows], k = 0..31.
void decode_group(const uint8_t* weight, float* out) {
  for (int64_t block = 0; block < 4; ++block) {
    for (int64_t i = 0; i < 4; ++i) {
      const uint8_t* p = weight + block * 256 + i * 64;
      _mm_prefetch(reinterpret_cast<const char*>(p) + kPrefetchBytes, _MM_HINT_T0);
      for (int64_t half = 0; half < 2; ++half) {
        const __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + half * 32));
        float* o = out + i * 8 * kTileRows + block * 16 + half * 8;
        _mm256_store_ps(o, decode<0>(words));
        _mm256_store_ps(o + kTileRows, decode<16>(words));
        _mm256_store_ps(o + 2 * kTileRows, decode<4>(words));
        _mm256_store_ps(o + 3 * kTileRows, decode<20>(words));
        _mm256_store_ps(o + 4 * kTileRows, decode<8>(words));
        _mm256_store_ps(o + 5 * kTileRows, decode<24>(words));
        _mm256_store_ps(o + 6 * kTileRows, decode<12>(words));
        _mm256_store_ps(o + 7 * kTileRows, decode<28>(words));
      }
    }
  }
}

// One group of one row in checkpoint order: 16 bytes to w[4], k = 0..31.
inline void decode_row(const uint8_t* codes, __m256* w) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes));
  const __m128i nibble = _mm_set1_epi8(15);
  const __m128i even = _mm_and_si128(bytes, nibble);
  const __m128i odd = _mm_and_si128(_mm_srli_epi16(bytes, 4), nibble);
  const __m128i first = _mm_unpacklo_epi8(even, odd);
  const __m128i second = _mm_unpackhi_epi8(even, odd);
  w[0] = decode<0>(_mm256_cvtepu8_epi32(first));
  w[1] = decode<0>(_mm256_cvtepu8_epi32(_mm_srli_si128(first, 8)));
  w[2] = decode<0>(_mm256_cvtepu8_epi32(second));
  w[3] = decode<0>(_mm256_cvtepu8_epi32(_mm_srli_si128(second, 8)));
}

// acc[kRows][16 columns] += factor * (x[kRows][32] times w[32][16 columns]).
template <int kRows>
inline __attribute__((always_inline)) void register_tile(const float* x, int64_t x_stride, const float* w,
                                                         const float* factor, float* acc) {
  __m256 sum[kRows][2];
#pragma GCC unroll 8
  for (int m = 0; m < kRows; ++m) sum[m][0] = sum[m][1] = _mm256_setzero_ps();
  for (int64_t k = 0; k < kGroupSize; ++k) {
    const __m256 w0 = _mm256_load_ps(w + k * kTileRows);
    const __m256 w1 = _mm256_load_ps(w + k * kTileRows + 8);
#pragma GCC unroll 8
    for (int m = 0; m < kRows; ++m) {
      const __m256 value = _mm256_broadcast_ss(x + m * x_stride + k);
      sum[m][0] = _mm256_fmadd_ps(value, w0, sum[m][0]);
      sum[m][1] = _mm256_fmadd_ps(value, w1, sum[m][1]);
    }
  }
#pragma GCC unroll 8
  for (int m = 0; m < kRows; ++m) {
#pragma GCC unroll 2
    for (int b = 0; b < 2; ++b) {
      float* a = acc + m * kTileRows + b * 8;
      _mm256_storeu_ps(a, _mm256_fmadd_ps(sum[m][b], _mm256_load_ps(factor + b * 8), _mm256_loadu_ps(a)));
    }
  }
}

void columns16(const float* x, int64_t x_stride, int64_t rows, const float* w, const float* factor, float* acc) {
  switch (rows) {
    case 1: return register_tile<1>(x, x_stride, w, factor, acc);
    case 2: return register_tile<2>(x, x_stride, w, factor, acc);
    case 3: return register_tile<3>(x, x_stride, w, factor, acc);
    case 4: return register_tile<4>(x, x_stride, w, factor, acc);
    case 5: return register_tile<5>(x, x_stride, w, factor, acc);
    default: return register_tile<6>(x, x_stride, w, factor, acc);
  }
}

float horizontal_sum(__m256 v) {
  __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  s = _mm_add_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

void zero(float* values, int64_t count) {
  for (int64_t i = 0; i < count; ++i) values[i] = 0.0f;
}

}  // namespace

void tile_avx2(const float* x, int64_t x_stride, int64_t rows, const uint8_t* weight, const uint8_t* scale,
               int64_t groups, float* acc) {
  alignas(64) float decoded[kGroupSize * kTileRows];  // 8 KiB: decoded once per group for all the rows
  alignas(64) float factor[kTileRows];
  zero(acc, rows * kTileRows);
  const int64_t parts = (rows + 5) / 6;
  for (int64_t g = 0; g < groups; ++g) {
    decode_group(weight + g * kTileGroupBytes, decoded);
    for (int64_t n = 0; n < kTileRows; n += 8) {
      const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(scale + g * kTileRows + n));
      _mm256_store_ps(factor + n, scale_factors(_mm256_cvtepu8_epi32(bytes)));
    }
    for (int64_t part = 0; part < parts; ++part) {
      const int64_t begin = rows * part / parts;
      const int64_t end = rows * (part + 1) / parts;
      for (int64_t n = 0; n < kTileRows; n += 16) {
        columns16(x + begin * x_stride + g * kGroupSize, x_stride, end - begin, decoded + n, factor + n,
                  acc + begin * kTileRows + n);
      }
    }
  }
}

void checkpoint_rows_avx2(const float* x, int64_t x_stride, int64_t rows, const uint8_t* weight, const uint8_t* scale,
                          int64_t k, int64_t columns, float* acc) {
  const int64_t row_bytes = k / 2;
  const int64_t group_bytes = kGroupSize / 2;
  const int64_t groups = (row_bytes + group_bytes - 1) / group_bytes;
  const int64_t whole = row_bytes / group_bytes;
  zero(acc, rows * kTileRows);
  for (int64_t n = 0; n < columns; ++n) {
    const uint8_t* codes = weight + n * row_bytes;
    uint8_t last[group_bytes] = {};  // a short group, completed with zeros
    __builtin_memcpy(last, codes + whole * group_bytes, row_bytes % group_bytes);
    __m256 total[kStepRows];
    for (int64_t m = 0; m < rows; ++m) total[m] = _mm256_setzero_ps();
    for (int64_t g = 0; g < groups; ++g) {
      __m256 w[4];
      decode_row(g < whole ? codes + g * group_bytes : last, w);
      const __m256 factor = scale_factors(_mm256_set1_epi32(scale[n * groups + g]));
      for (int64_t m = 0; m < rows; ++m) {
        const float* row = x + m * x_stride + g * kGroupSize;
        __m256 sum = _mm256_mul_ps(_mm256_loadu_ps(row), w[0]);
        sum = _mm256_fmadd_ps(_mm256_loadu_ps(row + 8), w[1], sum);
        sum = _mm256_fmadd_ps(_mm256_loadu_ps(row + 16), w[2], sum);
        sum = _mm256_fmadd_ps(_mm256_loadu_ps(row + 24), w[3], sum);
        total[m] = _mm256_fmadd_ps(sum, factor, total[m]);
      }
    }
    for (int64_t m = 0; m < rows; ++m) acc[m * kTileRows + n] = horizontal_sum(total[m]);
  }
}

}  // namespace vllm_ext
