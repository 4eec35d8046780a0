// SPDX-License-Identifier: Apache-2.0
//
// Tile layout of a packed MXFP4 matrix, and the exact element by element product that reads it.
//
// Checkpoint order: weight [n][k / 2], low nibble = even k; scale [n][groups].
// Tile order, per 64 rows and inside the same bytes: [group][16-row block][vector i of 4][16 rows][4 bytes]. The 32-bit
// word of a row holds 8 consecutive k: its low half the four even ones, its high half the four odd ones, so `word >> 4
// * j` leaves the pair (k, k + 1) in the low bits of both halves, the operand order of vdpbf16ps. Scales of a tile:
// [group][64 rows].
#include <cmath>
#include <cstring>
#include <memory>

#include "mxfp4.h"

namespace vllm_ext {
namespace {

constexpr int64_t kWordsPerGroup = kGroupSize / 8;  // 32-bit words of one row and group

// Bytes to tile order: gather the even nibbles of a word in its low half and the odd ones in its high half.
uint32_t gather_nibbles(uint32_t word) {
  uint32_t even = word & 0x0F0F0F0Fu;
  uint32_t odd = (word >> 4) & 0x0F0F0F0Fu;
  even = (even | even >> 4) & 0x00FF00FFu;
  odd = (odd | odd >> 4) & 0x00FF00FFu;
  even = (even | even >> 8) & 0x0000FFFFu;
  odd = (odd | odd >> 8) & 0x0000FFFFu;
  return even | odd << 16;
}

uint32_t scatter_nibbles(uint32_t word) {
  uint32_t even = word & 0x0000FFFFu;
  uint32_t odd = word >> 16;
  even = (even | even << 8) & 0x00FF00FFu;
  odd = (odd | odd << 8) & 0x00FF00FFu;
  even = (even | even << 4) & 0x0F0F0F0Fu;
  odd = (odd | odd << 4) & 0x0F0F0F0Fu;
  return even | odd << 4;
}

uint32_t load_word(const uint8_t* p) {
  uint32_t word;
  std::memcpy(&word, p, sizeof word);
  return word;
}

// Offset of the word of (row of the tile, word along K) in tile order.
int64_t tile_word_offset(int64_t row, int64_t word) {
  const int64_t group = word / kWordsPerGroup;
  const int64_t vector = word % kWordsPerGroup;
  return group * kTileGroupBytes + row / 16 * 256 + vector * 64 + row % 16 * 4;
}

template <bool kPack>
void permute_tiles(uint8_t* weight, uint8_t* scale, int64_t k, int64_t begin, int64_t end) {
  const int64_t row_bytes = k / 2;
  const int64_t groups = k / kGroupSize;
  const int64_t tile_bytes = kTileRows * row_bytes;
  const int64_t scale_bytes = kTileRows * groups;
  const std::unique_ptr<uint8_t[]> scratch(new uint8_t[tile_bytes]);
  for (int64_t tile = begin; tile < end; ++tile) {
    uint8_t* w = weight + tile * tile_bytes;
    std::memcpy(scratch.get(), w, tile_bytes);
    for (int64_t row = 0; row < kTileRows; ++row) {
      for (int64_t word = 0; word < row_bytes / 4; ++word) {
        const int64_t plain = row * row_bytes + word * 4;
        const int64_t tiled = tile_word_offset(row, word);
        const uint32_t moved = kPack ? gather_nibbles(load_word(scratch.get() + plain))
                                     : scatter_nibbles(load_word(scratch.get() + tiled));
        std::memcpy(w + (kPack ? tiled : plain), &moved, sizeof moved);
      }
    }
    uint8_t* s = scale + tile * scale_bytes;
    std::memcpy(scratch.get(), s, scale_bytes);  // scales need less room than weights
    for (int64_t row = 0; row < kTileRows; ++row) {
      for (int64_t group = 0; group < groups; ++group) {
        const int64_t plain = row * groups + group;
        const int64_t tiled = group * kTileRows + row;
        s[kPack ? tiled : plain] = scratch[kPack ? plain : tiled];
      }
    }
  }
}

double x_value(const LinearArgs& args, int64_t m, int64_t k) {
  const int64_t index = m * args.x_stride + k;
  if (args.x_dtype == Dtype::kFloat) return static_cast<const float*>(args.x)[index];
  const uint32_t bits = static_cast<const uint16_t*>(args.x)[index];
  if (args.x_dtype == Dtype::kBFloat16) {
    const uint32_t wide = bits << 16;
    float value;
    std::memcpy(&value, &wide, sizeof value);
    return value;
  }
  const int exponent = bits >> 10 & 31;
  const int mantissa = bits & 1023;
  double value;
  if (exponent == 31) {
    value = mantissa ? NAN : INFINITY;
  } else {
    value = exponent ? std::ldexp(1024 + mantissa, exponent - 25) : std::ldexp(mantissa, -24);
  }
  return bits & 0x8000 ? -value : value;
}

constexpr double kCodeValues[16] = {0.0,  0.5,  1.0,  1.5,  2.0,  3.0,  4.0,  6.0,
                                    -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0};

}  // namespace

int64_t group_count(int64_t k) { return (k + kGroupSize - 1) / kGroupSize; }

int64_t packed_rows(int64_t n, int64_t k) { return k % kGroupSize == 0 ? n / kTileRows * kTileRows : 0; }

void pack_tiles(uint8_t* weight, uint8_t* scale, int64_t k, int64_t begin, int64_t end) {
  permute_tiles<true>(weight, scale, k, begin, end);
}

void unpack_tiles(uint8_t* weight, uint8_t* scale, int64_t k, int64_t begin, int64_t end) {
  permute_tiles<false>(weight, scale, k, begin, end);
}

double exact_element(const LinearArgs& args, int64_t m, int64_t n) {
  const int64_t groups = group_count(args.k);
  const bool tiled = n < packed_rows(args.n, args.k);
  const int64_t tile = n / kTileRows, row = n % kTileRows;
  const uint8_t* w = args.weight + (tiled ? tile * kTileRows : n) * (args.k / 2);
  const uint8_t* s = args.scale + (tiled ? tile * kTileRows : n) * groups;
  double total = 0.0;
  for (int64_t group = 0; group < groups; ++group) {
    const int64_t first = group * kGroupSize;
    const int64_t last = first + kGroupSize < args.k ? first + kGroupSize : args.k;
    double sum = 0.0;
    for (int64_t k = first; k < last; ++k) {
      int code;
      if (tiled) {
        code = load_word(w + tile_word_offset(row, k / 8)) >> (k % 8 / 2 * 4 + k % 2 * 16) & 15;
      } else {
        code = w[k / 2] >> (k % 2 * 4) & 15;
      }
      sum += x_value(args, m, k) * kCodeValues[code];
    }
    const int byte = tiled ? s[group * kTileRows + row] : s[group];
    total += std::ldexp(sum, byte - 127);
  }
  return total;
}

bool row_has_nan(const LinearArgs& args, int64_t m) {
  for (int64_t k = 0; k < args.k; ++k) {
    if (std::isnan(x_value(args, m, k))) return true;
  }
  return false;
}

}  // namespace vllm_ext
