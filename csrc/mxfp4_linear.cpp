// SPDX-License-Identifier: Apache-2.0
//
// How one multiplication is cut into units and which kernel computes them. A unit is one block of rows times up to 64
// output columns; units of one row block are neighbours, so that a thread converts its activations once and keeps them
// in cache.
#include <immintrin.h>

#include <algorithm>
#include <memory>

#include "mxfp4.h"

namespace vllm_ext {
namespace {

constexpr int64_t kBlockBytes = 1 << 20;  // activations per row block: about one core's L2
constexpr int64_t kMaxBlockRows = 252;
constexpr int64_t kTileKernelRows = 6;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// torch.set_flush_denormal sets flush-to-zero per thread; the smallest scales are subnormal, so it must not act here.
class KeepSubnormals {
 public:
  KeepSubnormals() : saved_(_mm_getcsr()) {
    _mm_setcsr(saved_ & ~(_MM_FLUSH_ZERO_MASK | 0x0040u /* denormals are zero */));
  }
  ~KeepSubnormals() { _mm_setcsr(saved_); }
  KeepSubnormals(const KeepSubnormals&) = delete;
  KeepSubnormals& operator=(const KeepSubnormals&) = delete;

 private:
  unsigned saved_;
};

template <typename T>
struct Rows {
  const T* data;
  int64_t stride;
};

// The activations of one row block in the form a kernel wants, converted when first asked for.
class RowBlock {
 public:
  RowBlock(const LinearArgs& args, int64_t capacity) : args_(args), capacity_(capacity) {}

  void set(int64_t begin, int64_t end) {
    if (begin == begin_) return;
    begin_ = begin;
    end_ = end;
    planes_ready_ = wide_ready_ = false;
  }

  // bf16 rows; `planes` of them for each row of x.
  Rows<uint16_t> planes(int planes) {
    if (planes == 1) return {static_cast<const uint16_t*>(args_.x) + begin_ * args_.x_stride, args_.x_stride};
    if (!planes_ready_) {
      if (!plane_buffer_) plane_buffer_.reset(new uint16_t[capacity_ * planes * args_.k]);
      for (int64_t m = begin_; m < end_; ++m)
        split_row_avx2(args_, m, plane_buffer_.get() + (m - begin_) * planes * args_.k);
      planes_ready_ = true;
    }
    return {plane_buffer_.get(), args_.k};
  }

  // fp32 rows, zero-padded to whole groups.
  Rows<float> wide() {
    const int64_t padded = group_count(args_.k) * kGroupSize;
    if (args_.x_dtype == Dtype::kFloat && padded == args_.k) {
      return {static_cast<const float*>(args_.x) + begin_ * args_.x_stride, args_.x_stride};
    }
    // one cache line more than a row: rows 2^n bytes apart would all fall into the same few sets of L1
    const int64_t stride = padded + 16;
    if (!wide_ready_) {
      if (!wide_buffer_) wide_buffer_.reset(new float[capacity_ * stride]);
      for (int64_t m = begin_; m < end_; ++m)
        widen_row_avx2(args_, m, padded, wide_buffer_.get() + (m - begin_) * stride);
      wide_ready_ = true;
    }
    return {wide_buffer_.get(), stride};
  }

 private:
  const LinearArgs& args_;
  int64_t capacity_;
  int64_t begin_ = -1, end_ = -1;
  bool planes_ready_ = false, wide_ready_ = false;
  std::unique_ptr<uint16_t[]> plane_buffer_;
  std::unique_ptr<float[]> wide_buffer_;
};

bool use_bf16(const LinearArgs& args, CpuPath path) {
  return path == CpuPath::kAvx512Bf16 && args.x_dtype != Dtype::kFloat;
}

}  // namespace

Plan make_plan(const LinearArgs& args, CpuPath path, int64_t threads) {
  const int64_t column_units = ceil_div(args.n, kTileRows);
  const int64_t row_bytes =
      std::max<int64_t>(args.k, 1) * (use_bf16(args, path) && args.x_dtype == Dtype::kBFloat16 ? 2 : 4);
  int64_t block_rows = std::clamp(kBlockBytes / row_bytes, kStepRows, kMaxBlockRows);
  if (column_units < threads) block_rows = std::min(block_rows, ceil_div(args.rows, ceil_div(threads, column_units)));
  block_rows = ceil_div(block_rows, kTileKernelRows) * kTileKernelRows;
  return {path, column_units, block_rows, column_units * ceil_div(args.rows, block_rows)};
}

void run_units(const LinearArgs& args, const Plan& plan, int64_t begin, int64_t end) {
  const KeepSubnormals keep_subnormals;
  const int64_t groups = group_count(args.k);
  const int64_t packed = packed_rows(args.n, args.k);
  const bool bf16 = use_bf16(args, plan.path);
  alignas(64) float acc[kStepRows * kTileRows];
  RowBlock x(args, std::min(plan.block_rows, args.rows));

  for (int64_t unit = begin; unit < end; ++unit) {
    const int64_t m0 = unit / plan.column_units * plan.block_rows;
    const int64_t m1 = std::min(m0 + plan.block_rows, args.rows);
    const int64_t n0 = unit % plan.column_units * kTileRows;
    const int64_t columns = std::min(kTileRows, args.n - n0);
    const uint8_t* weight = args.weight + n0 * (args.k / 2);
    const uint8_t* scale = args.scale + n0 * groups;
    const bool tiled = n0 < packed;
    const int planes = tiled && bf16 && args.x_dtype == Dtype::kHalf ? 2 : 1;
    x.set(m0, m1);
    for (int64_t m = m0; m < m1; m += kStepRows / planes) {
      const int64_t last = std::min(m + kStepRows / planes, m1);
      const int64_t rows = (last - m) * planes;
      if (tiled && bf16) {
        const Rows<uint16_t> r = x.planes(planes);
        tile_avx512bf16(r.data + (m - m0) * planes * r.stride, r.stride, rows, weight, scale, groups, acc);
      } else {
        const Rows<float> r = x.wide();
        const float* data = r.data + (m - m0) * r.stride;
        if (tiled) {
          tile_avx2(data, r.stride, rows, weight, scale, groups, acc);
        } else {
          checkpoint_rows_avx2(data, r.stride, rows, weight, scale, args.k, columns, acc);
        }
      }
      store_rows_avx2(args, acc, planes, m, last, n0, columns);
    }
  }
}

}  // namespace vllm_ext
