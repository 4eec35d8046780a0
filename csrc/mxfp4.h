// SPDX-License-Identifier: Apache-2.0
//
// Internal interface of the MXFP4 (W4A16) CPU kernels. Nothing here depends on torch.
//
// Numbers. A weight is LUT[code] * 2^(byte - 127) (OCP MX: e2m1 codes, one e8m0 byte for 32 values along K).
// The kernels hold codes multiplied by 2^kCodeShift and fold the inverse into the scale: with 22, every product and sum
// of normal bf16 activations is a normal fp32 number (vdpbf16ps flushes subnormals whatever MXCSR says), and the
// smallest scale, 2^(0 - 127 - 22) = 2^-149, is still a float. Sums that overflow because of it are recomputed in
// double (exact_element).
//
// Layout. A full tile of 64 rows is permuted inside its own bytes; see mxfp4_layout.cpp.
//
// The *_avx2.cpp and *_avx512bf16.cpp files are compiled with instruction set flags of their own, so this header must
// not hold inline functions with linkage: the linker could pick the AVX-512 copy of one for code every machine runs.
#pragma once

#include <cstdint>

namespace vllm_ext {

constexpr int64_t kGroupSize = 32;                               // k per scale byte
constexpr int64_t kTileRows = 64;                                // output rows per tile
constexpr int64_t kTileGroupBytes = kTileRows * kGroupSize / 2;  // one tile, one group
constexpr int64_t kStepRows = 48;                                // most rows per kernel call: acc then stays in L1
constexpr int kCodeShift = 22;

enum class Dtype { kBFloat16, kHalf, kFloat };

// One multiplication out[m, n] = sum_k x[m, k] * w[n, k] + bias[n]; out is contiguous and has the dtype of x.
struct LinearArgs {
  const void* x;
  Dtype x_dtype;
  int64_t x_stride;  // elements from one row of x to the next
  int64_t rows, n, k;
  const uint8_t* weight;  // [n, k / 2], packed
  const uint8_t* scale;   // [n, groups], packed
  const void* bias;       // [n] or null
  Dtype bias_dtype;
  void* out;
};

// --- mxfp4_layout.cpp: any CPU ---
int64_t group_count(int64_t k);             // groups along K, the last one may be short
int64_t packed_rows(int64_t n, int64_t k);  // leading rows that are in tile order; the rest is in checkpoint order
// Permute tiles [begin, end) in place, from checkpoint order to tile order or back.
void pack_tiles(uint8_t* weight, uint8_t* scale, int64_t k, int64_t begin, int64_t end);
void unpack_tiles(uint8_t* weight, uint8_t* scale, int64_t k, int64_t begin, int64_t end);
// sum_k x[m, k] * w[n, k] in double, without bias: the slow road for results that overflow fp32 on the way.
double exact_element(const LinearArgs& args, int64_t m, int64_t n);
bool row_has_nan(const LinearArgs& args, int64_t m);

// --- mxfp4_linear.cpp: any CPU; splits the work and calls the kernels below ---
enum class CpuPath { kNone, kAvx2, kAvx512Bf16 };
struct Plan {
  CpuPath path;
  int64_t column_units;  // units of up to 64 output columns
  int64_t block_rows;    // rows of x per block
  int64_t units;         // column_units * number of blocks
};
Plan make_plan(const LinearArgs& args, CpuPath path, int64_t threads);
// Compute units [begin, end). The result of an element depends on neither the plan nor the other rows of x.
void run_units(const LinearArgs& args, const Plan& plan, int64_t begin, int64_t end);

// --- tile kernels: acc[r][0..63] (fp32, row stride 64) = 1..kStepRows rows of x times one packed tile ---
void tile_avx512bf16(const uint16_t* x, int64_t x_stride, int64_t rows, const uint8_t* weight, const uint8_t* scale,
                     int64_t groups, float* acc);
void tile_avx2(const float* x, int64_t x_stride, int64_t rows, const uint8_t* weight, const uint8_t* scale,
               int64_t groups, float* acc);
// The same for `columns` <= 64 output columns in checkpoint order; x is zero from k to groups * 32.
void checkpoint_rows_avx2(const float* x, int64_t x_stride, int64_t rows, const uint8_t* weight, const uint8_t* scale,
                          int64_t k, int64_t columns, float* acc);

// --- mxfp4_convert_avx2.cpp: activations in, results out ---
// Row m of x as fp32, zero-padded to `padded` elements.
void widen_row_avx2(const LinearArgs& args, int64_t m, int64_t padded, float* out);
// Row m of an fp16 x as two bf16 rows, hi at out and lo at out + k, whose sum is x exactly. k is a multiple of 32.
void split_row_avx2(const LinearArgs& args, int64_t m, uint16_t* out);
// Sum the planes (1 or 2 consecutive acc rows per row of x), add the bias, round, and write `columns` values from n0
// on of rows m0..m1 of out.
void store_rows_avx2(const LinearArgs& args, const float* acc, int planes, int64_t m0, int64_t m1, int64_t n0,
                     int64_t columns);

}  // namespace vllm_ext
