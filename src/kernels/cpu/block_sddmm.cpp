// The gradient of a BlockMatrix: for each kept block dyᵀ x over all tokens. Columns of the block lie in
// vector lanes, its rows in the rows of a tile, tokens are the words. A chunk of tokens is first
// brought into stripes, a row (column) of blocks each: dy as [words][height], x as [words][lanes].
#include "src/kernels/cpu/block_panel.h"
#include "src/kernels/cpu/loops.h"
#include "src/kernels/cpu/support.h"
#include "src/kernels/cpu/table.h"
#include "src/kernels/verify.h"

namespace espalier::kernels::ESPALIER_ISA {
namespace {

constexpr int64_t kChunkWords =
    128;  ///< tokens, or pairs of tokens, whose stripes are in use at once
constexpr int64_t kPackWords = 16;  ///< words that are packed by one thread at a time

/// One of the two operands as stripes: lines of `extent` columns, each padded to `padded` words.
struct Stripes {
  const Tensor& from;
  int64_t extent = 0;
  int64_t padded = 0;
  uint32_t* words = nullptr;  ///< [lines][pieces of a line][kChunkWords][piece]
  int64_t piece = 0;          ///< columns of a panel within a line: lanes, or all

  int64_t lines() const { return divide_up(from.cols(), extent); }
  /// A cache line more: stripes must not fall on each other in the sets of a cache.
  int64_t line_words() const { return padded * kChunkWords + 16; }
  int64_t size() const { return lines() * line_words(); }
  uint32_t* at(int64_t line) const { return words + line * line_words(); }
};

struct Gradient {
  const BlockSddmmArgs& args;
  Words kind = Words::fp32;
  Stripes rows, columns;
  int32_t* offsets = nullptr;  ///< bytes of word k in a stripe of rows
  float* partial = nullptr;  ///< sums of the chunks so far; the values themselves if they are fp32
  int64_t tokens_a_word() const { return kind == Words::pairs ? 2 : 1; }
};

int64_t round_up(int64_t n, int64_t unit) { return divide_up(n, unit) * unit; }

/// Lanes of the panels of a block, of its first ones if they differ.
int64_t lanes_of(int64_t width) {
  return width > cpu::kThinStrip ? cpu::kWideStrip : cpu::kThinStrip;
}

/// Words [k, k + n) of the chunk that begins at token `first`.
void pack_stripes(const Gradient& gradient, const Stripes& stripes, int64_t first, int64_t k,
                  int64_t n) {
  const Tensor& from = stripes.from;
  const int64_t bytes = from.dtype == DType::fp32 ? 4 : 2;
  const int64_t step = gradient.tokens_a_word();
  for (int64_t line = 0; line < stripes.lines(); ++line) {
    const int64_t column = line * stripes.extent;
    const int64_t end = least(from.cols(), column + stripes.extent);
    for (int64_t c = column; c < end; c += stripes.piece) {
      const int64_t count = least(stripes.piece, end - c);
      uint32_t* to = stripes.at(line) + (c - column) * kChunkWords + k * stripes.piece;
      for (int64_t i = 0; i < n; ++i, to += stripes.piece) {
        const int64_t token = first + (k + i) * step;
        const std::byte* row = elements<std::byte>(from) + (token * from.stride + c) * bytes;
        const bool second = step == 2 && token + 1 < from.rows();
        pack_words(row, second ? row + from.stride * bytes : nullptr, count, gradient.kind, to);
      }
    }
  }
}

/// Where the sums of one tile go.
struct Target {
  int64_t place = 0;  ///< of its first element among the values
  int64_t stride = 0;
  int64_t rows = 0, columns = 0;
  int64_t lanes = 0;
  bool first = false, last = false;  ///< of the chunks
};

/// Adds the sums of a tile to those of the chunks before; the last one is rounded to the values.
template <class T>
void add_sums(const Gradient& gradient, const Target& target, const float* sums) {
  T* values = elements<T>(gradient.args.weight.values) + target.place;
  float* partial = gradient.partial + target.place;
  for (int64_t r = 0; r < target.rows; ++r) {
    alignas(64) float total[cpu::kWideStrip];
    __builtin_memcpy(total, sums + r * target.lanes,
                     static_cast<size_t>(target.columns) * sizeof(float));
    T* value = values + r * target.stride;
    float* sum = partial + r * target.stride;
    if (!target.first) {
#pragma omp simd
      for (int64_t c = 0; c < target.columns; ++c) {
        total[c] += sum[c];
      }
    } else if (gradient.args.accumulate) {
#pragma omp simd
      for (int64_t c = 0; c < target.columns; ++c) {
        total[c] += load(value + c);
      }
    }
    if (target.last) {
#pragma omp simd
      for (int64_t c = 0; c < target.columns; ++c) {
        store(value + c, total[c]);
      }
    } else {
#pragma omp simd
      for (int64_t c = 0; c < target.columns; ++c) {
        sum[c] = total[c];
      }
    }
  }
}

/// One kept block; `target` says where its values begin and what it holds.
template <class T>
void add_block(const Gradient& gradient, int64_t line, int64_t column, int64_t words,
               const Target& block) {
  alignas(64) float sums[kWideRows * cpu::kWideStrip];
  const BlockTiles tiles = gradient.kind == Words::pairs ? pair_tiles() : fp32_tiles();
  const bool wide = gradient.columns.piece == cpu::kWideStrip;
  const int64_t step = wide ? kWideRows : kThinRows;
  Target target = block;
  target.lanes = gradient.columns.piece;
  for (int64_t c = 0; c < block.columns; c += target.lanes) {
    for (int64_t r = 0; r < block.rows; r += step) {
      const BlockTile tile{.a = reinterpret_cast<const std::byte*>(gradient.rows.at(line) + r),
                           .stride = sizeof(uint32_t),
                           .offsets = gradient.offsets,
                           .words = words,
                           .panel = gradient.columns.at(column) + c * kChunkWords,
                           .sums = sums};
      wide ? tiles.wide(tile) : tiles.thin(tile);
      target.place = block.place + r * block.stride + c;
      target.rows = least(step, block.rows - r);
      target.columns = least(target.lanes, block.columns - c);
      add_sums<T>(gradient, target, sums);
    }
  }
}

/// All blocks of one row of blocks.
template <class T>
void add_line(const Gradient& gradient, int64_t line, int64_t words, bool first, bool last) {
  const BlockMatrix& weight = gradient.args.weight;
  const int64_t height = least(weight.height, weight.rows - line * weight.height);
  const int64_t begin = weight.value_begin[line];
  Target block{.place = begin,
               .stride = (weight.value_begin[line + 1] - begin) / height,
               .rows = height,
               .first = first,
               .last = last};
  for (int32_t b = weight.block_begin[line]; b < weight.block_begin[line + 1]; ++b) {
    const int64_t column = weight.block_column[b];
    block.columns = least(weight.width, weight.cols - column * weight.width);
    add_block<T>(gradient, line, column, words, block);
    block.place += block.columns;
  }
}

/// Chunk after chunk: pack, then multiply. Each thread waits for the others between the two.
template <class T>
void add_chunks(const Gradient& gradient, int threads) {
  const int64_t tokens = gradient.args.x.rows();
  const int64_t step = gradient.tokens_a_word();
  const int64_t chunk = kChunkWords * step;
  const int64_t lines = gradient.rows.lines();
#pragma omp parallel num_threads(threads) if (threads > 1)
  for (int64_t begin = 0; begin == 0 || begin < tokens; begin += chunk) {
    const int64_t words = divide_up(least(chunk, tokens - begin), step);
#pragma omp for schedule(static)
    for (int64_t k = 0; k < words; k += kPackWords) {
      const int64_t n = least(kPackWords, words - k);
      pack_stripes(gradient, gradient.rows, begin, k, n);
      pack_stripes(gradient, gradient.columns, begin, k, n);
    }
#pragma omp for schedule(dynamic)
    for (int64_t line = 0; line < lines; ++line) {
      add_line<T>(gradient, line, words, begin == 0, begin + chunk >= tokens);
    }
  }
}

}  // namespace

void block_sddmm(Stream& stream, const BlockSddmmArgs& args) {
  verify(args);
  const BlockMatrix& weight = args.weight;
  const int64_t kept = weight.values.count();
  if (kept == 0) {
    return;
  }
  const int64_t lanes = lanes_of(weight.width);
  Gradient gradient{.args = args,
                    .kind = words_of(args.x.dtype, true),
                    .rows = {.from = args.dy,
                             .extent = weight.height,
                             .padded = round_up(weight.height, kThinRows),
                             .piece = round_up(weight.height, kThinRows)},
                    .columns = {.from = args.x,
                                .extent = weight.width,
                                .padded = round_up(weight.width, lanes),
                                .piece = lanes}};
  const bool own = weight.values.dtype != DType::fp32;  // sums of several chunks need a place
  const int64_t sizes[] = {gradient.rows.size(), gradient.columns.size(), kChunkWords,
                           own ? kept : 0};
  auto* words = reinterpret_cast<uint32_t*>(cpu::workspace(
      stream, static_cast<size_t>(sizes[0] + sizes[1] + sizes[2] + sizes[3]) * sizeof(uint32_t)));
  gradient.rows.words = words;
  gradient.columns.words = words + sizes[0];
  gradient.offsets = reinterpret_cast<int32_t*>(words + sizes[0] + sizes[1]);
  gradient.partial = own ? reinterpret_cast<float*>(words + sizes[0] + sizes[1] + sizes[2])
                         : elements<float>(weight.values);
  for (int64_t k = 0; k < kChunkWords; ++k) {
    gradient.offsets[k] = static_cast<int32_t>(k * gradient.rows.piece * int64_t{sizeof(uint32_t)});
  }
  const int64_t useful = least(stream.threads(), kept * args.x.rows() / kThinRows / kGrain);
  const int threads = static_cast<int>(most(1, useful));
  with_type(weight.values.dtype, [&](auto type) { add_chunks<decltype(type)>(gradient, threads); });
}

}  // namespace espalier::kernels::ESPALIER_ISA
