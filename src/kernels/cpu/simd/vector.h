#pragma once
// One vector register of floats, in the width of the instruction set of this copy (16, 8 or 4
// lanes), with shuffles that transpose a square of registers or add up the lanes of many registers
// at once. Shuffles stay within 128-bit quarters where possible, because these are cheap. Uses the
// compiler's vector types, so one source serves every instruction set.
#include <cstdint>
#include <utility>

#include "src/kernels/cpu/simd/lanes.h"
#include "src/kernels/cpu/simd/math.h"

namespace espalier::kernels::ESPALIER_ISA {

using Vector [[gnu::vector_size(kLanes * 4), gnu::aligned(4), gnu::may_alias]] = float;

[[gnu::always_inline]] inline Vector read_vector(const float* x) {
  return *reinterpret_cast<const Vector*>(x);
}
[[gnu::always_inline]] inline void write_vector(float* x, Vector v) {
  *reinterpret_cast<Vector*>(x) = v;
}

using Words [[gnu::vector_size(kLanes * 4)]] = uint32_t;
using HalfWords [[gnu::vector_size(kLanes * 2), gnu::aligned(2), gnu::may_alias]] = uint16_t;

[[gnu::always_inline]] inline Vector read_vector(const bf16* x) {
  const HalfWords bits = *reinterpret_cast<const HalfWords*>(x);
  return __builtin_bit_cast(Vector, __builtin_convertvector(bits, Words) << 16);
}
/// Like store() in math.h.
[[gnu::always_inline]] inline void write_vector(bf16* x, Vector v) {
  const auto bits = __builtin_bit_cast(Words, v);
  const Words rounded = bits + 0x7fffU + ((bits >> 16) & 1U);
  const auto is_nan = __builtin_bit_cast(Words, v != v);
  const Words chosen = (rounded & ~is_nan) | (is_nan & 0x7fc00000U);
  *reinterpret_cast<HalfWords*>(x) = __builtin_convertvector(chosen >> 16, HalfWords);
}

// The compiler vectorises these loops.
[[gnu::always_inline]] inline Vector read_vector(const fp16* x) {
  float lanes[kLanes];
#pragma GCC unroll 1
  for (int i = 0; i < kLanes; ++i) {
    lanes[i] = load(x + i);
  }
  return read_vector(lanes);
}
[[gnu::always_inline]] inline void write_vector(fp16* x, Vector v) {
  float lanes[kLanes];
  write_vector(lanes, v);
#pragma GCC unroll 1
  for (int i = 0; i < kLanes; ++i) {
    store(x + i, lanes[i]);
  }
}

/// The first n elements, the rest 0; n <= kLanes.
template <class T>
[[gnu::always_inline]] inline Vector read_vector(const T* x, int64_t n) {
  if (n == kLanes) {
    return read_vector(x);
  }
  float part[kLanes] = {};
  for (int64_t i = 0; i < n; ++i) {
    part[i] = load(x + i);
  }
  return read_vector(part);
}
template <class T>
[[gnu::always_inline]] inline void write_vector(T* x, Vector v, int64_t n) {
  if (n == kLanes) {
    return write_vector(x, v);
  }
  float part[kLanes];
  write_vector(part, v);
  for (int64_t i = 0; i < n; ++i) {
    store(x + i, part[i]);
  }
}

namespace shuffles {

// Lane i of a result is lane at(i) of the two concatenated operands. A quarter is 4 lanes.
inline constexpr int kQuarters = kLanes / 4;

/// a0 b0 a1 b1 of each quarter (Offset 0), or a2 b2 a3 b3 (Offset 2).
template <int Offset>
struct Interleave {
  static constexpr int at(int i) { return (i % 2) * kLanes + i / 4 * 4 + i % 4 / 2 + Offset; }
};
/// a0 a1 b0 b1 of each quarter (Offset 0), or a2 a3 b2 b3 (Offset 2).
template <int Offset>
struct Pairs {
  static constexpr int at(int i) { return i % 4 / 2 * kLanes + i / 4 * 4 + i % 2 + Offset; }
};
/// The quarters Step q + Offset of a, followed by those of b.
template <int Step, int Offset>
struct Quarters {
  static constexpr int at(int i) {
    constexpr int half = kQuarters > 1 ? kQuarters / 2 : 1;
    return i / 4 / half * kLanes + (i / 4 % half * Step + Offset) * 4 + i % 4;
  }
};

/// Lanes 4 i + 2 Half of a, then of b, then lanes 4 i + 2 Half + 1 of both.
template <int Half>
struct EveryFourth {
  static constexpr int at(int i) {
    const int row = 2 * Half + i / (kLanes / 2);
    const int element = i % (kLanes / 2);
    return element / kQuarters * kLanes + element % kQuarters * 4 + row;
  }
};
/// The low halves of a and b (Half 0), or the high ones.
template <int Half>
struct Halves {
  static constexpr int at(int i) {
    return i / (kLanes / 2) * kLanes + i % (kLanes / 2) + Half * (kLanes / 2);
  }
};

template <class Pick, int... I>
[[gnu::always_inline]] inline Vector apply(Vector a, Vector b, std::integer_sequence<int, I...>) {
  return __builtin_shufflevector(a, b, Pick::at(I)...);
}
template <class Pick>
[[gnu::always_inline]] inline Vector pick(Vector a, Vector b) {
  return apply<Pick>(a, b, std::make_integer_sequence<int, kLanes>{});
}

/// Row `Row` of the 4 x 4 quarters of a..d.
template <int Row>
[[gnu::always_inline]] inline Vector quarter_row(Vector a, Vector b, Vector c, Vector d) {
  const Vector ab = pick<Quarters<1, Row / 2 * 2>>(a, b);
  const Vector cd = pick<Quarters<1, Row / 2 * 2>>(c, d);
  return pick<Quarters<2, Row % 2>>(ab, cd);
}

}  // namespace shuffles

/// rows[i][j] <-> rows[j][i].
[[gnu::always_inline]] inline void transpose(Vector (&rows)[kLanes]) {
  using namespace shuffles;
  Vector quarters[kLanes];  // [j kQuarters + g]: columns 4 l + j of rows 4 g.., by quarter l
#pragma GCC unroll 4
  for (int g = 0; g < kQuarters; ++g) {
    const Vector* r = rows + 4 * g;
    const Vector low01 = pick<Interleave<0>>(r[0], r[1]);
    const Vector high01 = pick<Interleave<2>>(r[0], r[1]);
    const Vector low23 = pick<Interleave<0>>(r[2], r[3]);
    const Vector high23 = pick<Interleave<2>>(r[2], r[3]);
    quarters[g] = pick<Pairs<0>>(low01, low23);
    quarters[kQuarters + g] = pick<Pairs<2>>(low01, low23);
    quarters[2 * kQuarters + g] = pick<Pairs<0>>(high01, high23);
    quarters[3 * kQuarters + g] = pick<Pairs<2>>(high01, high23);
  }
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    const Vector* q = quarters + j * kQuarters;
    if constexpr (kQuarters == 1) {
      rows[j] = q[0];
    } else if constexpr (kQuarters == 2) {
      rows[j] = pick<Quarters<1, 0>>(q[0], q[1]);
      rows[4 + j] = pick<Quarters<1, 1>>(q[0], q[1]);
    } else {
      rows[j] = quarter_row<0>(q[0], q[1], q[2], q[3]);
      rows[4 + j] = quarter_row<1>(q[0], q[1], q[2], q[3]);
      rows[8 + j] = quarter_row<2>(q[0], q[1], q[2], q[3]);
      rows[12 + j] = quarter_row<3>(q[0], q[1], q[2], q[3]);
    }
  }
}

