// SPDX-License-Identifier: Apache-2.0
//
// The operators torch sees, in the namespace vllm_ext. Only torch's stable ABI (torch >= 2.10) is used, so that one
// library serves every torch release: include nothing but torch/csrc/stable and torch/headeronly here.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <atomic>
#include <cstring>
#include <optional>
#include <vector>

#include "mxfp4.h"

namespace vllm_ext {
namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

CpuPath detect_path() {
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  if (!avx2) return CpuPath::kNone;
  const bool bf16 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                    __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
                    __builtin_cpu_supports("avx512bf16");
  return bf16 ? CpuPath::kAvx512Bf16 : CpuPath::kAvx2;
}

std::atomic<CpuPath> current_path{detect_path()};

const char* path_name(CpuPath path) {
  switch (path) {
    case CpuPath::kAvx512Bf16: return "avx512_bf16";
    case CpuPath::kAvx2: return "avx2";
    default: return "none";
  }
}

Dtype activation_dtype(const Tensor& t, const char* name) {
  switch (t.scalar_type()) {
    case ScalarType::BFloat16: return Dtype::kBFloat16;
    case ScalarType::Half: return Dtype::kHalf;
    case ScalarType::Float: return Dtype::kFloat;
    default: break;
  }
  STD_TORCH_CHECK(false, "mxfp4: ", name, " has dtype ", torch::headeronly::toString(t.scalar_type()),
                  ", but must be bfloat16, float16 or float32: convert it first");
}

void check_weights(const Tensor& weight, const Tensor& scale) {
  for (const auto& [tensor, name] : {std::pair{&weight, "weight"}, std::pair{&scale, "scale"}}) {
    STD_TORCH_CHECK(tensor->is_cpu(), "mxfp4: ", name, " must be on the CPU: move it there, or use the GPU kernels");
    STD_TORCH_CHECK(tensor->scalar_type() == ScalarType::Byte, "mxfp4: ", name, " has dtype ",
                    torch::headeronly::toString(tensor->scalar_type()), ", but must be uint8 as in the checkpoint");
    STD_TORCH_CHECK(tensor->dim() == 2, "mxfp4: ", name, " has ", tensor->dim(), " dimensions, but must have 2");
    STD_TORCH_CHECK(tensor->is_contiguous(), "mxfp4: ", name, " must be contiguous: call .contiguous() before packing");
  }
  const int64_t k = weight.size(1) * 2;
  STD_TORCH_CHECK(scale.size(0) == weight.size(0) && scale.size(1) == group_count(k), "mxfp4: scale has shape [",
                  scale.size(0), ", ", scale.size(1), "], but a weight of shape [", weight.size(0), ", ",
                  weight.size(1), "] needs [", weight.size(0), ", ", group_count(k),
                  "]: one byte for 32 values, two values per weight byte");
}

using Permute = void (*)(uint8_t*, uint8_t*, int64_t, int64_t, int64_t);

void permute(const Tensor& weight, const Tensor& scale, Permute tiles) {
  check_weights(weight, scale);
  const int64_t k = weight.size(1) * 2;
  uint8_t* w = static_cast<uint8_t*>(weight.mutable_data_ptr());
  uint8_t* s = static_cast<uint8_t*>(scale.mutable_data_ptr());
  torch::stable::parallel_for(0, packed_rows(weight.size(0), k) / kTileRows, 1,
                              [&](int64_t begin, int64_t end) { tiles(w, s, k, begin, end); });
}

void mxfp4_pack(Tensor weight, Tensor scale) { permute(weight, scale, pack_tiles); }

void mxfp4_unpack(Tensor weight, Tensor scale) { permute(weight, scale, unpack_tiles); }

Tensor mxfp4_linear(Tensor x, Tensor weight, Tensor scale, std::optional<Tensor> bias) {
  check_weights(weight, scale);
  LinearArgs args{};
  args.n = weight.size(0);
  args.k = weight.size(1) * 2;
  STD_TORCH_CHECK(x.is_cpu(), "mxfp4: x must be on the CPU like the weight: move it there");
  args.x_dtype = activation_dtype(x, "x");
  STD_TORCH_CHECK(x.dim() >= 1 && x.size(-1) == args.k, "mxfp4: the last dimension of x is ", x.dim() ? x.size(-1) : 0,
                  ", but the weight was made for ", args.k, ": check the layer's input size");
  const CpuPath path = current_path.load(std::memory_order_relaxed);
  STD_TORCH_CHECK(path != CpuPath::kNone, "mxfp4: this CPU lacks AVX2, FMA or F16C: use the dequantized fallback");

  const bool padded_rows = x.dim() == 2 && x.stride(1) == 1;
  if (!padded_rows && !x.is_contiguous()) x = torch::stable::contiguous(x);
  args.x = x.const_data_ptr();
  args.x_stride = padded_rows ? x.stride(0) : args.k;

  if (bias) {
    STD_TORCH_CHECK(bias->is_cpu() && bias->dim() == 1 && bias->size(0) == args.n,
                    "mxfp4: bias must be a CPU tensor of shape [", args.n, "], one value per output");
    args.bias_dtype = activation_dtype(*bias, "bias");
    if (!bias->is_contiguous()) bias = torch::stable::contiguous(*bias);
    args.bias = bias->const_data_ptr();
  }

  std::vector<int64_t> shape(x.sizes().begin(), x.sizes().end());
  shape.back() = args.n;
  args.rows = 1;
  for (size_t i = 0; i + 1 < shape.size(); ++i) args.rows *= shape[i];
  Tensor out = torch::stable::new_empty(x, shape);
  if (args.rows == 0 || args.n == 0) return out;
  args.weight = static_cast<const uint8_t*>(weight.const_data_ptr());
  args.scale = static_cast<const uint8_t*>(scale.const_data_ptr());
  args.out = out.mutable_data_ptr();

  const Plan plan = make_plan(args, path, torch::stable::get_num_threads());
  torch::stable::parallel_for(0, plan.units, 1, [&](int64_t begin, int64_t end) { run_units(args, plan, begin, end); });
  return out;
}

}  // namespace
}  // namespace vllm_ext

