// The gradient of a BlockMatrix: dyᵀ x over all tokens, for each kept block. Columns of the block
// are vector lanes, its rows are rows of a tile, tokens are the words. For each chunk of tokens, x
// is packed into stripes, one for each column of blocks, as [words][lanes]; fp32 is read in place
// if that is as fast. dy of a row of blocks is packed just before its use, as [words][height].
#include "src/kernels/cpu/block/panel.h"
#include "src/kernels/cpu/simd/loops.h"
#include "src/kernels/cpu/support.h"
#include "src/kernels/cpu/table.h"

namespace espalier::kernels::ESPALIER_ISA {
namespace {

/// Words (tokens, or pairs of them) of a chunk.
constexpr int64_t kChunkWords = 128;
/// Words that one thread packs at a time.
constexpr int64_t kPackWords = 16;
constexpr int64_t kNearBytes = 512 << 10;  ///< half of an L2 cache
constexpr int64_t kWordBytes = sizeof(uint32_t);
/// One cache line between stripes, so that they do not map to the same sets of a cache.
constexpr int64_t kGap = 16;

struct Gradient {
  const BlockSddmmArgs& args;
  Words kind = Words::fp32;
  int64_t lanes = 0;
  int64_t pieces = 0;   ///< pieces of `lanes` columns in a block
  int64_t height = 0;   ///< height of a block, rounded up to whole tiles
  int64_t lines = 0;    ///< rows of blocks
  bool direct = false;  ///< x is read in place
  bool far = false;     ///< x is read in place, and a chunk of it exceeds L2

  uint32_t* x = nullptr;       ///< [columns of blocks][pieces][kChunkWords][lanes]
  uint32_t* dy = nullptr;      ///< [threads][kChunkWords][height]
  int32_t* offsets = nullptr;  ///< bytes from the first word of dy to word k
  float* partial = nullptr;  ///< sums of the chunks so far; the values themselves if they are fp32

