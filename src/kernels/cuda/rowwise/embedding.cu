// Embedding. Backward sorts rows by token (sort.h). The contributions to a token's row are summed
// in order, then added to that row once.
// - Tokens with few rows have one block each.
// - A token with many rows has one block per 128 columns, which sums 16 rows side by side.
//
// An id or a position outside the table reads NaN and contributes nothing.
#include "src/kernels/cuda/simt/reduce.h"
#include "src/kernels/cuda/simt/sort.h"
#include "src/kernels/cuda/table.h"

namespace espalier::kernels::ESPALIER_GPU {
namespace {

constexpr int64_t kMany = 64;  ///< a token with more rows than this has many
constexpr unsigned kSide = 16;
constexpr int64_t kTileColumns = 128;

struct Lookup {
  const int32_t* tokens;
  const int32_t* positions;  ///< of each row, or null
  Elements token, position;
  float* x;
  float scale;
  bool positioned;  ///< rows of `position` are added
  int64_t cols, context, vocabulary, positions_known, token_stride, position_stride;
};

__global__ void __launch_bounds__(1024) embed_row(Lookup args) {
  const int64_t row = blockIdx.x;
  const int64_t id = args.tokens[row];
  const int64_t t = args.positions != nullptr ? args.positions[row] : row % args.context;
  const bool known =
      id >= 0 && id < args.vocabulary && (!args.positioned || (t >= 0 && t < args.positions_known));
  const int64_t from = known ? id * args.token_stride : 0;
  const int64_t place = known ? t * args.position_stride : 0;
  for (int64_t i = 4 * int64_t{threadIdx.x}; i < args.cols; i += 4 * int64_t{blockDim.x}) {
    const int64_t count = args.cols - i;
    Quad sum = load_quad(args.token, from + i, count);
    const Quad position = args.positioned ? load_quad(args.position, place + i, count) : Quad{};
    for (int k = 0; k < 4; ++k) {
      sum.x[k] = known ? args.scale * sum.x[k] + position.x[k] : __uint_as_float(0x7fc00000U);
    }
    store_quad(args.x, row * args.cols + i, count, sum);
  }
}

struct Gradient {
  SortedRows sorted;
  const float* dx;
  Elements out;
  float scale;
  int64_t rows, cols, vocabulary, stride;
};

/// out[at] += scale sum
__device__ __forceinline__ void add_to(const Elements& out, int64_t at, int64_t count, Quad sum,
                                       float scale = 1) {
  for (int k = 0; k < 4; ++k) {
    sum.x[k] *= scale;
  }
  add(sum, load_quad(out, at, count));
  store_quad(out, at, count, sum);
}

/// Block i: adds the rows of one token that start at place i, if place i is their first and they
/// are few.
__global__ void __launch_bounds__(1024) add_few(Gradient args) {
  const int64_t first = blockIdx.x;
  const int32_t* ids = args.sorted.ids;
  const int32_t id = ids[first];
  const bool begins = first == 0 || ids[first - 1] != id;
  const bool many = first + kMany < args.rows && ids[first + kMany] == id;
  if (!begins || many || id >= args.vocabulary) {
    return;
  }
  for (int64_t i = 4 * int64_t{threadIdx.x}; i < args.cols; i += 4 * int64_t{blockDim.x}) {
    Quad sum{};
    for (int64_t j = first; j < args.rows && ids[j] == id; ++j) {
      add(sum, load_quad(args.dx, args.sorted.rows[j] * args.cols + i, args.cols - i));
    }
    add_to(args.out, id * args.stride + i, args.cols - i, sum, args.scale);
  }
}

/// Returns the first place in (low, high] of the run of ids `id` that contains `high`.
__device__ int64_t begin_of(const int32_t* ids, int32_t id, int64_t low, int64_t high) {
  while (high - low > 1) {
    const int64_t middle = (low + high) / 2;
    if (ids[middle] == id) {
      high = middle;
    } else {
      low = middle;
    }
  }
  return high;
}

/// Block m: adds the rows of the token at place kMany m, if they are many and kMany m is the first
/// such place among them.
__global__ void __launch_bounds__(32 * kSide) add_many(Gradient args) {
  __shared__ float sums[kSide][kTileColumns];
  const int32_t* ids = args.sorted.ids;
  const int64_t place = blockIdx.x * kMany;
  const int32_t id = ids[place];
  if (id >= args.vocabulary || (place > 0 && ids[place - kMany] == id)) {
    return;
  }
  const int64_t first = begin_of(ids, id, most(place - kMany, -1), place);
  if (first + kMany >= args.rows || ids[first + kMany] != id) {
    return;
  }
  const int64_t column = blockIdx.y * kTileColumns + 4 * threadIdx.x;
  Quad sum{};
  for (int64_t j = first + threadIdx.y; j < args.rows && ids[j] == id; j += kSide) {
    add(sum, load_quad(args.dx, args.sorted.rows[j] * args.cols + column, args.cols - column));
  }
  for (int k = 0; k < 4; ++k) {
    sums[threadIdx.y][4 * threadIdx.x + k] = sum.x[k];
  }
  __syncthreads();
  if (threadIdx.y == 0 && column < args.cols) {
    Quad total{};
    for (unsigned side = 0; side < kSide; ++side) {
      for (int k = 0; k < 4; ++k) {
        total.x[k] += sums[side][4 * threadIdx.x + k];
      }
    }
    add_to(args.out, id * args.stride + column, args.cols - column, total, args.scale);
  }
}

/// Block t: adds the rows of all sequences at position t.
__global__ void __launch_bounds__(1024)
    add_positions(const float* dx, Elements out, int64_t stride, int64_t rows, int64_t cols) {
  for (int64_t i = 4 * int64_t{threadIdx.x}; i < cols; i += 4 * int64_t{blockDim.x}) {
    Quad sum{};
#pragma unroll 4
    for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
      add(sum, load_quad(dx, row * cols + i, cols - i));
    }
    add_to(out, blockIdx.x * stride + i, cols - i, sum);
  }
}

}  // namespace

