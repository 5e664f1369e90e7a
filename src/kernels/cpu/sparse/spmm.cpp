// y = x Wᵀ and dx = dy W for unstructured W, by the same code, with the tiled form (tile.h) of W or
// of its transpose. An output row of a block of tokens is a few vector registers. For every kept
// element, its value, in all lanes, times a packed row of activations, from L1, is added: one load
// per fused multiply-add, the most that a core sustains at full speed.
//
// For each block of kTokens tokens:
//   - pack its activations (features x tokens)
//   - for each band of output rows that fits the L2 cache, accumulate in the band over all panels
//   - transpose the band into the result, with bias, activation and rounding
// Threads split the blocks of tokens.
#include <cstring>

#include "src/kernels/cpu/elementwise/activation.h"
#include "src/kernels/cpu/sparse/tile_kernels.h"
#include "src/kernels/cpu/support.h"
#include "src/kernels/cpu/table.h"

namespace espalier::kernels::ESPALIER_ISA {
namespace {

constexpr int64_t kBandBytes = 512 * 1024;  ///< part of L2 for output rows

/// Epilogue of a product.
struct Epilogue {
  const float* bias = nullptr;
  Activation activation = Activation::none;
  Tensor out;
  Tensor activated;      ///< = f(out)
  Tensor preactivation;  ///< product *= f'(preactivation)
  bool accumulate = false;
};

/// f of each lane.
template <class F>
[[gnu::always_inline]] inline Vector each_lane(Vector x, const F& f) {
  float lanes[kLanes];
  write_vector(lanes, x);
  for (float& lane : lanes) {
    lane = f(lane);
  }
  return read_vector(lanes);
}

/// Part of one row of the result: n <= kLanes features of a token.
template <class F, class In, class Out>
[[gnu::always_inline]] inline void put_out(const Epilogue& e, int64_t token, int64_t feature,
                                           Vector v, int64_t n) {
  Out* out = row_of<Out>(e.out, token) + feature;
  if (e.preactivation) {
    v *= each_lane(read_vector(row_of<In>(e.preactivation, token) + feature, n),
                   [](float x) { return F::slope(x); });
  }
  if (e.bias != nullptr) {
    v += read_vector(e.bias + feature, n);
  }
  if (e.accumulate) {
    v += read_vector(out, n);
  }
  write_vector(out, v, n);
  if (e.activated) {
    write_vector(row_of<In>(e.activated, token) + feature,
                 each_lane(read_vector(out, n), [](float y) { return F::value(y); }), n);
  }
}

/// A part of the result: tokens x features; the band holds `row` floats per feature.
struct Place {
  int64_t token, tokens, feature, features;
  int64_t lane_tokens, row;
};

/// Transposes the band into the result's rows.
template <class F, class In, class Out>
void put_band(const Epilogue& e, const float* band, const Place& p) {
  for (int64_t lane = 0; lane < p.row; lane += kLanes) {
    // See SparseKernels::add_tile: even tokens come first.
    const int64_t part = lane / kLanes % p.lane_tokens;
    const int64_t first = lane - part * kLanes + part;
    const int64_t height = least(kLanes, divide_up(most(0, p.tokens - first), p.lane_tokens));
    for (int64_t f = 0; f < p.features; f += kLanes) {
      const int64_t width = least(kLanes, p.features - f);
      Vector square[kLanes];
      for (int64_t i = 0; i < kLanes; ++i) {
        square[i] = i < width ? read_vector(band + (f + i) * p.row + lane) : Vector{};
      }
      transpose(square);
      for (int64_t i = 0; i < height; ++i) {
        const int64_t token = p.token + first + i * p.lane_tokens;
        if (width == kLanes) {
          put_out<F, In, Out>(e, token, p.feature + f, square[i], kLanes);
        } else {
          put_out<F, In, Out>(e, token, p.feature + f, square[i], width);
        }
      }
    }
  }
}

using PutBand = void (*)(const Epilogue& e, const float* band, const Place& p);

template <class F, class In>
PutBand put_band_of_halves(const Epilogue& e) {
  return e.out.dtype == DType::fp32 ? put_band<F, In, float> : put_band<F, In, In>;
}

PutBand put_band_for(const Epilogue& e, DType in) {
  PutBand chosen = nullptr;
  with_function(e.activation, [&](auto function) {
    using F = decltype(function);
    chosen = in == DType::fp32   ? put_band<F, float, float>
             : in == DType::bf16 ? put_band_of_halves<F, bf16>(e)
                                 : put_band_of_halves<F, fp16>(e);
  });
  return chosen;
}

struct Memory {
  TileMemory tiles;
  std::byte* threads = nullptr;  ///< per thread: packed activations, then a band
  size_t each = 0;
  int64_t packed_row = 0;   ///< floats of a packed feature
  int64_t band_row = 0;     ///< floats of one output row
  int64_t band_blocks = 0;  ///< blocks of rows in a band

