// Products with a BlockMatrix. Outputs are vector lanes, tokens are rows of a tile. Weights are
// packed once per call into panels, which all tokens read; activations are read in place. Threads
// split tiles of tokens, which are small enough for their activations to stay in L2.
#include "src/kernels/cpu/block/panel.h"
#include "src/kernels/cpu/elementwise/activation.h"
#include "src/kernels/cpu/simd/loops.h"
#include "src/kernels/cpu/support.h"
#include "src/kernels/cpu/table.h"

namespace espalier::kernels::ESPALIER_ISA {
namespace {

constexpr int64_t kTileBytes = 256 << 10;  ///< activations of a tile of tokens: half of an L2 cache
constexpr int64_t kMaxTokens = 128;        ///< of a tile: multiples of kThinRows
constexpr int64_t kLine = 64;

/// Rows of activations as read by the tiles.
struct Inputs {
  const Tensor& x;
  Words words = Words::fp32;
  int64_t tokens = 0;     ///< tokens of a tile
  int64_t row_bytes = 0;  ///< bytes of a row in a copy of the tile
  bool copied = false;    ///< copies all tiles, not only those whose rows do not fill the shapes
  std::byte* copies = nullptr;  ///< [threads][tokens][row_bytes]

  int64_t tile_bytes() const { return tokens * row_bytes; }
  int64_t element_bytes() const { return x.dtype == DType::fp32 ? 4 : 2; }
  const std::byte* row(int64_t token) const {
    return elements<std::byte>(x) + token * x.stride * element_bytes();
  }
};

Inputs inputs_of(const Tensor& x, Words words, int threads) {
  Inputs inputs{.x = x, .words = words};
  const int64_t bytes = x.cols() * (words == Words::pairs ? 2 : 4);
  // An odd number of cache lines, so that rows do not map to the same sets of a cache.
  inputs.row_bytes = (divide_up(bytes, kLine) | 1) * kLine;
  const int64_t fitting = least(kMaxTokens, kTileBytes / inputs.row_bytes);
  const int64_t share = divide_up(x.rows(), 4 * int64_t{threads});
  inputs.tokens = most(1, least(fitting, share) / kThinRows) * kThinRows;
  inputs.copied = is_widened(words);
  return inputs;
}

/// Copies rows [first, first + n); rows beyond them are not set: their sums are unused.
void copy_rows(const Inputs& inputs, int64_t first, int64_t n, std::byte* to) {
  for (int64_t t = 0; t < n; ++t, to += inputs.row_bytes) {
    const std::byte* from = inputs.row(first + t);
    if (inputs.copied) {
      with_words(inputs.words, [&](auto kind) {
        pack_words<decltype(kind)::value>(from, nullptr, inputs.x.cols(),
                                          reinterpret_cast<uint32_t*>(to));
      });
    } else {
      __builtin_memcpy(to, from, static_cast<size_t>(inputs.x.cols() * inputs.element_bytes()));
    }
  }
}

/// The epilogue of a strip: stores the complete sums [rows][lanes] of the rows from `row` on. It is
/// a function pointer, so that the product is compiled once, not for each activation and type.
struct Finish {
  const void* args;
  void (*finish)(const void* args, const cpu::BlockStrip& strip, int64_t row, int64_t rows,
                 float* sums);

