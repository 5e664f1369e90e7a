// y = x Wᵀ for few rows of x and an unstructured W, from lists of its columns by rows (form `rows`
// of its positions) and the values where they are: nothing is copied, and both are read once, in
// order.
//
// A dot product has 8 sums: element j of a row of W goes to sum j % 8. With one row of x these are
// the lanes of two vectors, and activations are loaded one by one (measured: hardware gathers take
// twice the time on Zen 1); with more, x is packed so that the rows of x are the lanes of 8
// vectors. Either way the sums are added in the same order, so a row's bits do not depend on the
// others.
//
// Cost: values and 2 bytes per kept element, (32-bit columns, if W has more than 65,536 of them:
// 4).
#if defined(__AMX_TILE__)
#include <immintrin.h>
#endif

#include <cstring>

#include "src/kernels/cpu/simd/loops.h"
#include "src/kernels/cpu/sparse/band.h"
#include "src/kernels/cpu/sparse/tile.h"
#include "src/kernels/cpu/table.h"

namespace espalier::kernels::ESPALIER_ISA {
namespace {

constexpr int64_t kSums = 8;
constexpr int64_t kTogether = 8;   ///< rows of x at a time
constexpr int64_t kUnitRows = 64;  ///< of W; stay in L2 between groups of rows of x
constexpr int64_t kPieces = 4;     ///< of the rows of W for each thread

using Four [[gnu::vector_size(16), gnu::aligned(4), gnu::may_alias]] = float;
using Eight [[gnu::vector_size(32), gnu::aligned(4), gnu::may_alias]] = float;
using FourWords [[gnu::vector_size(16), gnu::aligned(4), gnu::may_alias]] = uint32_t;
using EightHalves [[gnu::vector_size(16), gnu::aligned(2), gnu::may_alias]] = uint16_t;

[[gnu::always_inline]] inline Four read_four(const float* x) {
  return *reinterpret_cast<const Four*>(x);
}

/// Eight values as two vectors.
struct Values {
  Four low, high;
};
[[gnu::always_inline]] inline Values read_values(const float* v) {
  return {read_four(v), read_four(v + 4)};
}
/// Interleaved with zeros, which costs less than widening and shifting.
[[gnu::always_inline]] inline Values read_values(const bf16* v) {
  const EightHalves halves = *reinterpret_cast<const EightHalves*>(v);
  const EightHalves zeros{};
  return {
      __builtin_bit_cast(Four, __builtin_shufflevector(zeros, halves, 0, 8, 1, 9, 2, 10, 3, 11)),
      __builtin_bit_cast(Four, __builtin_shufflevector(zeros, halves, 4, 12, 5, 13, 6, 14, 7, 15))};
}
[[gnu::always_inline]] inline Values read_values(const fp16* v) {
  float wide[kSums];
  for (int64_t i = 0; i < kSums; ++i) {
    wide[i] = load(v + i);
  }
  return read_values(wide);
}

#if !defined(__AMX_TILE__)
/// The activations at four columns. One load reads all 16-bit columns.
[[gnu::always_inline]] inline Four gather_four(const float* x, const uint16_t* columns) {
  uint64_t four;
  std::memcpy(&four, columns, sizeof(four));
  return Four{x[four & 0xffffU], x[four >> 16 & 0xffffU], x[four >> 32 & 0xffffU], x[four >> 48]};
}
[[gnu::always_inline]] inline Four gather_four(const float* x, const uint32_t* columns) {
  return Four{x[columns[0]], x[columns[1]], x[columns[2]], x[columns[3]]};
}
/// The activations at eight columns.
template <class Column>
[[gnu::always_inline]] inline Values gather(const float* x, const Column* columns) {
  return {gather_four(x, columns), gather_four(x, columns + 4)};
}
#endif

/// Ones in the first n of 8 elements: at kKeep + 8 - n.
constexpr uint32_t kKeep[2 * kSums] = {~0U, ~0U, ~0U, ~0U, ~0U, ~0U, ~0U, ~0U};
[[gnu::always_inline]] inline Four keep(Four x, const uint32_t* mask) {
  return __builtin_bit_cast(
      Four, __builtin_bit_cast(FourWords, x) & *reinterpret_cast<const FourWords*>(mask));
}

/// The form `rows`. Columns of row i are [begin[i], begin[i + 1]); kSums more follow the last one.
template <class Column>
struct RowLists {
  uint32_t* begin = nullptr;
  Column* columns = nullptr;
};

template <class T, class Column>
struct RowList {
  const T* values;
  const Column* columns;
  int64_t count;
  bool readable;  ///< values up to the next multiple of kSums exist
};

template <class T>
[[gnu::always_inline]] inline Values last_values(const T* values, int64_t rest, bool readable) {
  if (readable) {
    return read_values(values);
  }
  T part[kSums] = {};
  for (int64_t i = 0; i < rest; ++i) {
    part[i] = values[i];
  }
  return read_values(part);
}

/// Requests the cache line that is kAhead bytes away: hardware prefetchers alone do not keep up
/// (benchmarks/results/generation.md).
[[gnu::always_inline]] inline void request(const void* from) {
  constexpr int64_t kAhead = 8192;
  __builtin_prefetch(static_cast<const char*>(from) + kAhead);
}

#if defined(__AMX_TILE__)
/// Intel from Sapphire Rapids on: hardware gathers (benchmarks/results/generation.md), and the 8
/// sums in one register.
[[gnu::always_inline]] inline __m256i read_columns(const uint16_t* columns) {
  return _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(columns)));
}
[[gnu::always_inline]] inline __m256i read_columns(const uint32_t* columns) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(columns));
}
/// Eight values, or those of the mask and zeros.
[[gnu::always_inline]] inline __m256 read_eight(const float* v, __mmask8 mask) {
  return _mm256_maskz_loadu_ps(mask, v);
}
[[gnu::always_inline]] inline __m256 read_eight(const bf16* v, __mmask8 mask) {
  const __m256i wide = _mm256_cvtepu16_epi32(_mm_maskz_loadu_epi16(mask, v));
  return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}
