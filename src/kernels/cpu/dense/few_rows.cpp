// y = x Wᵀ for few rows of x: every element of W is read from memory once, and multiplied with up
// to kTogether rows of x while it is in a register; with more rows, again from the cache. The order
// of a dot product is that of its blocks (simd/few_rows.h), whatever the number of rows.
#include "src/kernels/cpu/simd/few_rows.h"

#include "src/kernels/cpu/simd/loops.h"
#include "src/kernels/cpu/simd/reduce.h"
#include "src/kernels/cpu/sparse/band.h"
#include "src/kernels/cpu/support.h"
#include "src/kernels/cpu/table.h"

namespace espalier::kernels::ESPALIER_ISA {
namespace {

constexpr int64_t kTogether = 8;            ///< rows of x at a time
constexpr int64_t kUnitBytes = 128 * 1024;  ///< of W: stays in L2 between groups of rows of x
constexpr int64_t kMostUnit = 64;           ///< rows of W in a unit
constexpr int64_t kLeastUnit = 4;

/// Rows of W that a thread multiplies with all of x before it goes on.
int64_t unit_of(const Tensor& weight, int threads) {
  const int64_t row_bytes = weight.cols() * (weight.dtype == DType::fp32 ? 4 : 2);
  const int64_t most_rows = least(
      kMostUnit, least(kUnitBytes / most(1, row_bytes), weight.rows() / (2 * int64_t{threads})));
  return most(kLeastUnit, most_rows / kLeastUnit * kLeastUnit);
}

/// Whole groups of rows, at least kAheadBytes.
int64_t prefetch_distance(const Tensor& weight, int64_t rows) {
  constexpr int64_t kAheadBytes = 12 * 1024;
  const int64_t together = rows <= 2 ? 4 : rows <= 4 ? 2 : 1;  // as in dots_of_rows
  const int64_t group = together * weight.stride;
  const int64_t bytes = most(1, group * (weight.dtype == DType::fp32 ? 4 : 2));
  return divide_up(kAheadBytes, bytes) * group;
}

/// Dot products of Weights rows of W with Rows rows of x; sums[r * sums_row + w].
struct DotShape {
  int64_t cols;
  int64_t weight_row;  ///< elements between rows of W
  int64_t packed_row;  ///< floats between rows of packed x
  int64_t sums_row;
  int64_t ahead;  ///< elements from the rows in use to those that are prefetched
};

template <int Weights, int Rows, class T>
[[gnu::always_inline]] inline void dots(const DotShape& s, const T* w, const float* x,
                                        float* sums) {
  Vector sum[Weights][Rows] = {};
  const auto add = [&](const WeightBlock(&blocks)[Weights], int64_t k)
      __attribute__((always_inline)) {
    for (int r = 0; r < Rows; ++r) {
      const float* packed = x + r * s.packed_row + k;
      const Vector first = read_vector(packed);
      const Vector second = read_vector(packed + kLanes);
      for (int i = 0; i < Weights; ++i) {
        sum[i][r] += blocks[i].first * first;
        sum[i][r] += blocks[i].second * second;
      }
    }
  };
  int64_t k = 0;
  WeightBlock blocks[Weights];
  const auto step = [&](int64_t at) __attribute__((always_inline)) {
#pragma GCC unroll 4
    for (int i = 0; i < Weights; ++i) {
      blocks[i] = read_block(w + i * s.weight_row + at);
    }
    add(blocks, at);
  };
  // Rows to come, in the order of memory, one request a cache line: hardware prefetchers alone
  // reach two thirds of the memory's rate (AMD EPYC 7551).
  constexpr int64_t kLine = 64 / static_cast<int64_t>(sizeof(T));
  constexpr int64_t kStep = std::max(kLine, kWeightBlock);
  static_assert(kStep % kLine == 0 && kStep % kWeightBlock == 0);
  for (; k + kStep <= s.cols; k += kStep) {
#pragma GCC unroll 8
    for (int64_t line = 0; line < Weights * kStep; line += kLine) {
      __builtin_prefetch(w + s.ahead + Weights * k + line);
    }
#pragma GCC unroll 2
    for (int64_t part = 0; part < kStep; part += kWeightBlock) {
      step(k + part);
    }
  }
  for (; k + kWeightBlock <= s.cols; k += kWeightBlock) {
    step(k);
  }
  if (k < s.cols) {
    for (int i = 0; i < Weights; ++i) {
      T part[kWeightBlock] = {};
      for (int64_t c = k; c < s.cols; ++c) {
        part[c - k] = w[i * s.weight_row + c];
      }
      blocks[i] = read_block(part);
    }
    add(blocks, k);
  }
  for (int i = 0; i < Weights; ++i) {
    for (int r = 0; r < Rows; ++r) {
      sums[r * s.sums_row + i] = sum_of_lanes(sum[i][r]);
    }
  }
}

/// Dot products of n rows of W; several at a time keep enough sums in flight.
template <int Weights, int Rows, class T>
void all_dots(const DotShape& s, int64_t n, const T* w, const float* x, float* sums) {
  int64_t i = 0;
  for (; i + Weights <= n; i += Weights) {
    dots<Weights, Rows>(s, w + i * s.weight_row, x, sums + i);
  }
  for (; i < n; ++i) {
    dots<1, Rows>(s, w + i * s.weight_row, x, sums + i);
  }
}

/// The same for `rows` <= kTogether rows of x.
template <class T>
void dots_of_rows(const DotShape& s, int64_t rows, int64_t n, const T* w, const float* x,
                  float* sums) {
  switch (rows) {
    case 1:
      return all_dots<4, 1>(s, n, w, x, sums);
    case 2:
      return all_dots<4, 2>(s, n, w, x, sums);
    case 3:
      return all_dots<2, 3>(s, n, w, x, sums);
    case 4:
      return all_dots<2, 4>(s, n, w, x, sums);
    case 5:
      return all_dots<1, 5>(s, n, w, x, sums);
    case 6:
      return all_dots<1, 6>(s, n, w, x, sums);
    case 7:
      return all_dots<1, 7>(s, n, w, x, sums);
    default:
      return all_dots<1, 8>(s, n, w, x, sums);
  }
}

}  // namespace

void few_rows(Stream& stream, const FewRowsArgs& args) {
  const Tensor& weight = args.weight;
  const int64_t rows = args.x.rows();
  if (rows == 0 || weight.rows() == 0) {
    return;
  }
  const int threads = stream.threads();
  const int64_t packed_row = divide_up(weight.cols(), kWeightBlock) * kWeightBlock;
  const int64_t unit = unit_of(weight, threads);
  const int64_t sums_row = divide_up(unit, 16) * 16;
  cpu::Carver sizes;
  sizes.take<float>(rows * packed_row);
  sizes.take<float>(threads * rows * sums_row);
  cpu::Carver carver{cpu::workspace(stream, sizes.used)};
  if (cpu::is_dry(stream)) {
    return;
  }
  float* const packed = carver.take<float>(rows * packed_row);
  float* const all_sums = carver.take<float>(threads * rows * sums_row);
  const Epilogue epilogue{.bias = elements<const float>(args.bias),
                          .activation = args.activation,
                          .out = args.y,
                          .activated = args.activated,
                          .accumulate = args.accumulate};
  const PutRows put = put_rows_for(epilogue, args.x.dtype);
  with_type(weight.dtype, [&](auto type) {
    using T = decltype(type);
    for (int64_t r = 0; r < rows; ++r) {
      pack_activations(row_of<T>(args.x, r), weight.cols(), packed + r * packed_row);
    }
    const DotShape shape{.cols = weight.cols(),
                         .weight_row = weight.stride,
                         .packed_row = packed_row,
                         .sums_row = sums_row,
                         .ahead = prefetch_distance(weight, rows)};
    for_blocks(threads, divide_up(weight.rows(), unit), weight.count(), [&](int64_t block) {
      const int64_t first = block * unit;
      const int64_t n = least(unit, weight.rows() - first);
      float* const sums = all_sums + thread_index() * rows * sums_row;
      for (int64_t r = 0; r < rows; r += kTogether) {
        dots_of_rows(shape, least(kTogether, rows - r), n, row_of<T>(weight, first),
                     packed + r * packed_row, sums + r * sums_row);
      }
      put(epilogue, sums,
          {.token = 0, .tokens = rows, .feature = first, .features = n, .row = sums_row});
    });
  });
}

}  // namespace espalier::kernels::ESPALIER_ISA
