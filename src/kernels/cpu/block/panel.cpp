#include "src/kernels/cpu/block/panel.h"

#include "src/kernels/cpu/simd/loops.h"

namespace espalier::kernels::ESPALIER_ISA {
namespace {

using Four [[gnu::vector_size(16)]] = uint32_t;
using FourHalves [[gnu::vector_size(8)]] = uint16_t;

/// Contiguous words in memory: fp32 numbers or pairs.
struct Plain {
  static constexpr int64_t kBytes = 4;
  [[gnu::always_inline]] static Four four(const std::byte* from) {
    Four words;
    __builtin_memcpy(&words, from, sizeof words);
    return words;
  }
  [[gnu::always_inline]] static uint32_t one(const std::byte* from) {
    uint32_t word;
    __builtin_memcpy(&word, from, sizeof word);
    return word;
  }
};

/// fp16 numbers, widened to fp32.
struct WidenedHalf {
  static constexpr int64_t kBytes = 2;
  [[gnu::always_inline]] static Four four(const std::byte* from) {
    return Four{one(from), one(from + kBytes), one(from + 2 * kBytes), one(from + 3 * kBytes)};
  }
  [[gnu::always_inline]] static uint32_t one(const std::byte* from) {
    fp16 half;
    __builtin_memcpy(&half, from, sizeof half);
    return __builtin_bit_cast(uint32_t, to_float(half));
  }
};

/// bf16 numbers, widened to fp32.
struct Widened {
  static constexpr int64_t kBytes = 2;
  [[gnu::always_inline]] static Four four(const std::byte* from) {
    FourHalves halves;
    __builtin_memcpy(&halves, from, sizeof halves);
    return __builtin_convertvector(halves, Four) << 16;
  }
  [[gnu::always_inline]] static uint32_t one(const std::byte* from) {
    uint16_t half;
    __builtin_memcpy(&half, from, sizeof half);
    return static_cast<uint32_t>(half) << 16;
  }
};

/// to[k][r] = word k of row r; `stride` in bytes.
template <class From>
[[gnu::always_inline]] inline void transpose_four(const std::byte* from, int64_t stride,
                                                  uint32_t* to, int64_t lanes) {
  const Four a = From::four(from);
  const Four b = From::four(from + stride);
  const Four c = From::four(from + 2 * stride);
  const Four d = From::four(from + 3 * stride);
  const Four low0 = __builtin_shufflevector(a, b, 0, 4, 1, 5);
  const Four low1 = __builtin_shufflevector(c, d, 0, 4, 1, 5);
  const Four high0 = __builtin_shufflevector(a, b, 2, 6, 3, 7);
  const Four high1 = __builtin_shufflevector(c, d, 2, 6, 3, 7);
  const Four columns[4] = {__builtin_shufflevector(low0, low1, 0, 1, 4, 5),
                           __builtin_shufflevector(low0, low1, 2, 3, 6, 7),
                           __builtin_shufflevector(high0, high1, 0, 1, 4, 5),
                           __builtin_shufflevector(high0, high1, 2, 3, 6, 7)};
#pragma GCC unroll 4
  for (int k = 0; k < 4; ++k) {
    __builtin_memcpy(to + k * lanes, &columns[k], sizeof(Four));
  }
}

/// to [words][lanes]: lane r < count of word k is word k of row r; the other lanes are zero.
template <class From>
void transpose(const std::byte* from, int64_t stride, const cpu::BlockStrip& strip, uint32_t* to) {
  const int64_t lanes = strip.lanes;
  const int64_t whole = strip.words / 4 * 4;
  const int64_t fours = strip.count / 4 * 4;
  for (int64_t r = 0; r < fours; r += 4) {
    const std::byte* rows = from + r * stride;
    for (int64_t k = 0; k < whole; k += 4) {
      transpose_four<From>(rows + k * From::kBytes, stride, to + k * lanes + r, lanes);
    }
  }
  for (int64_t r = 0; r < lanes; ++r) {
    for (int64_t k = r < fours ? whole : 0; k < strip.words; ++k) {
      to[k * lanes + r] = r < strip.count ? From::one(from + r * stride + k * From::kBytes) : 0;
    }
  }
}

template <Words kWords>
void pack_columns(const BlockMatrix& weight, const cpu::BlockPlan& plan,
                  const cpu::BlockStrip& strip) {
  constexpr int64_t kBytes = kWords == Words::fp32 ? sizeof(float) : sizeof(bf16);
  uint32_t* to = plan.panels + strip.panel;
  for (int32_t e = plan.entry_begin[strip.line]; e < plan.entry_begin[strip.line + 1]; ++e) {
    const auto [row, place] = plan.entries[e];
    const int64_t height = least(weight.height, weight.rows - row * weight.height);
    const int64_t begin = weight.value_begin[row];
    const int64_t line = (weight.value_begin[row + 1] - begin) / height * kBytes;
    const std::byte* from =
        elements<std::byte>(weight.values) + (begin + place + strip.inside) * kBytes;
    with_count(strip.count, [&](int64_t count) {
      for (int64_t n = 0; n < height; n += elements_a_word(kWords)) {
        pack_words<kWords>(from + n * line, from + (n + 1) * line, count, to);
        for (int64_t c = count; c < strip.lanes; ++c) {
          to[c] = 0;
        }
        to += strip.lanes;
      }
    });
  }
}

template <Words kWords>
void pack_tokens(const Stripe& stripe) {
  constexpr int64_t kBytes = kWords == Words::fp32 ? sizeof(float) : sizeof(bf16);
  constexpr int64_t kStep = kWords == Words::pairs ? 2 : 1;
  const int64_t row_bytes = stripe.from.stride * kBytes;
  const std::byte* from = elements<std::byte>(stripe.from) + stripe.token * row_bytes;
  const int64_t whole = least(stripe.words, (stripe.from.rows() - stripe.token) / kStep);
  for (int64_t c = 0; c < stripe.columns; c += stripe.piece) {
    const std::byte* row = from + (stripe.column + c) * kBytes;
    uint32_t* to = stripe.to + c / stripe.piece * stripe.piece_step;
    with_count(least(stripe.piece, stripe.columns - c), [&](int64_t count) {
      for (int64_t k = 0; k < whole; ++k) {
        pack_words<kWords>(row, row + row_bytes, count, to);
        row += kStep * row_bytes;
        to += stripe.piece;
      }
      // The last token may have no partner.
      for (int64_t i = 0; i < count && whole < stripe.words; ++i) {
        to[i] = reinterpret_cast<const uint16_t*>(row)[i];
      }
    });
  }
}

}  // namespace

void pack_strip(const BlockMatrix& weight, const cpu::BlockPlan& plan, const cpu::BlockStrip& strip,
                Words words) {
  const auto bytes = static_cast<int64_t>(words == Words::fp32 ? sizeof(float) : sizeof(bf16));
  const int64_t kept = strip.words * elements_a_word(words);
  const std::byte* from = elements<std::byte>(weight.values) +
                          (weight.value_begin[strip.line] + strip.inside * kept) * bytes;
  uint32_t* to = plan.panels + strip.panel;
  if (words == Words::widened_bf16) {
    transpose<Widened>(from, kept * bytes, strip, to);
  } else if (words == Words::widened_fp16) {
    transpose<WidenedHalf>(from, kept * bytes, strip, to);
  } else {
    transpose<Plain>(from, kept * bytes, strip, to);
  }
}

void pack_strip_transposed(const BlockMatrix& weight, const cpu::BlockPlan& plan,
                           const cpu::BlockStrip& strip, Words words) {
  with_words(words, [&](auto kind) { pack_columns<decltype(kind)::value>(weight, plan, strip); });
}

void pack_stripe(const Stripe& stripe, Words words) {
  with_words(words, [&](auto kind) { pack_tokens<decltype(kind)::value>(stripe); });
}

}  // namespace espalier::kernels::ESPALIER_ISA
