// The gradient of a BlockMatrix: for each kept block dyᵀ x over all tokens. Columns of the block lie in
// vector lanes, its rows in the rows of a tile, tokens are the words. A chunk of tokens is first
// brought into stripes, a row (column) of blocks each: dy as [words][height], x as [words][lanes].
// Where fp32 activations can be read as they lie, they are.
#include "src/kernels/cpu/block_panel.h"
#include "src/kernels/cpu/loops.h"
#include "src/kernels/cpu/support.h"
#include "src/kernels/cpu/table.h"
#include "src/kernels/verify.h"

namespace espalier::kernels::ESPALIER_ISA {
namespace {

constexpr int64_t kChunkWords =
    256;                            ///< tokens, or pairs of them, whose stripes are in use at once
constexpr int64_t kPackWords = 16;  ///< words that are packed by one thread at a time
constexpr int64_t kWordBytes = sizeof(uint32_t);

/// One of the two operands: lines (rows or columns of blocks) of `extent` columns.
struct Operand {
  const Tensor& from;
  int64_t extent = 0;
  int64_t piece = 0;            ///< words side by side in a stripe: the lanes of a panel, or a line
  int64_t pieces = 1;           ///< of a line
  bool direct = false;          ///< read where it lies
  uint32_t* stripes = nullptr;  ///< [lines][pieces][kChunkWords][piece]

