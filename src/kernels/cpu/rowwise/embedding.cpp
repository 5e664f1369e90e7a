// Backward: rows are sorted by token. The contributions to a token's row are summed, in row order,
// and then added to that row once; the same for positions. A thread owns columns, so there are no
// races, and the order does not depend on threads.
#include <cstring>

#include "src/kernels/cpu/simd/loops.h"
#include "src/kernels/cpu/support.h"
#include "src/kernels/cpu/table.h"

namespace espalier::kernels::ESPALIER_ISA {
namespace {

constexpr int64_t kColumns = 16;  ///< a cache line of fp32
constexpr int64_t kTile = 512;    ///< columns that are summed at once, in L1

template <class T>
void embed_row(const EmbeddingArgs& args, int64_t row) {
  const int32_t id = elements<int32_t>(args.tokens)[row];
  const T* token = row_of<T>(args.token, id);
  float* x = row_of<float>(args.x, row);
  const int64_t cols = args.x.cols();
  const float scale = args.scale;
  if (!args.position) {
#pragma omp simd
    for (int64_t c = 0; c < cols; ++c) {
      x[c] = scale * load(token + c);
    }
    return;
  }
  const int64_t place =
      args.positions ? elements<int32_t>(args.positions)[row] : row % args.x.shape[1];
  const T* position = row_of<T>(args.position, place);
#pragma omp simd
  for (int64_t c = 0; c < cols; ++c) {
    x[c] = scale * load(token + c) + load(position + c);
  }
}

/// The rows of dx for each id of the batch, ascending.
struct RowsById {
  int32_t* ids;    ///< [groups], each id once
  int32_t* begin;  ///< [groups + 1]: rows before each group
  int32_t* rows;   ///< [rows of dx]
  int64_t groups;
};

/// Counting sort. `memory`: 3 rows + vocabulary + 1 numbers.
RowsById rows_by_id(const int32_t* tokens, int64_t rows, int64_t vocabulary, int32_t* memory) {
  RowsById sorted{memory, memory + rows, memory + 2 * rows + 1, 0};
  int32_t* next = memory + 3 * rows + 1;  // for each id: its rows, then the next position
  std::memset(next, 0, static_cast<size_t>(vocabulary) * sizeof(int32_t));
  for (int64_t row = 0; row < rows; ++row) {
    ++next[tokens[row]];
  }
  int32_t before = 0;
  for (int64_t id = 0; id < vocabulary; ++id) {
    if (next[id] != 0) {
      sorted.ids[sorted.groups] = static_cast<int32_t>(id);
      sorted.begin[sorted.groups++] = before;
      before += next[id];
      next[id] = before - next[id];
    }
  }
  sorted.begin[sorted.groups] = before;
  for (int64_t row = 0; row < rows; ++row) {
    sorted.rows[next[tokens[row]]++] = static_cast<int32_t>(row);
  }
  return sorted;
}

[[gnu::always_inline]] inline void add_row(float* __restrict sums, const float* x, int64_t n) {
#pragma omp simd
  for (int64_t c = 0; c < n; ++c) {
    sums[c] += x[c];
  }
}

/// out += scale sums; then sums = 0.
[[gnu::always_inline]] inline void add_sums(float* __restrict sums, const Tensor& out, float scale,
                                            int64_t row, int64_t first, int64_t n) {
  with_type(out.dtype, [&](auto type) {
    auto* to = row_of<decltype(type)>(out, row) + first;
#pragma omp simd
    for (int64_t c = 0; c < n; ++c) {
      store(to + c, load(to + c) + scale * sums[c]);
      sums[c] = 0;
    }
  });
}

/// Adds columns [first, first + n) of all rows, n <= kTile.
void add_columns(const EmbeddingBackwardArgs& args, const RowsById& sorted, int64_t first,
                 int64_t n) {
  const int64_t rows = args.dx.rows();
  const int64_t context = args.dx.shape[1];
  alignas(64) float sums[kTile] = {};
  for (int64_t group = 0; group < sorted.groups; ++group) {
    for (int32_t i = sorted.begin[group]; i < sorted.begin[group + 1]; ++i) {
      add_row(sums, row_of<float>(args.dx, sorted.rows[i]) + first, n);
    }
    add_sums(sums, args.dtoken, args.scale, sorted.ids[group], first, n);
  }
  if (!args.dposition) {
    return;
  }
  for (int64_t t = 0; t < context; ++t) {
    for (int64_t row = t; row < rows; row += context) {
      add_row(sums, row_of<float>(args.dx, row) + first, n);
    }
    add_sums(sums, args.dposition, 1, t, first, n);
  }
}

}  // namespace

void embedding(Stream& stream, const EmbeddingArgs& args) {
  cpu::require_ids_below("token", args.tokens, args.token.rows());
  if (args.position && args.positions) {
    cpu::require_ids_below("position", args.positions, args.position.rows());
  }
  with_type(args.token.dtype, [&](auto type) {
    for_rows(stream.threads(), args.x.rows(), args.x.cols(),
             [&](int64_t row) { embed_row<decltype(type)>(args, row); });
  });
}

void embedding_backward(Stream& stream, const EmbeddingBackwardArgs& args) {
  const int64_t cols = args.dx.cols();
  const int64_t rows = args.dx.rows();
  const int64_t vocabulary = args.dtoken.rows();
  const size_t numbers = static_cast<size_t>(3 * rows + vocabulary + 1);
  auto* memory = reinterpret_cast<int32_t*>(cpu::workspace(stream, numbers * sizeof(int32_t)));
  if (cpu::is_dry(stream)) {
    return;
  }
  cpu::require_ids_below("token", args.tokens, args.dtoken.rows());
  const RowsById sorted = rows_by_id(elements<int32_t>(args.tokens), rows, vocabulary, memory);
  const int64_t per_thread = divide_up(divide_up(cols, kColumns), stream.threads()) * kColumns;
  const int64_t width = least(kTile, per_thread);
  for_blocks(stream.threads(), divide_up(cols, width), args.dx.count(), [&](int64_t i) {
    add_columns(args, sorted, i * width, least(width, cols - i * width));
  });
}

}  // namespace espalier::kernels::ESPALIER_ISA
