#pragma once
// Packed panels of one head in attention: q, k, v and the output's gradient, so that products of
// tiles read adjacent words (tile.h); and the unpacking of their results.
//
//   rows        [T, D / elements]   words along D; first operand of a product over D
//   transposed  [D / elements, T]   words along D; second operand of a product over D
//   joined      [T / elements, D]   words along T; second operand of a product over tokens
//
// With one element in a word, rows and joined are the same. T and D are padded with zeros to whole
// vectors of any table.
#include "src/kernels/cpu/attention/tile.h"
#include "src/kernels/cpu/simd/loops.h"

namespace espalier::kernels::ESPALIER_ISA {

inline constexpr int64_t kPad = 16;

[[gnu::always_inline]] inline int64_t padded(int64_t n) { return (n + kPad - 1) / kPad * kPad; }

// Not std::fill: the linker could take a shared inline function in another instruction set's form.
[[gnu::always_inline]] inline void set_all(float* x, int64_t n, float value) {
  for (int64_t i = 0; i < n; ++i) {
    x[i] = value;
  }
}

[[gnu::always_inline]] inline void scale_all(float* x, int64_t n, float factor) {
  for (int64_t i = 0; i < n; ++i) {
    x[i] *= factor;
  }
}

/// The shape of one head.
struct Head {
  int64_t tokens;  ///< T
  int64_t width;   ///< D
  int64_t padded_tokens;
  int64_t padded_width;  ///< row stride of joined panels and of results, fp32 [T, D]
  int64_t elements;      ///< in a word
  float scale;           ///< of the scores
  bool causal;           ///< a query sees the keys up to its own; otherwise all
  int64_t window;        ///< most keys that a query sees, if causal; 0: no limit

  [[gnu::always_inline]] int64_t row() const { return padded_width / elements; }
  [[gnu::always_inline]] int64_t panel() const { return padded_tokens * padded_width; }
  /// The end of the keys that queries before `end` see.
  [[gnu::always_inline]] int64_t keys_before(int64_t end) const { return causal ? end : tokens; }
  /// The start of the vector that holds the first key which queries from `first` on see.
  [[gnu::always_inline]] int64_t keys_from(int64_t first) const {
    return window == 0 || first < window ? 0 : (first - window + 1) / kPad * kPad;
  }
  /// Words that hold D elements.
  [[gnu::always_inline]] int64_t words() const { return (width + elements - 1) / elements; }
  // fp32: q is scaled when it is packed. bf16: scaling q would round it again, so the scores are
  // scaled.
  [[gnu::always_inline]] float query_scale() const { return elements == 1 ? scale : 1.0F; }
  [[gnu::always_inline]] float score_scale() const { return elements == 1 ? 1.0F : scale; }
};

/// Avoids the C library, because rows are short.
template <class T>
[[gnu::always_inline]] inline void copy_elements(const T* from, int64_t n, T* to) {
  constexpr int64_t kStep = 64 / sizeof(T);
  int64_t i = 0;
  for (; i + kStep <= n; i += kStep) {
    __builtin_memcpy(to + i, from + i, 64);
  }
  for (; i < n; ++i) {
    to[i] = from[i];
  }
}

/// Packs rows of x, `stride` elements apart, as words; scales words of one element.
template <class T>
void pack_rows(const Head& head, const T* x, int64_t stride, float scale, float* rows) {
  for (int64_t t = 0; t < head.padded_tokens; ++t) {
    float* row = rows + t * head.row();
    const int64_t filled = t < head.tokens ? head.width : 0;
    if (head.elements == 1) {
      for (int64_t d = 0; d < filled; ++d) {
        row[d] = scale * load(x + t * stride + d);
      }
      set_all(row + filled, head.padded_width - filled, 0.0F);
    } else {
      set_all(row + filled / 2, head.row() - filled / 2, 0.0F);
      copy_elements(x + t * stride, filled, reinterpret_cast<T*>(row));
    }
  }
}

/// Transposes squares of vectors.
inline void transpose_rows(const Head& head, const float* rows, float* transposed) {
  for (int64_t first = 0; first < head.row(); first += kLanes) {
    const int64_t n = least(kLanes, head.row() - first);
    for (int64_t t = 0; t < head.padded_tokens; t += kLanes) {
      Vector square[kLanes];
      for (int i = 0; i < kLanes; ++i) {
        square[i] = read_vector(rows + (t + i) * head.row() + first, n);
      }
      transpose(square);
      for (int64_t i = 0; i < n; ++i) {
        write_vector(transposed + (first + i) * head.padded_tokens + t, square[i]);
      }
    }
  }
}

/// Joins rows of two-element words: the even token is in the low half.
inline void join_rows(const Head& head, const float* rows, float* joined) {
  for (int64_t t = 0; t < head.padded_tokens; t += 2) {
    const auto* even = reinterpret_cast<const HalfWords*>(rows + t * head.row());
    const auto* odd = reinterpret_cast<const HalfWords*>(rows + (t + 1) * head.row());
    float* out = joined + t / 2 * head.padded_width;
    for (int64_t v = 0; v < head.padded_width / kLanes; ++v) {
      const Words low = __builtin_convertvector(even[v], Words);
      const Words high = __builtin_convertvector(odd[v], Words);
      write_vector(out + v * kLanes, __builtin_bit_cast(Vector, low | high << 16));
    }
  }
}

/// x [T, D] = scale * panel.
template <class T>
void unpack(const Head& head, const float* panel, float scale, T* x, int64_t stride) {
  for (int64_t t = 0; t < head.tokens; ++t) {
    for (int64_t d = 0; d < head.width; ++d) {
      store(x + t * stride + d, scale * panel[t * head.padded_width + d]);
    }
  }
}

}  // namespace espalier::kernels::ESPALIER_ISA
