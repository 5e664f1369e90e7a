// Products with blocks on tensor cores. A row of blocks of W is a dense matrix [height, kept
// columns]. With those columns of x side by side, y of that row of blocks is a dense product. In
// the same way dx of a column of blocks is a dense product with the rows of its kept blocks one
// under the other. A block of threads computes one tile of such a product (tile.h). Its activations
// are gathered piece by piece on the way to shared memory.
//
// Cost of a call, with f of N x K kept in blocks of height x width and R tokens (for dx: K and N,
// width and height exchanged):
//   flops    2 R f N K
//   memory   2 (R (K + N) + f N K) bytes, each operand once: tiles of the same tokens run together
//   L2       2 R f N K (1 / height + 1 / kM) bytes: an element of x is read again for each kept
//            block of its column, an element of W for every kM tokens
// Example: N = K = 4096, f = 0.1, 64 x 64, R = 8192, by an H100's data sheet:
// - 27.5 GFlop: 28 us
// - 137 MB of memory: 41 us
// - 1.40 GB in and out of shared memory: 47 us (tile.h)
// - 0.54 GB from L2. Only larger blocks reduce it: each column of x that a block reads is used
//   `height` times.
#include "src/kernels/cuda/block/columns.h"
#include "src/kernels/cuda/block/finish.h"
#include "src/kernels/cuda/block/products.h"
#include "src/kernels/cuda/table.h"

