// The gradient of a weight of blocks on tensor cores. For one row of blocks it is a dense product:
// dy's columns of that row, transposed, times the kept blocks' columns of x side by side. The
// result has the order in which values are stored. A block of threads computes one tile (tile.h)
// and loops over tokens. If there are few tiles, tokens are also divided into parts: the sums of
// each part go to the workspace and are added in order.
//
// Cost of a call, with f of N x K kept in blocks of height x width and R tokens:
//   flops    2 R f N K
//   memory   2 (R (K + N) + f N K) bytes; tiles read the same tokens at the same time
//   L2       2 R f N K (1 / kM + 1 / kN) bytes
// Example: N = K = 4096, f = 0.1, 64 x 64, R = 8192, by an H100's data sheet:
// - 27.5 GFlop: 28 us
// - 137 MB of memory: 41 us
// - with tiles of 64 x 256, 0.54 GB from L2, and 1.40 GB in and out of shared memory: 47 us, or
//   more if the kept columns of a row do not fill whole tiles
#include "src/kernels/cuda/block/finish.h"
#include "src/kernels/cuda/block/products.h"
#include "src/kernels/cuda/elementwise/elementwise.h"
#include "src/kernels/cuda/table.h"

namespace espalier::kernels::ESPALIER_GPU {
namespace {

constexpr int64_t kMinTokens = 256;  ///< tokens of a part
constexpr int64_t kFewColumns = 96;  ///< kept columns of a row, on average, for a small tile

struct Gradient {
  Rows dy, x;
  const int32_t *block_begin, *value_begin, *block_column;
  int64_t tokens;  ///< tokens of a part
  int64_t kept;
  int height;
  Gather gather;
  ProductResult values;  ///< with several parts: fp32 sums, one array per part
};

template <DType kHalf, class Shape>
__global__ void __launch_bounds__(kTileThreads, Shape::kResident) gradient_tile(Gradient args) {
  const int parts = tiles_across(args.height, Shape::kM);
  const auto row = static_cast<int>(blockIdx.x) / parts;  // row of blocks
  const int first = static_cast<int>(blockIdx.x) % parts * Shape::kM;
  const int64_t output = int64_t{row} * args.height;
  const auto height = static_cast<int>(least(args.height, args.dy.columns - output));
  const int32_t begin = args.value_begin[row];
  const int count = (args.value_begin[row + 1] - begin) / height;
  const int column = static_cast<int>(blockIdx.y) * Shape::kN;
  if (first >= height || column >= count) {
    return;
  }
  const int64_t token = blockIdx.z * args.tokens;
  const int64_t tokens = least(args.tokens, args.dy.rows - token);
  const auto part_of = [&](const Rows& rows) {
    return Rows{rows.data + token * rows.stride, rows.stride, tokens, rows.columns};
  };
  using Left = AcrossRows<Shape::kM>;
  using Right = AcrossRows<Shape::kN>;
  Rows dy = part_of(args.dy);
  dy.columns = output + height;
  Left left(dy, output + first + Left::Lines::column());
  const int k = column + Right::Lines::column();
  const int32_t* const blocks = args.block_column + args.block_begin[row];
  Right right(part_of(args.x),
              k < count ? args.gather.place(blocks, static_cast<uint32_t>(k)) : args.x.columns);
  const ResultPart part{first, column, height - first, count - column};
  const auto steps = static_cast<int>((tokens + kDepth - 1) / kDepth);
  const float* const sums = multiply_tile<kHalf, Shape>(left, right, steps, part);
  ProductResult values = args.values;
  values.y_stride = count;
  const int64_t at = blockIdx.z * args.kept + begin;
  values.y = elements_from(values.y, at);
  finish_tile<Shape>(values, false, part, sums);  // rows of kept values begin anywhere
}

/// values (+)= the sum of the parts, added in order.
struct AddParts {
  struct Loaded {
    Quad sum;
  };
  const float* sums;
  int parts;
  int64_t kept;
  Elements values;
  bool accumulate;