void embedding(Stream& stream, const EmbeddingArgs& args) {
  const int64_t cols = args.x.cols();
  const Lookup lookup{.tokens = static_cast<const int32_t*>(args.tokens.data),
                      .positions = static_cast<const int32_t*>(args.positions.data),
                      .token = elements(args.token),
                      .position = elements(args.position),
                      .x = static_cast<float*>(args.x.data),
                      .scale = args.scale,
                      .positioned = static_cast<bool>(args.position),
                      .cols = cols,
                      .context = args.x.shape[1],
                      .vocabulary = args.token.rows(),
                      .positions_known = args.position.rows(),
                      .token_stride = args.token.stride,
                      .position_stride = args.position.stride};
  launch(embed_row,
         {.name = "embedding",
          .grid = blocks_for(args.x.rows(), 1),
          .block = threads_for_row(divide_up(cols, 4))},
         stream, lookup);
}

void embedding_backward(Stream& stream, const EmbeddingBackwardArgs& args) {
  const int64_t rows = args.dx.rows();
  const int64_t cols = args.dx.cols();
  const int64_t vocabulary = args.dtoken.rows();
  if (rows == 0) {
    return;
  }
  const SortedRows sorted =
      sort_rows(stream, args.tokens, vocabulary, stream.workspace(sort_bytes(rows)));
  const auto* dx = static_cast<const float*>(args.dx.data);
  const Gradient gradient{.sorted = sorted,
                          .dx = dx,
                          .out = elements(args.dtoken),
                          .scale = args.scale,
                          .rows = rows,
                          .cols = cols,
                          .vocabulary = vocabulary,
                          .stride = args.dtoken.stride};
  const unsigned threads = threads_for_row(divide_up(cols, 4));
  launch(add_few, {.name = "embedding_backward_few", .grid = blocks_for(rows, 1), .block = threads},
         stream, gradient);
  launch(add_many,
         {.name = "embedding_backward_many",
          .grid = dim3(blocks_for(rows, kMany), blocks_for(cols, kTileColumns)),
          .block = dim3(32, kSide)},
         stream, gradient);
  if (!args.dposition) {
    return;
  }
  launch(add_positions,
         {.name = "embedding_backward_positions",
          .grid = blocks_for(args.dx.shape[1], 1),
          .block = threads},
         stream, dx, elements(args.dposition), args.dposition.stride, rows, cols);
}

}  // namespace espalier::kernels::ESPALIER_GPU