namespace espalier::kernels::ESPALIER_GPU {
namespace {

struct Forward {
  Rows x;
  const uint16_t* values;
  const int32_t *block_begin, *value_begin, *block_column;
  int64_t rows;  ///< rows of W
  int height;
  Gather gather;
  ProductResult y;
  bool aligned;  ///< y.aligned()
};

template <DType kHalf, class Shape>
__global__ void __launch_bounds__(kTileThreads, Shape::kResident) forward_tile(Forward args) {
  const int parts = tiles_across(args.height, Shape::kN);
  const auto row = static_cast<int>(blockIdx.x) / parts;  // row of blocks
  const int first = static_cast<int>(blockIdx.x) % parts * Shape::kN;
  const int64_t output = int64_t{row} * args.height;
  const auto height = static_cast<int>(least(args.height, args.rows - output));
  if (first >= height) {
    return;
  }
  const int32_t begin = args.value_begin[row];
  const int count = (args.value_begin[row + 1] - begin) / height;
  const int64_t token = int64_t{blockIdx.y} * Shape::kM;
  AlongRows<Shape::kM> x(rows_from(args.x, token), count, args.gather,
                         args.block_column + args.block_begin[row]);
  const Rows values{args.values + begin, count, height, count};
  AlongRows<Shape::kN> weight(rows_from(values, first), count, {}, nullptr);
  const ResultPart part{token, output + first, args.x.rows - token, height - first};
  const float* const sums =
      multiply_tile<kHalf, Shape>(x, weight, tiles_across(count, kDepth), part);
  finish_tile<Shape>(args.y, args.aligned, part, sums);
}

struct Transposed {
  Rows dy;
  const uint16_t* values;
  BlockColumns columns;
  int64_t cols;  ///< columns of W
  int height, width;
  Gather gather;
  ProductResult dx;
  bool aligned;  ///< dx.aligned()
};

template <DType kHalf, class Shape>
__global__ void __launch_bounds__(kTileThreads, Shape::kResident) transposed_tile(Transposed args) {
  const int parts = tiles_across(args.width, Shape::kN);
  const auto column = static_cast<int>(blockIdx.x) / parts;  // column of blocks
  const int first = static_cast<int>(blockIdx.x) % parts * Shape::kN;
  const int64_t output = int64_t{column} * args.width;
  const int64_t width = least(args.width, args.cols - output);
  if (first >= width) {
    return;
  }
  const int64_t token = int64_t{blockIdx.y} * Shape::kM;
  const int64_t list = column * args.columns.most;
  const int32_t* const rows = args.columns.rows + list;
  const int count = args.columns.count[column] * args.height;
  AlongRows<Shape::kM> dy(rows_from(args.dy, token), count, args.gather, rows);
  AcrossBlocks<Shape::kN> weight({.values = args.values,
                                  .pieces = args.columns.pieces + list,
                                  .rows = rows,
                                  .height = args.height,
                                  .edge = args.dy.columns,
                                  .count = count},
                                 args.gather, first, width);
  const ResultPart part{token, output + first, args.dy.rows - token, width - first};
  const float* const sums =
      multiply_tile<kHalf, Shape>(dy, weight, tiles_across(count, kDepth), part);
  finish_tile<Shape>(args.dx, args.aligned, part, sums);
}

/// Rows (or columns) of blocks, and their extent.
struct Lines {
  int64_t count, extent;
};

/// Calls `with` with the tile shape for so many tokens and lines.
template <class With>
void choose_tile(int64_t tokens, const Lines& lines, const With& with) {
  const auto choose = [&](auto large, auto small) {
    using Large = decltype(large);
    const int64_t tiles =
        divide_up(tokens, Large::kM) * lines.count * divide_up(lines.extent, Large::kN);
    if (tiles >= kManyTiles) {
      with(large);
    } else {
      with(small);
    }
  };
  if (lines.extent <= 32) {
    choose(TallTile32{}, SmallTile32{});
  } else if (lines.extent <= 64) {
    choose(TallTile64{}, SmallTile64{});
  } else {
    choose(WideTile{}, SmallTile64{});
  }
}

/// Launches kernel_of(HalfType of `input`, tile shape).
template <class Args, class KernelOf>
void launch_tiles(const char* name, Stream& stream, const Tensor& input, const Lines& lines,
                  const Args& args, const KernelOf& kernel_of) {
  choose_tile(input.rows(), lines, [&](auto chosen) {
    using Shape = decltype(chosen);
    const int64_t parts = lines.count * tiles_across(static_cast<int>(lines.extent), Shape::kN);
    const Launch shape{.name = name,
                       .grid = dim3(blocks_for(parts, 1), blocks_for(input.rows(), Shape::kM)),
                       .block = kTileThreads,
                       .shared_bytes = Shape::kSharedBytes};
    with_half(input.dtype,
              [&](auto half) { launch(kernel_of(half, chosen), shape, stream, args); });
  });
}

void multiply(Stream& stream, const BlockSpmmArgs& args) {
  const BlockMatrix& weight = args.weight;
  Forward forward{.x = rows_of(args.x),
                  .values = half_data(weight.values),
                  .block_begin = weight.block_begin,
                  .value_begin = weight.value_begin,
                  .block_column = weight.block_column,
                  .rows = weight.rows,
                  .height = static_cast<int>(weight.height),
                  .gather = Gather(weight.width),
                  .y = {.y = elements(args.y),
                        .activated = elements(args.activated),
                        .y_stride = args.y.stride,
                        .activated_stride = args.activated.stride,
                        .bias = static_cast<const float*>(args.bias.data),
                        .activation = args.activation,
                        .accumulate = args.accumulate}};
  forward.aligned = forward.y.aligned();
  launch_tiles(
      "block_spmm", stream, args.x, {divide_up(weight.rows, weight.height), weight.height}, forward,
      [](auto half, auto shape) { return forward_tile<decltype(half)::value, decltype(shape)>; });
}

void multiply_transposed(Stream& stream, const BlockSpmmTransposedArgs& args) {
  const BlockMatrix& weight = args.weight;
  Transposed transposed{
      .dy = rows_of(args.dy),
      .values = half_data(weight.values),
      .columns = columns_of(stream, weight, stream.workspace(columns_bytes(weight))),
      .cols = weight.cols,
      .height = static_cast<int>(weight.height),
      .width = static_cast<int>(weight.width),
      .gather = Gather(weight.height),
      .dx = {.y = elements(args.dx),
             .before = elements(args.preactivation),
             .y_stride = args.dx.stride,
             .before_stride = args.preactivation.stride,
             .activation = args.activation,
             .accumulate = args.accumulate}};
  transposed.aligned = transposed.dx.aligned();
  launch_tiles("block_spmm_transposed", stream, args.dy,
               {divide_up(weight.cols, weight.width), weight.width}, transposed,
               [](auto half, auto shape) {
                 return transposed_tile<decltype(half)::value, decltype(shape)>;
               });
}

/// The epilogue computes an activation with the 8 warps that a tile leaves an SM, a pass of its own
/// with eight times as many: H200, 65,536 x 3,072 in bf16, GELU's slope in 0.9 ms beside a product,
/// and in 0.3 alone. A pass needs whole arrays.
bool passes_alone(const Tensor& product, const Tensor& other) {
  return other && product.contiguous() && other.contiguous();
}

}  // namespace

void block_spmm(Stream& stream, const BlockSpmmArgs& args) {
  if (in_tiles(args.weight) && values_in_pieces(args.weight) && in_pieces(args.x)) {
    BlockSpmmArgs product = args;
    const bool pass = passes_alone(args.y, args.activated);
    product.activated = pass ? Tensor{} : args.activated;
    multiply(stream, product);
    if (pass) {
      activation(stream, {.kind = args.activation, .x = args.y, .y = args.activated});
    }
  } else {
    block_spmm_by_rows(stream, args);
  }
}

void block_spmm_transposed(Stream& stream, const BlockSpmmTransposedArgs& args) {
  const bool whole = args.weight.rows % 8 == 0;
  if (in_tiles(args.weight) && values_in_pieces(args.weight) && in_pieces(args.dy) && whole) {
    BlockSpmmTransposedArgs product = args;
    const bool pass = !args.accumulate && passes_alone(args.dx, args.preactivation);
    product.preactivation = pass ? Tensor{} : args.preactivation;
    multiply_transposed(stream, product);
    if (pass) {
      activation_backward(
          stream, {.kind = args.activation, .dy = args.dx, .x = args.preactivation, .dx = args.dx});
    }
  } else {
    block_spmm_transposed_by_rows(stream, args);
  }
}

}  // namespace espalier::kernels::ESPALIER_GPU
