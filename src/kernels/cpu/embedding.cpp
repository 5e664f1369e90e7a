// Backward: a thread owns columns and goes over the rows in order, so that rows that share a token
// never race and always add in the same order.
#include "src/kernels/cpu/loops.h"
#include "src/kernels/cpu/support.h"
#include "src/kernels/cpu/table.h"
#include "src/kernels/verify.h"

namespace espalier::kernels::ESPALIER_ISA {
namespace {

constexpr int64_t kColumns = 16;  ///< a cache line of fp32

template <class T>
void embed_row(const EmbeddingArgs& args, int64_t row) {
  const int32_t id = elements<int32_t>(args.tokens)[row];
  const T* token = row_of<T>(args.token, id);
  const T* position = row_of<T>(args.position, row % args.x.shape[1]);
  float* x = row_of<float>(args.x, row);
  const int64_t cols = args.x.cols();
#pragma omp simd
  for (int64_t c = 0; c < cols; ++c) {
    x[c] = load(token + c) + load(position + c);
  }
}

/// Columns [first, first + n) of all rows.
void add_columns(const EmbeddingBackwardArgs& args, int64_t first, int64_t n) {
  const int64_t rows = args.dx.rows();
  const int64_t context = args.dx.shape[1];
  const int32_t* tokens = elements<int32_t>(args.tokens);
  for (int64_t row = 0; row < rows; ++row) {
    const float* dx = row_of<float>(args.dx, row) + first;
    float* dtoken = row_of<float>(args.dtoken, tokens[row]) + first;
    float* dposition = row_of<float>(args.dposition, row % context) + first;
#pragma omp simd
    for (int64_t c = 0; c < n; ++c) {
      dtoken[c] += dx[c];
      dposition[c] += dx[c];
    }
  }
}

}  // namespace

void embedding(Stream& stream, const EmbeddingArgs& args) {
  verify(args);
  cpu::require_ids_below("token", args.tokens, args.token.rows());
  with_type(args.token.dtype, [&](auto type) {
    for_rows(stream.threads(), args.x.rows(), args.x.cols(),
             [&](int64_t row) { embed_row<decltype(type)>(args, row); });
  });
}

void embedding_backward(Stream& stream, const EmbeddingBackwardArgs& args) {
  verify(args);
  cpu::require_ids_below("token", args.tokens, args.dtoken.rows());
  const int64_t cols = args.dx.cols();
  const int64_t per_thread = divide_up(divide_up(cols, kColumns), stream.threads()) * kColumns;
  for_blocks(stream.threads(), divide_up(cols, per_thread), args.dx.count(), [&](int64_t i) {
    add_columns(args, i * per_thread, least(per_thread, cols - i * per_thread));
  });
}

}  // namespace espalier::kernels::ESPALIER_ISA
