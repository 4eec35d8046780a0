// SPDX-License-Identifier: Apache-2.0
//
// Tile kernel for CPUs with AVX512-BF16 (Zen 4 and later, Cooper Lake, Sapphire Rapids).
//
// One 64-byte load holds 128 codes of 16 output rows. Three shifts and four vpermw table look-ups turn them into four
// bf16 vectors in the operand order of vdpbf16ps; the table holds the 16 codes twice, so the fifth index bit, which
// belongs to the next code, needs no mask. A group is summed unscaled and enters the accumulator with one fma by its
// power of two. Every register tile sums in the same order, so a row gives the same bits whatever rows it is computed
// with.
#include <immintrin.h>

#include "mxfp4.h"

namespace vllm_ext {
namespace {

// bf16 of LUT[code] * 2^kCodeShift
#define VLLM_EXT_TABLE                                                                                            \
  0x0000, 0x4A00, 0x4A80, 0x4AC0, 0x4B00, 0x4B40, 0x4B80, 0x4BC0, 0x8000, 0xCA00, 0xCA80, 0xCAC0, 0xCB00, 0xCB40, \
      0xCB80, 0xCBC0
alignas(64) constexpr uint16_t kCodeTable[32] = {VLLM_EXT_TABLE, VLLM_EXT_TABLE};
#undef VLLM_EXT_TABLE

constexpr int64_t kPrefetchBytes = 4096;
constexpr int64_t kBlockBytes = 256;  // 16 rows, one group

// 2^(byte - 127 - kCodeShift), subnormal where that is below 2^-126.
inline __m512 load_scales(const uint8_t* scale) {
  const __m512i byte = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(scale)));
  const __m512i shift = _mm512_set1_epi32(kCodeShift);
  const __mmask16 normal = _mm512_cmpgt_epi32_mask(byte, shift);
  const __m512i subnormal = _mm512_sllv_epi32(_mm512_set1_epi32(1), byte);
  return _mm512_castsi512_ps(_mm512_mask_slli_epi32(subnormal, normal, _mm512_sub_epi32(byte, shift), 23));
}

inline __m512bh broadcast_pair(const uint16_t* x) {
  int pair;
  __builtin_memcpy(&pair, x, sizeof pair);
  return (__m512bh)_mm512_set1_epi32(pair);
}

// kRows rows of x times kBlocks blocks of 16 output rows.
template <int kRows, int kBlocks>
inline __attribute__((always_inline)) void register_tile(const uint16_t* x, int64_t x_stride, const uint8_t* weight,
                                                         const uint8_t* scale, int64_t groups, float* out) {
  const __m512i table = _mm512_load_si512(kCodeTable);
  __m512 acc[kRows][kBlocks];
  for (int m = 0; m < kRows; ++m)
    for (int b = 0; b < kBlocks; ++b) acc[m][b] = _mm512_setzero_ps();

  for (int64_t g = 0; g < groups; ++g) {
    __m512 sum[kRows][kBlocks];
#pragma GCC unroll 8
    for (int m = 0; m < kRows; ++m)
#pragma GCC unroll 4
      for (int b = 0; b < kBlocks; ++b) sum[m][b] = _mm512_setzero_ps();
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      __m512i codes[kBlocks];
#pragma GCC unroll 4
      for (int b = 0; b < kBlocks; ++b) {
        const uint8_t* p = weight + g * kTileGroupBytes + b * kBlockBytes + i * 64;
        codes[b] = _mm512_loadu_si512(p);
        _mm_prefetch(reinterpret_cast<const char*>(p) + kPrefetchBytes, _MM_HINT_T0);
      }
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) {
        __m512bh w[kBlocks];
#pragma GCC unroll 4
        for (int b = 0; b < kBlocks; ++b) {
          const __m512i index = j == 0 ? codes[b] : _mm512_srli_epi16(codes[b], 4 * j);
          w[b] = (__m512bh)_mm512_permutexvar_epi16(index, table);
        }
#pragma GCC unroll 8
        for (int m = 0; m < kRows; ++m) {
          const __m512bh pair = broadcast_pair(x + m * x_stride + g * kGroupSize + 2 * (4 * i + j));
#pragma GCC unroll 4
          for (int b = 0; b < kBlocks; ++b) sum[m][b] = _mm512_dpbf16_ps(sum[m][b], w[b], pair);
        }
      }
    }
#pragma GCC unroll 4
    for (int b = 0; b < kBlocks; ++b) {
      const __m512 factor = load_scales(scale + g * kTileRows + b * 16);
#pragma GCC unroll 8
      for (int m = 0; m < kRows; ++m) acc[m][b] = _mm512_fmadd_ps(sum[m][b], factor, acc[m][b]);
    }
  }
  for (int m = 0; m < kRows; ++m)
    for (int b = 0; b < kBlocks; ++b) _mm512_storeu_ps(out + m * kTileRows + b * 16, acc[m][b]);
}

// Two of the four 16-row blocks for 3 to 6 rows: 24 accumulators, the rest of the 32 registers for operands.
void half_tile(const uint16_t* x, int64_t x_stride, int64_t rows, const uint8_t* weight, const uint8_t* scale,
               int64_t groups, float* out) {
  switch (rows) {
    case 3: return register_tile<3, 2>(x, x_stride, weight, scale, groups, out);
    case 4: return register_tile<4, 2>(x, x_stride, weight, scale, groups, out);
    case 5: return register_tile<5, 2>(x, x_stride, weight, scale, groups, out);
    default: return register_tile<6, 2>(x, x_stride, weight, scale, groups, out);
  }
}

}  // namespace

void tile_avx512bf16(const uint16_t* x, int64_t x_stride, int64_t rows, const uint8_t* weight, const uint8_t* scale,
                     int64_t groups, float* acc) {
  switch (rows) {  // few rows: memory bound, so read the weights once and in order
    case 1: return register_tile<1, 4>(x, x_stride, weight, scale, groups, acc);
    case 2: return register_tile<2, 4>(x, x_stride, weight, scale, groups, acc);
    case 3: return register_tile<3, 4>(x, x_stride, weight, scale, groups, acc);
    default: break;
  }
  const int64_t parts = (rows + 5) / 6;  // of nearly equal size: 7 rows are 4 + 3, not 6 + 1
  for (int64_t half = 0; half < 2; ++half) {
    for (int64_t part = 0; part < parts; ++part) {
      const int64_t begin = rows * part / parts;
      const int64_t end = rows * (part + 1) / parts;
      half_tile(x + begin * x_stride, x_stride, end - begin, weight + half * 2 * kBlockBytes, scale + half * 32, groups,
                acc + begin * kTileRows + half * 32);
    }
  }
}

}  // namespace vllm_ext