[[gnu::always_inline]] inline __m256 read_eight(const fp16* v, __mmask8 mask) {
  return _mm256_cvtph_ps(_mm_maskz_loadu_epi16(mask, v));
}

/// The dot product with one row of x. Elements behind the last one count as zeros.
template <class T, class Column>
[[gnu::always_inline]] inline float dot(const RowList<T, Column>& w, const float* x) {
  constexpr __mmask8 kAll = 0xff;
  __m256 sum = _mm256_setzero_ps();
  int64_t j = 0;
  for (; j + kSums <= w.count; j += kSums) {
    request(w.values + j);
    request(w.columns + j);
    const __m256 factors = _mm256_i32gather_ps(x, read_columns(w.columns + j), sizeof(float));
    sum = _mm256_fmadd_ps(read_eight(w.values + j, kAll), factors, sum);
  }
  if (j < w.count) {
    const auto mask = static_cast<__mmask8>((1U << (w.count - j)) - 1);
    const __m256 factors = _mm256_mmask_i32gather_ps(_mm256_setzero_ps(), mask,
                                                     read_columns(w.columns + j), x, sizeof(float));
    sum = _mm256_fmadd_ps(read_eight(w.values + j, mask), factors, sum);
  }
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(sum), _mm256_extractf128_ps(sum, 1));
  return (four[0] + four[1]) + (four[2] + four[3]);
}
#else
/// The dot product with one row of x. Elements behind the last one count as zeros.
template <class T, class Column>
[[gnu::always_inline]] inline float dot(const RowList<T, Column>& w, const float* x) {
  Four low{};
  Four high{};
  int64_t j = 0;
  const auto step = [&]() __attribute__((always_inline)) {
    request(w.values + j);
    request(w.columns + j);
    const Values v = read_values(w.values + j);
    const Values factors = gather(x, w.columns + j);
    low += v.low * factors.low;
    high += v.high * factors.high;
    j += kSums;
  };
  // The last step is always a masked one: a branch less that depends on the count.
  while (j + kSums < w.count) {
    step();
  }
  if (j < w.count) {
    const int64_t rest = w.count - j;
    const uint32_t* mask = kKeep + kSums - rest;
    const Values v = last_values(w.values + j, rest, w.readable);
    const Values factors = gather(x, w.columns + j);
    low += keep(v.low, mask) * keep(factors.low, mask);
    high += keep(v.high, mask + 4) * keep(factors.high, mask + 4);
  }
  const Four sum = low + high;
  return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}
#endif