  int64_t tokens() const { return kChunkWords * elements_a_word(kind); }
  int64_t tile_rows() const { return lanes == cpu::kWideStrip ? kWideRows : kThinRows; }
  int64_t columns() const { return direct ? 0 : divide_up(args.x.cols(), args.weight.width); }
  int64_t x_words() const { return pieces * lanes * kChunkWords + kGap; }
  int64_t dy_words() const { return height * kChunkWords + kGap; }
};

/// True if tiles of `lanes` columns can read x in place without excess. Rows that map to the same
/// sets of a cache are packed instead.
bool readable(const BlockSddmmArgs& args, int64_t lanes) {
  return args.x.dtype == DType::fp32 && args.weight.width % lanes == 0 &&
         args.weight.cols % args.weight.width == 0 && args.x.stride % 2048 != 0;
}

/// Packs words [k, k + n) of x in the chunk from `token` on, for all columns of blocks.
void pack_x(const Gradient& gradient, int64_t token, int64_t k, int64_t n) {
  const BlockMatrix& weight = gradient.args.weight;
  for (int64_t column = 0; column < gradient.columns(); ++column) {
    const int64_t first = column * weight.width;
    pack_stripe({.from = gradient.args.x,
                 .token = token + k * elements_a_word(gradient.kind),
                 .words = n,
                 .column = first,
                 .columns = least(weight.width, weight.cols - first),
                 .piece = gradient.lanes,
                 .to = gradient.x + column * gradient.x_words() + k * gradient.lanes,
                 .piece_step = gradient.lanes * kChunkWords},
                gradient.kind);
  }
}

/// A block in a chunk of tokens, and the destination of its sums.
struct Target {
  int64_t line = 0, column = 0;  ///< row and column of blocks
  int64_t place = 0;             ///< index of its first element in the values
  int64_t stride = 0;
  int64_t rows = 0, columns = 0;
  int64_t token = 0;  ///< first token of the chunk
  int64_t words = 0;
  bool last = false;  ///< true for the last chunk
};

/// Adds a row of sums to those of earlier chunks; the last chunk rounds them to the values.
template <class T>
[[gnu::always_inline]] inline void add_row(const Gradient& gradient, const Target& target,
                                           int64_t place, int64_t columns, float* sums) {
  T* values = elements<T>(gradient.args.weight.values) + place;
  float* partial = gradient.partial + place;
  if (target.token > 0) {
#pragma omp simd
    for (int64_t c = 0; c < columns; ++c) {
      sums[c] += partial[c];
    }
  } else if (gradient.args.accumulate) {
#pragma omp simd
    for (int64_t c = 0; c < columns; ++c) {
      sums[c] += load(values + c);
    }
  }
  if (target.last) {
#pragma omp simd
    for (int64_t c = 0; c < columns; ++c) {
      store(values + c, sums[c]);
    }
  } else {
#pragma omp simd
    for (int64_t c = 0; c < columns; ++c) {
      partial[c] = sums[c];
    }
  }
}

/// Prefetches during the computation of a row of blocks.
struct Ahead {
  Prefetcher dy, x;
  [[gnu::always_inline]] void next() {
    dy.next();
    x.next();
  }
};

/// Rows of x in the next chunk that this line prefetches.
Region next_rows(const Gradient& gradient, const Target& block) {
  const int64_t first = gradient.tokens() * block.line / gradient.lines;
  const int64_t end = gradient.tokens() * (block.line + 1) / gradient.lines;
  return {gradient.args.x, block.token + gradient.tokens() + first, end - first, 0,
          gradient.args.x.cols()};
}

/// The next part of dy for this thread; its rows are too far apart for hardware prefetchers.
Region next_line(const Gradient& gradient, const Target& block, int threads) {
  const int64_t next = block.line + threads;
  const bool wraps = next >= gradient.lines;
  const int64_t first = (wraps ? next % gradient.lines : next) * gradient.args.weight.height;
  return {gradient.args.dy, block.token + (wraps ? gradient.tokens() : 0), gradient.tokens(), first,
          least(gradient.args.weight.height, gradient.args.weight.rows - first)};
}

/// One kept block; `dy` holds its rows.
template <class T>
void add_block(const Gradient& gradient, const Target& block, const uint32_t* dy, Ahead& ahead) {
  alignas(64) float sums[kWideRows * cpu::kWideStrip];
  const BlockTiles tiles = gradient.kind == Words::pairs ? pair_tiles() : fp32_tiles();
  const int64_t lanes = gradient.lanes;
  const int64_t step = gradient.tile_rows();
  const Tensor& x = gradient.args.x;
  BlockTile tile{.stride = kWordBytes,
                 .offsets = gradient.offsets,
                 .words = block.words,
                 .step = (gradient.direct ? x.stride : lanes) * kWordBytes,
                 .sums = sums};
  for (int64_t c = 0; c < block.columns; c += lanes) {
    const uint32_t* panel =
        gradient.direct
            ? elements<uint32_t>(x) + block.token * x.stride + block.column * block.columns + c
            : gradient.x + block.column * gradient.x_words() + c * kChunkWords;
    tile.b = reinterpret_cast<const std::byte*>(panel);
    for (int64_t r = 0; r < block.rows; r += step) {
      tile.a = reinterpret_cast<const std::byte*>(dy + r);
      ahead.next();
      lanes == cpu::kWideStrip ? tiles.wide(tile) : tiles.thin(tile);
      with_count(least(lanes, block.columns - c), [&](int64_t columns) {
        for (int64_t i = 0; i < least(step, block.rows - r); ++i) {
          add_row<T>(gradient, block, block.place + (r + i) * block.stride + c, columns,
                     sums + i * lanes);
        }
      });
    }
  }
}

/// All blocks of one row of blocks.
template <class T>
void add_line(const Gradient& gradient, int64_t line, const Target& chunk, int threads) {
  const BlockMatrix& weight = gradient.args.weight;
  const int32_t begin = weight.block_begin[line];
  const int32_t end = weight.block_begin[line + 1];
  if (begin == end) {
    return;
  }
  Target block = chunk;
  block.line = line;
  block.rows = least(weight.height, weight.rows - line * weight.height);
  block.place = weight.value_begin[line];
  block.stride = (weight.value_begin[line + 1] - block.place) / block.rows;
  uint32_t* dy = gradient.dy + thread_index() * gradient.dy_words();
  pack_stripe({.from = gradient.args.dy,
               .token = chunk.token,
               .words = chunk.words,
               .column = line * weight.height,
               .columns = block.rows,
               .piece = gradient.height,
               .to = dy},
              gradient.kind);
  const int64_t tiles = gradient.pieces * divide_up(block.rows, gradient.tile_rows());
  Ahead ahead{.dy = Prefetcher(next_line(gradient, block, threads), tiles * (end - begin)),
              .x = Prefetcher(next_rows(gradient, block), tiles * (end - begin))};
  for (int32_t b = begin; b < end; ++b) {
    block.column = weight.block_column[b];
    block.columns = least(weight.width, weight.cols - block.column * weight.width);
    if (gradient.far && b + 1 < end) {
      ahead.x = Prefetcher({gradient.args.x, block.token, gradient.tokens(),
                            weight.block_column[b + 1] * weight.width, weight.width},
                           tiles);
    }
    add_block<T>(gradient, block, dy, ahead);
    block.place += block.columns;
  }
}

/// Chunk by chunk: pack, then multiply, with a barrier between the two.
template <class T>
void add_chunks(const Gradient& gradient, int threads) {
  const int64_t tokens = gradient.args.x.rows();
  const int64_t step = elements_a_word(gradient.kind);
  const int64_t chunk = gradient.tokens();
#pragma omp parallel num_threads(threads) if (threads > 1)
  for (int64_t begin = 0; begin == 0 || begin < tokens; begin += chunk) {
    const int64_t words = divide_up(least(chunk, tokens - begin), step);
#pragma omp for schedule(static)
    for (int64_t k = 0; k < words; k += kPackWords) {
      pack_x(gradient, begin, k, least(kPackWords, words - k));
    }
    const Target target{.token = begin, .words = words, .last = begin + chunk >= tokens};
#pragma omp for schedule(dynamic)
    for (int64_t line = 0; line < gradient.lines; ++line) {
      add_line<T>(gradient, line, target, threads);
    }
  }
}

Gradient gradient_of(const BlockSddmmArgs& args) {
  const BlockMatrix& weight = args.weight;
  Gradient gradient{.args = args, .kind = words_of(args.x.dtype, true)};
  gradient.lanes = weight.width > cpu::kThinStrip ? cpu::kWideStrip : cpu::kThinStrip;
  gradient.pieces = divide_up(weight.width, gradient.lanes);
  gradient.height = divide_up(weight.height, kThinRows) * kThinRows;
  gradient.lines = divide_up(weight.rows, weight.height);
  gradient.direct = readable(args, gradient.lanes);
  gradient.far = gradient.direct && args.x.cols() * kChunkWords * kWordBytes > kNearBytes;
  return gradient;
}

/// Allocates the parts of `gradient` in the workspace.
void allocate(Stream& stream, Gradient& gradient) {
  const int64_t x = gradient.columns() * gradient.x_words();
  const int64_t dy = stream.threads() * gradient.dy_words();
  const Tensor& values = gradient.args.weight.values;
  const bool own = values.dtype != DType::fp32;  // sums of chunks need memory
  const int64_t words = x + dy + kChunkWords + (own ? values.count() : 0);
  gradient.x =
      reinterpret_cast<uint32_t*>(cpu::workspace(stream, static_cast<size_t>(words * kWordBytes)));
  gradient.dy = gradient.x + x;
  gradient.offsets = reinterpret_cast<int32_t*>(gradient.dy + dy);
  gradient.partial =
      own ? reinterpret_cast<float*>(gradient.offsets + kChunkWords) : elements<float>(values);
  if (cpu::is_dry(stream)) {
    return;
  }
  for (int64_t k = 0; k < kChunkWords; ++k) {
    gradient.offsets[k] = static_cast<int32_t>(k * gradient.height * kWordBytes);
  }
}

}  // namespace

void block_sddmm(Stream& stream, const BlockSddmmArgs& args) {
  const int64_t kept = args.weight.values.count();
  if (kept == 0) {
    return;
  }
  Gradient gradient = gradient_of(args);
  allocate(stream, gradient);
  if (cpu::is_dry(stream)) {
    return;
  }
  const int64_t useful = least(stream.threads(), kept * args.x.rows() / kThinRows / kGrain);
  const int threads = static_cast<int>(most(1, useful));
  with_type(args.weight.values.dtype,
            [&](auto type) { add_chunks<decltype(type)>(gradient, threads); });
}

}  // namespace espalier::kernels::ESPALIER_ISA
