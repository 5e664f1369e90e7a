#include "tests/simt/tensor_core.h"

#include <fmt/format.h>

#include <cmath>
#include <cstring>

namespace espalier::simt {
namespace {

template <class Half>
float low_half(uint32_t pair) {
  return to_float(Half{static_cast<uint16_t>(pair)});
}
template <class Half>
float high_half(uint32_t pair) {
  return low_half<Half>(pair >> 16);
}

template <class Half>
uint32_t bits_of(float x) {
  return std::isnan(x) ? 0x7fffU : from_float<Half>(x).bits;
}

}  // namespace

template <class Half>
uint32_t pack_halves(float low, float high) {
  return bits_of<Half>(low) | bits_of<Half>(high) << 16;
}
template uint32_t pack_halves<bf16>(float low, float high);
template uint32_t pack_halves<fp16>(float low, float high);

template <class Half>
std::string multiply_add(void* const (&lanes)[32]) {
  float a[16][16];
  float b[16][8];
  float c[16][8];
  for (int lane = 0; lane < 32; ++lane) {
    const auto& mine = *static_cast<const LaneProduct*>(lanes[lane]);
    const int g = lane / 4;
    const int t = lane % 4;
    for (int i = 0; i < 4; ++i) {
      const int column = 2 * t + i / 2 * 8;
      a[g + i % 2 * 8][column] = low_half<Half>(mine.a[i]);
      a[g + i % 2 * 8][column + 1] = high_half<Half>(mine.a[i]);
      c[g + i / 2 * 8][2 * t + i % 2] = mine.c[i];
    }
    for (int i = 0; i < 2; ++i) {
      b[2 * t + 8 * i][g] = low_half<Half>(mine.b[i]);
      b[2 * t + 8 * i + 1][g] = high_half<Half>(mine.b[i]);
    }
  }
  for (int m = 0; m < 16; ++m) {
    for (int k = 0; k < 16; ++k) {
      for (int n = 0; n < 8; ++n) {
        c[m][n] += a[m][k] * b[k][n];
      }
    }
  }
  for (int lane = 0; lane < 32; ++lane) {
    const auto& mine = *static_cast<const LaneProduct*>(lanes[lane]);
    for (int i = 0; i < 4; ++i) {
      mine.c[i] = c[lane / 4 + i / 2 * 8][2 * (lane % 4) + i % 2];
    }
  }
  return {};
}
template std::string multiply_add<bf16>(void* const (&lanes)[32]);
template std::string multiply_add<fp16>(void* const (&lanes)[32]);

template <int kCount, bool kTransposed>
std::string load_matrices(void* const (&lanes)[32]) {
  uint16_t matrices[kCount][8][8];
  for (int lane = 0; lane < 8 * kCount; ++lane) {
    const void* const row = static_cast<const LaneMatrices*>(lanes[lane])->row;
    if (reinterpret_cast<uintptr_t>(row) % 16 != 0) {
      return fmt::format("loads matrices where lane {} names a row that is not at 16 bytes", lane);
    }
    std::memcpy(matrices[lane / 8][lane % 8], row, 16);
  }
  for (int lane = 0; lane < 32; ++lane) {
    const int g = lane / 4;
    const int t = lane % 4;
    for (int i = 0; i < kCount; ++i) {
      const auto& matrix = matrices[i];
      const uint32_t low = kTransposed ? matrix[2 * t][g] : matrix[g][2 * t];
      const uint32_t high = kTransposed ? matrix[2 * t + 1][g] : matrix[g][2 * t + 1];
      static_cast<const LaneMatrices*>(lanes[lane])->r[i] = low | high << 16;
    }
  }
  return {};
}
template std::string load_matrices<2, false>(void* const (&lanes)[32]);
template std::string load_matrices<4, false>(void* const (&lanes)[32]);
template std::string load_matrices<2, true>(void* const (&lanes)[32]);
template std::string load_matrices<4, true>(void* const (&lanes)[32]);

}  // namespace espalier::simt