/// Dot products with the rows of x that are lanes of Lanes; x [columns, lanes]. They are no return
/// value, which would be wider than the registers of the portable table.
template <class Lanes, class T, class Column>
[[gnu::always_inline]] inline void dots(const RowList<T, Column>& w, const float* x, Lanes& out) {
  constexpr int64_t kRows = sizeof(Lanes) / sizeof(float);
  Lanes sum[kSums] = {};
  const auto add = [&](int64_t j, int64_t n, const Values& v) __attribute__((always_inline)) {
    float value[kSums];
    *reinterpret_cast<Four*>(value) = v.low;
    *reinterpret_cast<Four*>(value + 4) = v.high;
    for (int64_t i = 0; i < n; ++i) {
      const float* row = x + int64_t{w.columns[j + i]} * kRows;
      sum[i] += value[i] * *reinterpret_cast<const Lanes*>(row);
    }
  };
  int64_t j = 0;
  for (; j + kSums <= w.count; j += kSums) {
    add(j, kSums, read_values(w.values + j));
  }
  if (j < w.count) {
    add(j, w.count - j, last_values(w.values + j, w.count - j, w.readable));
  }
  out = ((sum[0] + sum[4]) + (sum[1] + sum[5])) + ((sum[2] + sum[6]) + (sum[3] + sum[7]));
}

/// Lists the columns of each row.
template <class Column>
void list_rows(const KeptBits& bits, const SparseMatrix& weight, const RowLists<Column>& lists,
               int threads) {
  const int64_t cols = weight.cols;
  for_ranges(threads, weight.rows, most(1, kBlock / most(1, cols)), [&](int64_t first, int64_t n) {
    for (int64_t row = first; row < first + n; ++row) {
      Column* next = lists.columns + lists.begin[row];
      const int64_t begin = row * cols;
      for (int64_t word = begin >> 6; word << 6 < begin + cols; ++word) {
        uint64_t kept = bits.words[word];
        const int64_t base = (word << 6) - begin;
        if (base < 0) {
          kept &= ~uint64_t{0} << -base;
        }
        if (base + 64 > cols) {
          kept &= ~uint64_t{0} >> (base + 64 - cols);
        }
        for (; kept != 0; kept &= kept - 1) {
          *next++ = static_cast<Column>(base + __builtin_ctzll(kept));
        }
      }
    }
  });
  for (int64_t i = 0; i < kSums; ++i) {
    lists.columns[weight.positions.count + i] = 0;
  }
}

/// Memory of a call.
template <class Column>
struct Memory {
  RowLists<Column> lists;
  KeptBits bits;            ///< while lists are made
  float* packed = nullptr;  ///< x, by groups of kTogether rows
  float* sums = nullptr;    ///< per thread, [rows of x, kUnitRows]
  bool made = false;
  bool* kept = nullptr;
};

/// Rows of x in a packed row: 1, or lanes of a vector.
[[gnu::always_inline]] inline int64_t packed_lanes(int64_t rows) {
  return rows == 1 ? 1 : rows <= 4 ? 4 : 8;
}

template <class Column>
Memory<Column> carve(Carver& carver, const SparseFewRowsArgs& args, int threads) {
  const SparseMatrix& weight = args.weight;
  Memory<Column> m;
  const auto carve_lists = [&](Carver& from) {
    m.lists.begin = from.take<uint32_t>(weight.rows + 1);
    m.lists.columns = from.take<Column>(weight.positions.count + kSums);
  };
  if (weight.forms == nullptr) {
    carve_lists(carver);
  } else {
    Carver sizes;
    carve_lists(sizes);
    const KeptForms::Place place = weight.forms->place(PositionForm::rows, sizes.used);
    Carver kept{place.memory};
    carve_lists(kept);
    m.made = *place.made;
    m.kept = place.made;
  }
  m.bits.row_begin = m.lists.begin;
  if (weight.positions.bitmap == nullptr && !m.made) {
    m.bits.made = carver.take<uint64_t>(divide_up(weight.positions.size, 64));
  }
  const int64_t rows = args.x.rows();
  m.packed = carver.take<float>(divide_up(rows, kTogether) * kTogether * weight.cols);
  m.sums = carver.take<float>(threads * rows * kUnitRows);
  return m;
}

/// Packs rows [first, first + n) of x as lanes; those that do not exist are zeros.
template <class T>
void pack(const Tensor& x, int64_t first, int64_t n, int64_t lanes, float* packed) {
  for (int64_t lane = 0; lane < lanes; ++lane) {
    const T* row = lane < n ? row_of<T>(x, first + lane) : nullptr;
    for (int64_t c = 0; c < x.cols(); ++c) {
      packed[c * lanes + lane] = row != nullptr ? load(row + c) : 0.0F;
    }
  }
}