  bool aligned() const { return has_whole_quads(sums) && kept % 4 == 0 && has_whole_quads(values); }
  template <bool kWhole>
  __device__ __forceinline__ Loaded load(int64_t i, int64_t count) const {
    Loaded loaded{load_quad<kWhole>(sums, i, count)};
#pragma unroll 4
    for (int part = 1; part < parts; ++part) {
      add(loaded.sum, load_quad<kWhole>(sums + part * kept, i, count));
    }
    return loaded;
  }
  template <bool kWhole>
  __device__ __forceinline__ void store(int64_t i, int64_t count, Loaded loaded) const {
    if (accumulate) {
      add(loaded.sum, load_quad<kWhole>(values, i, count));
    }
    store_quad<kWhole>(values, i, count, loaded.sum);
  }
};

/// Calls `with` with the tile shape for this matrix, chosen by its density and the height of its
/// blocks.
template <class With>
void choose_tile(const BlockMatrix& weight, const With& with) {
  if (weight.values.count() <= kFewColumns * weight.rows) {
    with(SmallTile64{});
  } else if (weight.height <= 32) {
    with(FlatTile32{});
  } else if (weight.height <= 64) {
    with(FlatTile64{});
  } else {
    with(WideTile{});
  }
}

/// Division of tokens into parts: `each` tokens in all but the last.
struct Parts {
  int64_t each, count;
};
Parts share_tokens(int64_t tokens, int64_t tiles) {
  const int64_t wanted = std::max<int64_t>(1, std::min(kManyTiles / tiles, tokens / kMinTokens));
  const int64_t each = divide_up(divide_up(std::max<int64_t>(tokens, 1), wanted), kDepth) * kDepth;
  return {each, std::max<int64_t>(1, divide_up(tokens, each))};
}

template <class Shape>
void multiply(Stream& stream, const BlockSddmmArgs& args) {
  const BlockMatrix& weight = args.weight;
  const int64_t kept = weight.values.count();
  const int64_t lines = divide_up(weight.rows, weight.height);
  const int64_t down = tiles_across(static_cast<int>(weight.height), Shape::kM);
  // Estimate for equal rows: the host does not know the rows' own counts.
  const int64_t tiles = lines * down * divide_up(divide_up(kept, weight.rows), Shape::kN);
  const auto [each, parts] = share_tokens(args.x.rows(), tiles);
  auto* const sums = reinterpret_cast<float*>(
      parts > 1 ? stream.workspace(static_cast<size_t>(parts * kept) * sizeof(float)) : nullptr);
  const Elements parts_of_sums{sums, DType::fp32};
  const Gradient gradient{.dy = rows_of(args.dy),
                          .x = rows_of(args.x),
                          .block_begin = weight.block_begin,
                          .value_begin = weight.value_begin,
                          .block_column = weight.block_column,
                          .tokens = each,
                          .kept = kept,
                          .height = static_cast<int>(weight.height),
                          .gather = Gather(weight.width),
                          .values = {.y = parts > 1 ? parts_of_sums : elements(weight.values),
                                     .accumulate = args.accumulate && parts == 1}};
  with_half(args.x.dtype, [&](auto half) {
    launch(gradient_tile<decltype(half)::value, Shape>,
           {.name = "block_sddmm",
            .grid = dim3(blocks_for(lines * down, 1), blocks_for(weight.cols, Shape::kN),
                         blocks_for(parts, 1)),
            .block = kTileThreads,
            .shared_bytes = Shape::kSharedBytes},
           stream, gradient);
  });
  if (parts > 1) {
    for_each_quad(
        "add_parts", stream,
        AddParts{sums, static_cast<int>(parts), kept, elements(weight.values), args.accumulate},
        kept);
  }
}

}  // namespace

void block_sddmm(Stream& stream, const BlockSddmmArgs& args) {
  if (args.weight.values.count() == 0) {
    return;
  }
  if (in_tiles(args.weight) && in_pieces(args.dy) && in_pieces(args.x)) {
    choose_tile(args.weight, [&](auto shape) { multiply<decltype(shape)>(stream, args); });
  } else {
    block_sddmm_by_rows(stream, args);
  }
}

}  // namespace espalier::kernels::ESPALIER_GPU
