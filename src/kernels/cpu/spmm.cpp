// y = x Wᵀ and dx = dy W for unstructured W: one engine. In the tiled form (sparse_tile.h) of W, or
// of its transpose, each output row of a block of tokens is a few vector registers, to which every
// kept element adds (its value, in all lanes) times (a packed row of activations, from L1):
// one load for each fused multiply-add, which is all that a core can do at full speed.
//
// For each block of kTokens tokens: pack its activations (features x tokens); for each band of
// output rows that fits the L2 cache, go over the panels, adding up in the band; then transpose the
// band back, with bias, activation and rounding on the way. Threads share out the blocks of tokens.
#include <cstring>

#include "src/kernels/cpu/activation.h"
#include "src/kernels/cpu/sparse_pack.h"
#include "src/kernels/cpu/sparse_tile.h"
#include "src/kernels/cpu/support.h"
#include "src/kernels/cpu/table.h"
#include "src/kernels/verify.h"

namespace espalier::kernels::ESPALIER_ISA {
namespace {

constexpr int kVectors = kLanes == 16 ? 4 : 8;  ///< of tokens, for one output row
constexpr int kTokens = kVectors * kLanes;
constexpr int64_t kBandBytes = 512 * 1024;  ///< of L2 for output rows

/// y[r] += values * x[columns] for R rows of `count` elements each, which follow each other.
template <int R>
[[gnu::always_inline]] inline void add_rows(const float* values, const uint8_t* columns,
                                            int64_t count, const float* x, float* const (&y)[R]) {
  Vector sum[R][kVectors];
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < kVectors; ++v) {
      sum[r][v] = read_vector(y[r] + v * kLanes);
    }
  }
  for (int64_t e = 0; e < count; ++e) {
    for (int r = 0; r < R; ++r) {
      const float value = values[r * count + e];
      const float* from = x + int64_t{columns[r * count + e]} * kTokens;
      for (int v = 0; v < kVectors; ++v) {
        sum[r][v] += value * read_vector(from + v * kLanes);
      }
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < kVectors; ++v) {
      write_vector(y[r] + v * kLanes, sum[r][v]);
    }
  }
}

/// band += the product of one tile with its panel of packed activations.
void add_tile(const Tiles& tiles, int64_t tile, const float* x, float* band) {
  constexpr int kTogether = kLanes == 16 ? 2 : 1;
  const float* values = tiles.values + tiles.first[tile];
  const uint8_t* columns = tiles.columns + tiles.first[tile];
  const uint16_t* order = tiles.order + tile * tiles.block_rows;
  for (const Run* run = tiles.runs + tile * (kPanel + 1); run->rows > 0; ++run) {
    const int64_t count = run->count;
    int64_t left = run->rows;
    if constexpr (kTogether == 2) {
      for (; left >= 2; left -= 2, order += 2) {
        add_rows<2>(values, columns, count, x,
                    {band + order[0] * kTokens, band + order[1] * kTokens});
        values += 2 * count;
        columns += 2 * count;
      }
    }
    for (; left > 0; --left, ++order) {
      add_rows<1>(values, columns, count, x, {band + order[0] * kTokens});
      values += count;
      columns += count;
    }
  }
}

/// What becomes of a product on its way out.
struct Epilogue {
  const float* bias = nullptr;
  Activation activation = Activation::none;
  Tensor out;
  Tensor activated;      ///< = f(out)
  Tensor preactivation;  ///< product *= f'(preactivation)
  bool accumulate = false;
};

template <class F>
[[gnu::always_inline]] inline Vector value_of(Vector x) {
  float lanes[kLanes];
  write_vector(lanes, x);
  for (float& lane : lanes) {
    lane = F::value(lane);
  }
  return read_vector(lanes);
}
template <class F>
[[gnu::always_inline]] inline Vector slope_of(Vector x) {
  float lanes[kLanes];
  write_vector(lanes, x);
  for (float& lane : lanes) {
    lane = F::slope(lane);
  }
  return read_vector(lanes);
}

/// Part of one row of the result: n <= kLanes features of a token.
template <class F, class In, class Out>
[[gnu::always_inline]] inline void put_out(const Epilogue& e, int64_t token, int64_t feature,
                                           Vector v, int64_t n) {
  Out* out = row_of<Out>(e.out, token) + feature;
  if (e.preactivation) {
    v *= slope_of<F>(read_vector(row_of<In>(e.preactivation, token) + feature, n));
  }
  if (e.bias != nullptr) {
    v += read_vector(e.bias + feature, n);
  }
  if (e.accumulate) {
    v += read_vector(out, n);
  }
  write_vector(out, v, n);
  if (e.activated) {
    write_vector(row_of<In>(e.activated, token) + feature, value_of<F>(v), n);
  }
}