template <class Lanes, class T, class Column>
void multiply(const Memory<Column>& m, const T* values, int64_t available, int64_t first, int64_t n,
              const float* packed, int64_t rows, float* sums) {
  for (int64_t i = 0; i < n; ++i) {
    const int64_t begin = m.lists.begin[first + i];
    const int64_t count = m.lists.begin[first + i + 1] - begin;
    const RowList<T, Column> list{values + begin, m.lists.columns + begin, count,
                                  begin + divide_up(count, kSums) * kSums <= available};
    if constexpr (__is_same(Lanes, float)) {
      sums[i] = dot(list, packed);
    } else {
      Lanes all;
      dots(list, packed, all);
      for (int64_t r = 0; r < rows; ++r) {
        sums[r * kUnitRows + i] = all[r];
      }
    }
  }
}

/// The first row with at least so many kept elements before it.
int64_t row_after(const uint32_t* begin, int64_t rows, int64_t kept) {
  int64_t low = 0;
  for (int64_t n = rows; n > 0;) {
    const int64_t half = n / 2;
    const bool right = static_cast<int64_t>(begin[low + half]) < kept;
    low = right ? low + half + 1 : low;
    n = right ? n - half - 1 : half;
  }
  return low;
}

template <class T, class Column>
void product(Stream& stream, const SparseFewRowsArgs& args, const Memory<Column>& m) {
  const SparseMatrix& weight = args.weight;
  const int64_t rows = args.x.rows();
  const int64_t kept = weight.positions.count;
  const int threads = stream.threads();
  const auto lanes_of = [&](int64_t first) { return packed_lanes(least(kTogether, rows - first)); };
  for (int64_t r = 0; r < rows; r += kTogether) {
    pack<T>(args.x, r, least(kTogether, rows - r), lanes_of(r), m.packed + r * weight.cols);
  }
  const Epilogue epilogue{.bias = elements<const float>(args.bias),
                          .activation = args.activation,
                          .out = args.y,
                          .activated = args.activated,
                          .accumulate = args.accumulate};
  const PutRows put = put_rows_for(epilogue, args.x.dtype);
  const int64_t pieces = kPieces * threads;
  const T* values = elements<const T>(weight.values);
  for_blocks(threads, pieces, kept + weight.rows, [&](int64_t piece) {
    float* const sums = m.sums + thread_index() * rows * kUnitRows;
    const auto bound = [&](int64_t of) {
      return of == pieces ? weight.rows : row_after(m.lists.begin, weight.rows, kept * of / pieces);
    };
    const int64_t end = bound(piece + 1);
    for (int64_t first = piece == 0 ? 0 : bound(piece); first < end; first += kUnitRows) {
      const int64_t n = least(kUnitRows, end - first);
      for (int64_t r = 0; r < rows; r += kTogether) {
        const int64_t lanes = lanes_of(r);
        const auto run = lanes == 1   ? multiply<float, T, Column>
                         : lanes == 4 ? multiply<Four, T, Column>
                                      : multiply<Eight, T, Column>;
        run(m, values, kept, first, n, m.packed + r * weight.cols, least(kTogether, rows - r),
            sums + r * kUnitRows);
      }
      put(epilogue, sums,
          {.token = 0, .tokens = rows, .feature = first, .features = n, .row = kUnitRows});
    }
  });
}

template <class Column>
void run(Stream& stream, const SparseFewRowsArgs& args) {
  const int threads = stream.threads();
  Carver sizes;
  carve<Column>(sizes, args, threads);
  Carver carver{cpu::workspace(stream, sizes.used)};
  if (cpu::is_dry(stream)) {
    return;
  }
  Memory<Column> m = carve<Column>(carver, args, threads);
  if (!m.made) {
    make_bits(m.bits, args.weight, threads);
    list_rows(m.bits, args.weight, m.lists, threads);
    if (m.kept != nullptr) {
      *m.kept = true;
    }
  }
  with_type(args.weight.values.dtype, [&](auto type) { product<decltype(type)>(stream, args, m); });
}

}  // namespace

void sparse_few_rows(Stream& stream, const SparseFewRowsArgs& args) {
  if (args.x.rows() == 0 || args.weight.rows == 0) {
    return;
  }
  if (args.weight.cols <= int64_t{1} << 16) {
    run<uint16_t>(stream, args);
  } else {
    run<uint32_t>(stream, args);
  }
}

}  // namespace espalier::kernels::ESPALIER_ISA
