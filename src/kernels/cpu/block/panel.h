#pragma once
// Packs weights and activations into the layouts of tile.h.
#include "src/kernels/cpu/block/plan.h"
#include "src/kernels/cpu/block/tile.h"

namespace espalier::kernels::ESPALIER_ISA {

/// Conversion of elements to words.
enum class Words : uint8_t { fp32, pairs, widened_bf16, widened_fp16 };
[[gnu::always_inline]] inline int64_t elements_a_word(Words words) {
  return words == Words::pairs ? 2 : 1;
}
[[gnu::always_inline]] inline bool is_widened(Words words) {
  return words == Words::widened_bf16 || words == Words::widened_fp16;
}
/// Calls body(constant<words>); for functions that are compiled once for each kind of words.
template <Words kWords>
struct WordsConstant {
  static constexpr Words value = kWords;
};
template <class Body>
[[gnu::always_inline]] inline void with_words(Words words, const Body& body) {
  switch (words) {
    case Words::fp32:
      return body(WordsConstant<Words::fp32>{});
    case Words::pairs:
      return body(WordsConstant<Words::pairs>{});
    case Words::widened_bf16:
      return body(WordsConstant<Words::widened_bf16>{});
    case Words::widened_fp16:
      return body(WordsConstant<Words::widened_fp16>{});
  }
}

/// The kind of words for arrays of this type on this instruction set; `even`: the extents allow
/// pairs.
inline Words words_of(DType dtype, bool even) {
  if (dtype == DType::fp32) {
    return Words::fp32;
  }
  if (dtype == DType::fp16) {
    return Words::widened_fp16;
  }
  return even && pair_tiles().wide != nullptr ? Words::pairs : Words::widened_bf16;
}

/// Columns [column, column + columns) of rows [first, first + n) of x; rows beyond x are skipped.
struct Region {
  const Tensor& x;
  int64_t first = 0, n = 0;
  int64_t column = 0, columns = 0;
};

/// Prefetches a region in parts, between tiles, so that it is in L2 when it is used.
class Prefetcher {
 public:
  [[gnu::always_inline]] Prefetcher() = default;
  /// `parts` calls of `next` cover the region.
  [[gnu::always_inline]] Prefetcher(const Region& region, int64_t parts) {
    const auto& [x, first, n, column, columns] = region;
    const int64_t bytes = x.dtype == DType::fp32 ? 4 : 2;
    const int64_t rows = first + n < x.rows() ? n : x.rows() - first;
    lines_ = (columns * bytes + kLine - 1) / kLine;
    left_ = rows < 0 ? 0 : rows * lines_;
    each_ = parts == 0 ? 0 : (left_ + parts - 1) / parts;
    row_ = static_cast<const std::byte*>(x.data) + (first * x.stride + column) * bytes;
    stride_ = x.stride * bytes;
  }
  [[gnu::always_inline]] void next() {
    const int64_t n = each_ < left_ ? each_ : left_;
    left_ -= n;
    for (int64_t i = 0; i < n; ++i) {
      __builtin_prefetch(row_ + at_ * kLine, 0, 2);
      if (++at_ == lines_) {
        at_ = 0;
        row_ += stride_;
      }
    }
  }

 private:
  static constexpr int64_t kLine = 64;
  const std::byte* row_ = nullptr;
  int64_t stride_ = 0;
  int64_t lines_ = 0, at_ = 0;  ///< cache lines of a row
  int64_t left_ = 0, each_ = 0;
};

/// Calls body(count) with the usual counts as compile-time constants, so that the compiler drops
/// loop tails.
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

/// Packs the panel of one strip: outputs are rows of W, words run along them.
void pack_strip(const BlockMatrix& weight, const cpu::BlockPlan& plan, const cpu::BlockStrip& strip,
                Words words);
/// Packs the panel for the transposed product: outputs are columns of W, words run down them.
void pack_strip_transposed(const BlockMatrix& weight, const cpu::BlockPlan& plan,
                           const cpu::BlockStrip& strip, Words words);

/// to[c] = the word of element c of two rows, for c in [0, count). The second row is read only if
/// words are pairs.
template <Words kWords>
[[gnu::always_inline]] inline void pack_words(const std::byte* first, const std::byte* second,
                                              int64_t count, uint32_t* to) {
  const auto* low = reinterpret_cast<const uint16_t*>(first);
  const auto* high = reinterpret_cast<const uint16_t*>(second);
  if constexpr (kWords == Words::fp32) {
    __builtin_memcpy(to, first, static_cast<size_t>(count) * sizeof(float));
  } else if constexpr (kWords == Words::widened_bf16) {
#pragma omp simd
    for (int64_t c = 0; c < count; ++c) {
      to[c] = static_cast<uint32_t>(low[c]) << 16;
    }
  } else if constexpr (kWords == Words::widened_fp16) {
#pragma omp simd
    for (int64_t c = 0; c < count; ++c) {
      to[c] = __builtin_bit_cast(uint32_t, to_float(fp16{low[c]}));
    }
  } else {
#pragma omp simd
    for (int64_t c = 0; c < count; ++c) {
      to[c] = low[c] | static_cast<uint32_t>(high[c]) << 16;
    }
  }
}

/// Columns of `words` words of tokens, packed into adjacent pieces [words][piece].
struct Stripe {
  const Tensor& from;
  int64_t token = 0;  ///< the first one
  int64_t words = 0;
  int64_t column = 0, columns = 0;
  int64_t piece = 0;
  uint32_t* to = nullptr;
  int64_t piece_step = 0;  ///< words from one piece to the next
};
void pack_stripe(const Stripe& stripe, Words words);

}  // namespace espalier::kernels::ESPALIER_ISA