  void operator()(const cpu::BlockStrip& strip, int64_t row, int64_t rows, float* sums) const {
    finish(args, strip, row, rows, sums);
  }
};

/// Computes all strips for tokens [first, first + n).
void multiply_tokens(const cpu::BlockPlan& plan, const Inputs& inputs, int64_t first, int64_t n,
                     const Finish& finish) {
  alignas(64) float sums[kWideRows * cpu::kWideStrip];
  const BlockTiles tiles = inputs.words == Words::pairs ? pair_tiles() : fp32_tiles();
  BlockTile tile{
      .a = inputs.row(first), .stride = inputs.x.stride * inputs.element_bytes(), .sums = sums};
  if (inputs.copied || n % kThinRows != 0) {
    std::byte* copy = inputs.copies + thread_index() * inputs.tile_bytes();
    copy_rows(inputs, first, n, copy);
    tile.a = copy;
    tile.stride = inputs.row_bytes;
  }
  const std::byte* begin = tile.a;
  // Thin strips make half as many tiles; hardware prefetchers then load the rest of the region.
  Prefetcher prefetcher(
      {inputs.x, first + inputs.tokens, inputs.tokens, 0, inputs.x.cols()},
      plan.strip_count *
          divide_up(n, plan.strips[0].lanes == cpu::kWideStrip ? kWideRows : kThinRows));
  for (int64_t s = 0; s < plan.strip_count; ++s) {
    const cpu::BlockStrip& strip = plan.strips[s];
    const bool wide = strip.lanes == cpu::kWideStrip;
    const int64_t step = wide ? kWideRows : kThinRows;
    tile.offsets = plan.offsets + strip.offsets;
    tile.words = strip.words;
    tile.b = reinterpret_cast<const std::byte*>(plan.panels + strip.panel);
    tile.step = strip.lanes * int64_t{sizeof(uint32_t)};
    for (int64_t t = 0; t < n; t += step) {
      tile.a = begin + t * tile.stride;
      prefetcher.next();
      wide ? tiles.wide(tile) : tiles.thin(tile);
      finish(strip, first + t, least(step, n - t), sums);
    }
  }
}

/// The whole product: calls finish(strip, first token, tokens, sums [tokens][lanes]) with all sums.
void multiply(Stream& stream, const BlockMatrix& weight, const Tensor& x, bool transposed,
              const Finish& finish) {
  const bool even = transposed ? weight.height % 2 == 0 && weight.rows % 2 == 0
                               : weight.width % 2 == 0 && weight.cols % 2 == 0;
  Inputs inputs = inputs_of(x, words_of(x.dtype, even), stream.threads());
  const bool pairs = inputs.words == Words::pairs;
  const cpu::BlockPlan plan = cpu::plan_blocks(
      stream, weight,
      {.transposed = transposed,
       .pairs = pairs,
       .element_bytes = pairs ? 2 : 4,
       .extra_bytes = static_cast<size_t>(stream.threads() * inputs.tile_bytes())});
  if (cpu::is_dry(stream)) {
    return;
  }
  inputs.copies = plan.extra;
  const int64_t kept = weight.values.count();
  for_blocks(stream.threads(), plan.strip_count, kept, [&](int64_t s) {
    transposed ? pack_strip_transposed(weight, plan, plan.strips[s], inputs.words)
               : pack_strip(weight, plan, plan.strips[s], inputs.words);
  });
  const int64_t work = x.rows() * (kept / kThinRows + weight.rows + weight.cols);
  for_blocks(stream.threads(), divide_up(x.rows(), inputs.tokens), work, [&](int64_t i) {
    const int64_t first = i * inputs.tokens;
    multiply_tokens(plan, inputs, first, least(inputs.tokens, x.rows() - first), finish);
  });
}

/// One row of y = sums + bias (+ y), activated = f(y).
template <class F, class In, class Out>
struct Apply {
  const BlockSpmmArgs& args;
  [[gnu::always_inline]] void operator()(int64_t row, int64_t first, int64_t n, float* sums) const {
    Out* y = row_of<Out>(args.y, row) + first;
    if (args.bias) {
      const float* bias = elements<float>(args.bias) + first;
#pragma omp simd
      for (int64_t c = 0; c < n; ++c) {
        sums[c] += bias[c];
      }
    }
    if (args.accumulate) {
#pragma omp simd
      for (int64_t c = 0; c < n; ++c) {
        sums[c] += load(y + c);
      }
    }
#pragma omp simd
    for (int64_t c = 0; c < n; ++c) {
      store(y + c, sums[c]);
    }
    if (args.activated) {
      In* activated = row_of<In>(args.activated, row) + first;
#pragma omp simd
      for (int64_t c = 0; c < n; ++c) {
        store(activated + c, F::value(load(y + c)));
      }
    }
  }
};

/// One row of dx = sums f'(preactivation) (+ dx).
template <class F, class In, class Out>
struct ApplyTransposed {
  const BlockSpmmTransposedArgs& args;
  [[gnu::always_inline]] void operator()(int64_t row, int64_t first, int64_t n, float* sums) const {
    Out* dx = row_of<Out>(args.dx, row) + first;
    if (args.preactivation) {
      const In* before = row_of<In>(args.preactivation, row) + first;
#pragma omp simd
      for (int64_t c = 0; c < n; ++c) {
        sums[c] *= F::slope(load(before + c));
      }
    }
    if (args.accumulate) {
#pragma omp simd
      for (int64_t c = 0; c < n; ++c) {
        sums[c] += load(dx + c);
      }
    }
#pragma omp simd
    for (int64_t c = 0; c < n; ++c) {
      store(dx + c, sums[c]);
    }
  }
};

/// Row's function for each row of a strip.
template <class Row, class Args>
void finish_rows(const void* args, const cpu::BlockStrip& strip, int64_t row, int64_t rows,
                 float* sums) {
  const Row finish_row{*static_cast<const Args*>(args)};
  with_count(strip.count, [&](int64_t count) {
    for (int64_t i = 0; i < rows; ++i) {
      finish_row(row + i, strip.first, count, sums + i * strip.lanes);
    }
  });
}

/// Row's function for these types and this activation; `args` must outlive it.
template <template <class, class, class> class Row, class Args>
Finish finish_of(const Args& args, const Tensor& in, const Tensor& out) {
  Finish made{.args = &args, .finish = nullptr};
  with_function(args.activation, [&](auto function) {
    with_type(in.dtype, [&](auto in_type) {
      with_type_beside<decltype(in_type)>(out.dtype, [&](auto out_type) {
        made.finish =
            finish_rows<Row<decltype(function), decltype(in_type), decltype(out_type)>, Args>;
      });
    });
  });
  return made;
}

}  // namespace

void block_spmm(Stream& stream, const BlockSpmmArgs& args) {
  multiply(stream, args.weight, args.x, false, finish_of<Apply>(args, args.x, args.y));
}

void block_spmm_transposed(Stream& stream, const BlockSpmmTransposedArgs& args) {
  multiply(stream, args.weight, args.dy, true, finish_of<ApplyTransposed>(args, args.dy, args.dx));
}

}  // namespace espalier::kernels::ESPALIER_ISA