  float* packed(int thread) const {
    return reinterpret_cast<float*>(threads + each * static_cast<size_t>(thread));
  }
};

Memory carve(Carver& carver, const SparseMatrix& weight, TileUse use, const SparseKernels& kernels,
             int threads) {
  Memory m{.tiles = carve_tiles(carver, weight, use, threads)};
  const Tiles& tiles = m.tiles.tiles;
  m.packed_row = kernels.vectors * kLanes;
  m.band_row = m.packed_row * kernels.lane_tokens;
  m.band_blocks = most(1, kBandBytes / (m.band_row * 4) / most(1, tiles.block_rows));
  Carver part;
  part.take<float>(tiles.cols * m.packed_row);
  part.take<float>(m.band_blocks * tiles.block_rows * m.band_row);
  m.each = part.used;
  m.threads = carver.take<std::byte>(static_cast<int64_t>(m.each) * threads);
  return m;
}

void product(Stream& stream, const SparseMatrix& weight, TileUse use, const Tensor& x,
             const Epilogue& epilogue) {
  const int threads = stream.threads();
  const int64_t tokens = x.rows();
  if (tokens == 0 || epilogue.out.cols() == 0) {
    return;
  }
  const SparseKernels kernels = sparse_kernels(x.dtype, use);
  Carver sizes;
  carve(sizes, weight, use, kernels, threads);
  Carver carver{cpu::workspace(stream, sizes.used)};
  if (cpu::is_dry(stream)) {
    return;
  }
  Memory m = carve(carver, weight, use, kernels, threads);
  make_tiles(m.tiles, weight, use, threads);
  const Tiles& tiles = m.tiles.tiles;
  const PutBand put = put_band_for(epilogue, x.dtype);
  const int64_t step = m.band_row;  // one float of the band per token
  for_blocks(threads, divide_up(tokens, step), tokens * tiles.rows, [&](int64_t block) {
    const int64_t token = block * step;
    float* packed = m.packed(thread_index());
    float* band = packed + divide_up(tiles.cols * m.packed_row, 16) * 16;
    kernels.pack({x, token, 0, tiles.cols}, kernels.vectors, packed);
    for (int64_t first = 0; first < tiles.blocks; first += m.band_blocks) {
      const int64_t end = least(tiles.blocks, first + m.band_blocks);
      const int64_t row0 = first * tiles.block_rows;
      const int64_t rows = least(tiles.rows, end * tiles.block_rows) - row0;
      std::memset(band, 0, static_cast<size_t>(rows * m.band_row) * sizeof(float));
      for (int64_t panel = 0; panel < tiles.panels; ++panel) {
        for (int64_t b = first; b < end; ++b) {
          kernels.add_tile(tiles, tiles.at(b, panel), packed + panel * kPanel * m.packed_row,
                           band + (b - first) * tiles.block_rows * m.band_row);
        }
      }
      put(epilogue, band,
          {token, least(step, tokens - token), row0, rows, kernels.lane_tokens, m.band_row});
    }
  });
}

}  // namespace

void spmm(Stream& stream, const SpmmArgs& args) {
  product(stream, args.weight, TileUse::product, args.x,
          {.bias = elements<const float>(args.bias),
           .activation = args.activation,
           .out = args.y,
           .activated = args.activated,
           .accumulate = args.accumulate});
}

void spmm_transposed(Stream& stream, const SpmmTransposedArgs& args) {
  product(stream, args.weight, TileUse::transposed, args.dy,
          {.activation = args.activation,
           .out = args.dx,
           .preactivation = args.preactivation,
           .accumulate = args.accumulate});
}

}  // namespace espalier::kernels::ESPALIER_ISA