/// Transposes `features` rows of the band out to `tokens` rows of the result.
template <class F, class In, class Out>
void put_band(const Epilogue& e, const float* band, int64_t token, int64_t tokens, int64_t feature,
              int64_t features) {
  for (int64_t t = 0; t < tokens; t += kLanes) {
    const int64_t height = least(kLanes, tokens - t);
    for (int64_t f = 0; f < features; f += kLanes) {
      const int64_t width = least(kLanes, features - f);
      Vector square[kLanes];
      for (int64_t i = 0; i < kLanes; ++i) {
        square[i] = i < width ? read_vector(band + (f + i) * kTokens + t) : Vector{};
      }
      transpose(square);
      if (width == kLanes) {
        for (int64_t i = 0; i < height; ++i) {
          put_out<F, In, Out>(e, token + t + i, feature + f, square[i], kLanes);
        }
      } else {
        for (int64_t i = 0; i < height; ++i) {
          put_out<F, In, Out>(e, token + t + i, feature + f, square[i], width);
        }
      }
    }
  }
}

/// The engine for one element type of the inputs and of the result.
template <class F, class In, class Out>
void multiply(Stream& stream, const Tiles& tiles, const Tensor& x, const Epilogue& epilogue,
              std::byte* memory, size_t memory_each) {
  const int64_t band_blocks = most(1, kBandBytes / (kTokens * 4) / most(1, tiles.block_rows));
  const int64_t band_rows = band_blocks * tiles.block_rows;
  const int64_t tokens = x.rows();
  for_blocks(stream.threads(), divide_up(tokens, kTokens), tokens * tiles.rows, [&](int64_t block) {
    const int64_t token = block * kTokens;
    auto* packed =
        reinterpret_cast<float*>(memory + memory_each * static_cast<size_t>(thread_index()));
    float* band = packed + tiles.cols * kTokens;
    pack_tokens<In>(x, token, kTokens, 0, tiles.cols, packed);
    for (int64_t first = 0; first < tiles.blocks; first += band_blocks) {
      const int64_t end = least(tiles.blocks, first + band_blocks);
      const int64_t row0 = first * tiles.block_rows;
      const int64_t rows = least(band_rows, tiles.rows - row0);
      std::memset(band, 0, static_cast<size_t>(rows * kTokens) * sizeof(float));
      for (int64_t panel = 0; panel < tiles.panels; ++panel) {
        for (int64_t b = first; b < end; ++b) {
          add_tile(tiles, tiles.at(b, panel), packed + panel * kPanel * kTokens,
                   band + (b - first) * tiles.block_rows * kTokens);
        }
      }
      put_band<F, In, Out>(epilogue, band, token, least(kTokens, tokens - token), row0, rows);
    }
  });
}

void product(Stream& stream, const SparseMatrix& weight, TileUse use, const Tensor& x,
             const Epilogue& epilogue) {
  const int threads = stream.threads();
  if (x.rows() == 0 || epilogue.out.cols() == 0) {
    return;
  }
  const auto carve = [&](Carver& carver, size_t& each, std::byte*& memory) {
    TileMemory tiles = carve_tiles(carver, weight, use, threads);
    Carver part;
    const int64_t band = most(kBandBytes / (kTokens * 4), tiles.tiles.block_rows);
    part.take<float>((tiles.tiles.cols + band) * kTokens);
    each = part.used;
    memory = carver.take<std::byte>(static_cast<int64_t>(each) * threads);
    return tiles;
  };
  Carver sizes;
  size_t each = 0;
  std::byte* memory = nullptr;
  carve(sizes, each, memory);
  Carver carver{cpu::workspace(stream, sizes.used)};
  TileMemory tiles = carve(carver, each, memory);
  make_tiles(tiles, weight, use, threads);
  with_function(epilogue.activation, [&](auto function) {
    using F = decltype(function);
    if (x.dtype == DType::fp32) {
      multiply<F, float, float>(stream, tiles.tiles, x, epilogue, memory, each);
    } else if (epilogue.out.dtype == DType::bf16) {
      multiply<F, bf16, bf16>(stream, tiles.tiles, x, epilogue, memory, each);
    } else {
      multiply<F, bf16, float>(stream, tiles.tiles, x, epilogue, memory, each);
    }
  });
}

}  // namespace

void spmm(Stream& stream, const SpmmArgs& args) {
  verify(args);
  product(stream, args.weight, TileUse::product, args.x,
          {.bias = elements<const float>(args.bias),
           .activation = args.activation,
           .out = args.y,
           .activated = args.activated,
           .accumulate = args.accumulate});
}

void spmm_transposed(Stream& stream, const SpmmTransposedArgs& args) {
  verify(args);
  product(stream, args.weight, TileUse::transposed, args.dy,
          {.activation = args.activation,
           .out = args.dx,
           .preactivation = args.preactivation,
           .accumulate = args.accumulate});
}

}  // namespace espalier::kernels::ESPALIER_ISA