  int64_t lines() const { return divide_up(from.cols(), extent); }
  /// A cache line more: stripes must not fall on each other in the sets of a cache.
  int64_t line_words() const { return pieces * piece * kChunkWords + kThinRows; }
  int64_t size() const { return direct ? 0 : lines() * line_words(); }
  /// Bytes from one word to the next.
  int64_t step() const { return (direct ? from.stride : piece) * kWordBytes; }
  /// Column `inside` of a line in a chunk of tokens that begins at `token`; a piece begins there.
  const std::byte* at(int64_t line, int64_t inside, int64_t token) const {
    const uint32_t* word =
        direct
            ? elements<uint32_t>(from) + token * from.stride + line * extent + inside
            : stripes + line * line_words() + inside / piece * piece * kChunkWords + inside % piece;
    return reinterpret_cast<const std::byte*>(word);
  }
};

/// Whether tiles of `unit` columns read what they need and no more; rows that fall on each other in
/// the sets of a cache are better packed.
bool readable(const Tensor& from, int64_t extent, int64_t unit) {
  return from.dtype == DType::fp32 && extent % unit == 0 && from.cols() % extent == 0 &&
         from.stride % 2048 != 0;
}

struct Gradient {
  const BlockSddmmArgs& args;
  Words kind = Words::fp32;
  Operand dy, x;
  int32_t* offsets = nullptr;  ///< bytes from the first word of dy to word k
  float* partial = nullptr;  ///< sums of the chunks so far; the values themselves if they are fp32
  int64_t tokens_a_word() const { return kind == Words::pairs ? 2 : 1; }
};

/// Words [k, k + n) of the chunk that begins at token `first`.
void pack(const Gradient& gradient, const Operand& operand, int64_t first, int64_t k, int64_t n) {
  const Tensor& from = operand.from;
  const int64_t bytes = from.dtype == DType::fp32 ? 4 : 2;
  const int64_t step = gradient.tokens_a_word();
  for (int64_t line = 0; line < operand.lines() && !operand.direct; ++line) {
    const int64_t column = line * operand.extent;
    const int64_t end = least(from.cols(), column + operand.extent);
    for (int64_t c = column; c < end; c += operand.piece) {
      uint32_t* to = operand.stripes + line * operand.line_words() + (c - column) * kChunkWords +
                     k * operand.piece;
      with_count(least(operand.piece, end - c), [&](int64_t count) {
        for (int64_t i = 0; i < n; ++i) {
          const int64_t token = first + (k + i) * step;
          const std::byte* row = elements<std::byte>(from) + (token * from.stride + c) * bytes;
          const bool second = step == 2 && token + 1 < from.rows();
          pack_words(row, second ? row + from.stride * bytes : nullptr, count, gradient.kind,
                     to + i * operand.piece);
        }
      });
    }
  }
}

/// Where the sums of one tile go.
struct Target {
  int64_t place = 0;  ///< of its first element among the values
  int64_t stride = 0;
  int64_t rows = 0, columns = 0;
  int64_t token = 0;  ///< first of the chunk
  int64_t words = 0;
  bool last = false;  ///< of the chunks
};

/// Adds a row of sums to those of the chunks before; the last chunk's are rounded to the values.
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

/// One kept block; `block` says where its values begin and what it holds.
template <class T>
void add_block(const Gradient& gradient, int64_t line, int64_t column, const Target& block) {
  alignas(64) float sums[kWideRows * cpu::kWideStrip];
  const BlockTiles tiles = gradient.kind == Words::pairs ? pair_tiles() : fp32_tiles();
  const int64_t lanes = gradient.x.piece;
  const bool wide = lanes == cpu::kWideStrip;
  const int64_t step = wide ? kWideRows : kThinRows;
  for (int64_t c = 0; c < block.columns; c += lanes) {
    for (int64_t r = 0; r < block.rows; r += step) {
      const BlockTile tile{.a = gradient.dy.at(line, r, block.token),
                           .stride = kWordBytes,
                           .offsets = gradient.offsets,
                           .words = block.words,
                           .b = gradient.x.at(column, c, block.token),
                           .step = gradient.x.step(),
                           .sums = sums};
      wide ? tiles.wide(tile) : tiles.thin(tile);
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
void add_line(const Gradient& gradient, int64_t line, const Target& chunk) {
  const BlockMatrix& weight = gradient.args.weight;
  Target block = chunk;
  block.rows = least(weight.height, weight.rows - line * weight.height);
  block.place = weight.value_begin[line];
  block.stride = (weight.value_begin[line + 1] - block.place) / block.rows;
  for (int32_t b = weight.block_begin[line]; b < weight.block_begin[line + 1]; ++b) {
    const int64_t column = weight.block_column[b];
    block.columns = least(weight.width, weight.cols - column * weight.width);
    add_block<T>(gradient, line, column, block);
    block.place += block.columns;
  }
}

/// Chunk after chunk: pack, then multiply. Each thread waits for the others between the two.
template <class T>
void add_chunks(const Gradient& gradient, int threads) {
  const int64_t tokens = gradient.args.x.rows();
  const int64_t step = gradient.tokens_a_word();
  const int64_t chunk = kChunkWords * step;
#pragma omp parallel num_threads(threads) if (threads > 1)
  for (int64_t begin = 0; begin == 0 || begin < tokens; begin += chunk) {
    const int64_t words = divide_up(least(chunk, tokens - begin), step);
#pragma omp for schedule(static)
    for (int64_t k = 0; k < words; k += kPackWords) {
      pack(gradient, gradient.dy, begin, k, least(kPackWords, words - k));
      pack(gradient, gradient.x, begin, k, least(kPackWords, words - k));
    }
    const Target target{.token = begin, .words = words, .last = begin + chunk >= tokens};
#pragma omp for schedule(dynamic)
    for (int64_t line = 0; line < gradient.dy.lines(); ++line) {
      add_line<T>(gradient, line, target);
    }
  }
}

Gradient gradient_of(const BlockSddmmArgs& args) {
  const BlockMatrix& weight = args.weight;
  const int64_t lanes = weight.width > cpu::kThinStrip ? cpu::kWideStrip : cpu::kThinStrip;
  const int64_t rows = lanes == cpu::kWideStrip ? kWideRows : kThinRows;
  return {.args = args,
          .kind = words_of(args.x.dtype, true),
          .dy = {.from = args.dy,
                 .extent = weight.height,
                 .piece = divide_up(weight.height, kThinRows) * kThinRows,
                 .direct = readable(args.dy, weight.height, rows)},
          .x = {.from = args.x,
                .extent = weight.width,
                .piece = lanes,
                .pieces = divide_up(weight.width, lanes),
                .direct = readable(args.x, weight.width, lanes)}};
}

}  // namespace

void block_sddmm(Stream& stream, const BlockSddmmArgs& args) {
  verify(args);
  const int64_t kept = args.weight.values.count();
  if (kept == 0) {
    return;
  }
  Gradient gradient = gradient_of(args);
  const int64_t dy_words = gradient.dy.size();
  const int64_t x_words = gradient.x.size();
  const bool own = args.weight.values.dtype != DType::fp32;  // sums of chunks need a place
  auto* words = reinterpret_cast<uint32_t*>(cpu::workspace(
      stream,
      static_cast<size_t>((dy_words + x_words + kChunkWords + (own ? kept : 0)) * kWordBytes)));
  gradient.dy.stripes = words;
  gradient.x.stripes = words + dy_words;
  gradient.offsets = reinterpret_cast<int32_t*>(words + dy_words + x_words);
  gradient.partial = own ? reinterpret_cast<float*>(gradient.offsets + kChunkWords)
                         : elements<float>(args.weight.values);
  for (int64_t k = 0; k < kChunkWords; ++k) {
    gradient.offsets[k] = static_cast<int32_t>(k * gradient.dy.step());
  }
  const int64_t useful = least(stream.threads(), kept * args.x.rows() / kThinRows / kGrain);
  const int threads = static_cast<int>(most(1, useful));
  with_type(args.weight.values.dtype,
            [&](auto type) { add_chunks<decltype(type)>(gradient, threads); });
}

}  // namespace espalier::kernels::ESPALIER_ISA