/// v holds the columns of a matrix of 4 rows, one behind the other; afterwards v[r] is row r.
[[gnu::always_inline]] inline void rows_of_four(Vector (&v)[4]) {
  using namespace shuffles;
  const Vector low01 = pick<EveryFourth<0>>(v[0], v[1]);
  const Vector low23 = pick<EveryFourth<1>>(v[0], v[1]);
  const Vector high01 = pick<EveryFourth<0>>(v[2], v[3]);
  const Vector high23 = pick<EveryFourth<1>>(v[2], v[3]);
  v[0] = pick<Halves<0>>(low01, high01);
  v[1] = pick<Halves<1>>(low01, high01);
  v[2] = pick<Halves<0>>(low23, high23);
  v[3] = pick<Halves<1>>(low23, high23);
}

/// The first n lanes of a, the others of b.
[[gnu::always_inline]] inline Vector first_lanes(int64_t n, Vector a, Vector b) {
  Words lane;
  for (int i = 0; i < kLanes; ++i) {
    lane[i] = static_cast<uint32_t>(i);
  }
  return lane < static_cast<uint32_t>(n) ? a : b;
}

/// Lane i of each quarter: the sum of this quarter of the i-th vector.
[[gnu::always_inline]] inline Vector quarter_sums(Vector a, Vector b, Vector c, Vector d) {
  using namespace shuffles;
  const Vector ab = pick<Interleave<0>>(a, b) + pick<Interleave<2>>(a, b);
  const Vector cd = pick<Interleave<0>>(c, d) + pick<Interleave<2>>(c, d);
  return pick<Pairs<0>>(ab, cd) + pick<Pairs<2>>(ab, cd);
}

/// Quarter i of the result: the sum of the quarters of the i-th vector.
[[gnu::always_inline]] inline Vector across_quarters(const Vector (&v)[kLanes / 4]) {
  using namespace shuffles;
  if constexpr (kQuarters == 1) {
    return v[0];
  } else if constexpr (kQuarters == 2) {
    return pick<Quarters<1, 0>>(v[0], v[1]) + pick<Quarters<1, 1>>(v[0], v[1]);
  } else {
    const Vector low = pick<Quarters<1, 0>>(v[0], v[1]) + pick<Quarters<1, 2>>(v[0], v[1]);
    const Vector high = pick<Quarters<1, 0>>(v[2], v[3]) + pick<Quarters<1, 2>>(v[2], v[3]);
    return pick<Quarters<2, 0>>(low, high) + pick<Quarters<2, 1>>(low, high);
  }
}

}  // namespace espalier::kernels::ESPALIER_ISA