STABLE_TORCH_LIBRARY(vllm_ext, m) {
  m.def("mxfp4_pack(Tensor(a!) weight, Tensor(b!) scale) -> ()");
  m.def("mxfp4_unpack(Tensor(a!) weight, Tensor(b!) scale) -> ()");
  m.def("mxfp4_linear(Tensor x, Tensor weight, Tensor scale, Tensor? bias=None) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(vllm_ext, CPU, m) {
  m.impl("mxfp4_pack", TORCH_BOX(&vllm_ext::mxfp4_pack));
  m.impl("mxfp4_unpack", TORCH_BOX(&vllm_ext::mxfp4_unpack));
  m.impl("mxfp4_linear", TORCH_BOX(&vllm_ext::mxfp4_linear));
}

#ifndef VLLM_EXT_BUILD_ID
#error "define VLLM_EXT_BUILD_ID: build with vllm_ext/native/build.py"
#endif

// For the loader (which path?) and the tests (force the other one), through ctypes.
extern "C" {

__attribute__((visibility("default"))) const char* vllm_ext_cpu_path() {
  return vllm_ext::path_name(vllm_ext::current_path.load());
}

// What the library was built from. The loader looks for the text in the file, without loading it.
__attribute__((visibility("default"))) const char* vllm_ext_build_id() { return "vllm_ext build " VLLM_EXT_BUILD_ID; }

// Returns 1 when `name` is now in use, 0 when this CPU cannot or the name is unknown.
__attribute__((visibility("default"))) int vllm_ext_set_cpu_path(const char* name) {
  using vllm_ext::CpuPath;
  const CpuPath best = vllm_ext::detect_path();
  for (const CpuPath path : {CpuPath::kAvx2, CpuPath::kAvx512Bf16}) {
    if (std::strcmp(name, vllm_ext::path_name(path)) == 0 && path <= best) {
      vllm_ext::current_path.store(path);
      return 1;
    }
  }
  return 0;
}
}
