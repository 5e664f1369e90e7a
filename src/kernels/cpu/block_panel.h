#pragma once
// Weights and activations brought into the layouts of block_tile.h.
#include "src/kernels/cpu/block_plan.h"
#include "src/kernels/cpu/block_tile.h"

namespace espalier::kernels::ESPALIER_ISA {

/// How elements become words.
enum class Words : uint8_t { fp32, pairs, widened };

/// What the words of bf16 or fp32 arrays are on this instruction set; `even`: pairs would fit.
inline Words words_of(DType dtype, bool even) {
  if (dtype == DType::fp32) {
    return Words::fp32;
  }
  return even && pair_tiles().wide != nullptr ? Words::pairs : Words::widened;
}

/// body(count) with the usual counts as numbers known to the compiler, which then drops loops' ends.
template <class Body>
[[gnu::always_inline]] inline void with_count(int64_t count, const Body& body) {
  if (count == cpu::kWideStrip) {
    body(int64_t{cpu::kWideStrip});
  } else if (count == cpu::kThinStrip) {
    body(int64_t{cpu::kThinStrip});
  } else {
    body(count);
  }
}

/// The panel of one strip: outputs are rows of W, words run along them.
void pack_strip(const BlockMatrix& weight, const cpu::BlockPlan& plan, const cpu::BlockStrip& strip,
                Words words);
/// The same of the transposed product: outputs are columns of W, words run down them.
void pack_strip_transposed(const BlockMatrix& weight, const cpu::BlockPlan& plan,
                           const cpu::BlockStrip& strip, Words words);

/// to[c] = the word of element c of two rows, for c in [0, count). `b` may be null: zeros. Unless
/// `words` are pairs, `b` is not read.
[[gnu::always_inline]] inline void pack_words(const std::byte* a, const std::byte* b, int64_t count,
                                              Words words, uint32_t* to) {
  const auto* low = reinterpret_cast<const uint16_t*>(a);
  const auto* high = reinterpret_cast<const uint16_t*>(b);
  if (words == Words::fp32) {
    __builtin_memcpy(to, a, static_cast<size_t>(count) * sizeof(float));
  } else if (words == Words::widened) {
#pragma omp simd
    for (int64_t c = 0; c < count; ++c) {
      to[c] = static_cast<uint32_t>(low[c]) << 16;
    }
  } else if (b == nullptr) {
#pragma omp simd
    for (int64_t c = 0; c < count; ++c) {
      to[c] = low[c];
    }
  } else {
#pragma omp simd
    for (int64_t c = 0; c < count; ++c) {
      to[c] = low[c] | static_cast<uint32_t>(high[c]) << 16;
    }
  }
}

}  // namespace espalier::kernels::ESPALIER_ISA
