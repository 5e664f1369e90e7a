#include "src/kernels/cpu/sparse/matrix_unit.h"

#include <immintrin.h>

#include <cstring>

#include "src/kernels/cpu/simd/matrix_tiles.h"
#include "src/kernels/cpu/simd/vector.h"
#include "src/kernels/cpu/support.h"
#include "src/kernels/cpu/table.h"

namespace espalier::kernels::ESPALIER_ISA {
namespace {

constexpr int64_t kSide = 16;             ///< rows, or columns, of a tile
constexpr int64_t kDeep = 32;             ///< bf16 that a tile is deep
constexpr int64_t kTile = kSide * kDeep;  ///< elements of a tile of operands
constexpr int64_t kPair = 2 * kSide;      ///< rows and columns of four tiles of sums
constexpr int64_t kPanel = 64;            ///< columns of W between two known places
constexpr int64_t kChunk = 512;           ///< depth that is expanded at once
constexpr int64_t kStrip = 256;           ///< features of the result that are computed at once
constexpr int64_t kPassTokens = 512;      ///< tokens that share an expansion
constexpr int64_t kSampledTokens = 2048;  ///< tokens that are packed at once for dW
/// Below them, vectors are faster where the processor throttles the unit
/// (benchmarks/results/amx.md).
constexpr double kLeastDensity = 0.15;

/// An element of an operand.
using Half = uint16_t;

/// Two neighbouring blocks of 16 rows (left) or columns (right) of an operand: consecutive tiles
/// along the depth.
struct Blocks {
  const Half* first;
  const Half* second;
};

/// sums [32, 32], `row` floats apart, (+)= left · right over `steps` tiles of depth.
void multiply(Blocks left, Blocks right, int64_t steps, float* sums, int64_t row, bool add) {
  const int64_t bytes = row * static_cast<int64_t>(sizeof(float));
  if (add) {
    _tile_loadd(0, sums, bytes);
    _tile_loadd(1, sums + kSide, bytes);
    _tile_loadd(2, sums + kSide * row, bytes);
    _tile_loadd(3, sums + kSide * row + kSide, bytes);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  for (int64_t step = 0; step < steps; ++step) {
    const int64_t at = step * kTile;
    _tile_loadd(4, left.first + at, 64);
    _tile_loadd(6, right.first + at, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, right.second + at, 64);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(5, left.second + at, 64);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, sums, bytes);
  _tile_stored(1, sums + kSide, bytes);
  _tile_stored(2, sums + kSide * row, bytes);
  _tile_stored(3, sums + kSide * row + kSide, bytes);
}

[[gnu::always_inline]] inline int64_t padded(int64_t n, int64_t multiple) {
  return divide_up(n, multiple) * multiple;
}

/// Bits of the first n lanes of 32.
[[gnu::always_inline]] inline __mmask32 first_bits(int64_t n) {
  return static_cast<__mmask32>(n >= 32 ? ~uint32_t{0} : n <= 0 ? 0 : (uint32_t{1} << n) - 1);
}

/// As words_lanes.h.
[[gnu::always_inline]] inline __m512i fresh_zero() {
  __m512i zero = _mm512_setzero_si512();
  asm("" : "+v"(zero));
  return zero;
}

// --- Activations -----------------------------------------------------------------------------

/// A matrix of activations [tokens, features].
struct Activations {
  const Tensor& x;
  int64_t first, end;  ///< tokens of the pass

  const Half* row(int64_t token) const {
    return static_cast<const Half*>(x.data) + token * x.stride;
  }
  /// Up to 32 features of a token of the pass; zeros beyond the matrix.
  [[gnu::always_inline]] __m512i features(int64_t token, int64_t feature) const {
    const int64_t n = first + token < end ? x.cols() - feature : 0;
    return n <= 0 ? _mm512_setzero_si512()
                  : _mm512_maskz_loadu_epi16(first_bits(n), row(first + token) + feature);
  }
  /// 16 features of two neighbouring tokens: the even one in the low halves.
  [[gnu::always_inline]] Vector pairs(int64_t token, int64_t feature) const {
    const auto widened = [&](int64_t t) {
      const int64_t n = least(kSide, first + t < end ? x.cols() - feature : 0);
      return n <= 0 ? _mm512_setzero_si512()
                    : _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(
                          static_cast<__mmask16>(first_bits(n)), row(first + t) + feature));
    };
    return __builtin_bit_cast(
        Vector, _mm512_or_si512(widened(token), _mm512_slli_epi32(widened(token + 1), 16)));
  }
};

[[gnu::always_inline]] inline void put_tile_row(Half* tile, int64_t row, Vector values) {
  _mm512_store_si512(tile + row * kDeep, __builtin_bit_cast(__m512i, values));
}

/// Tiles of activations: the side on which they are multiplied, and the contents of their rows
/// (left) or columns (right). The other of features and tokens is the depth.
enum class Packing : uint8_t {
  left_tokens,     ///< row: a token; depth: features
  right_tokens,    ///< column: a token; depth: features
  left_features,   ///< row: a feature; depth: tokens
  right_features,  ///< column: a feature; depth: tokens
};

/// The tile of block `block` at `step`.
template <Packing kind>
void pack_tile(const Activations& from, int64_t block, int64_t step, Half* tile) {
  Vector square[kSide];
  for (int64_t i = 0; i < kSide; ++i) {
    if constexpr (kind == Packing::left_tokens || kind == Packing::right_tokens) {
      square[i] = __builtin_bit_cast(Vector, from.features(block * kSide + i, step * kDeep));
    } else {
      square[i] = from.pairs(step * kDeep + 2 * i, block * kSide);
    }
  }
  if constexpr (kind == Packing::right_tokens || kind == Packing::left_features) {
    transpose(square);
  }
  for (int64_t i = 0; i < kSide; ++i) {
    put_tile_row(tile, i, square[i]);
  }
}

/// [blocks][steps] tiles.
struct PackedTiles {
  Half* tiles = nullptr;
  int64_t blocks = 0, steps = 0;

  int64_t size() const { return blocks * steps * kTile; }
  const Half* at(int64_t block, int64_t step) const {
    return tiles + (block * steps + step) * kTile;
  }
  /// Blocks `block` and the next one, from `step` on.
  Blocks pair(int64_t block, int64_t step) const { return {at(block, step), at(block + 1, step)}; }
};

template <Packing kind>
void pack(const Activations& from, const PackedTiles& to, int threads) {
  for_blocks(threads, to.blocks, to.size(), [&](int64_t block) {
    for (int64_t step = 0; step < to.steps; ++step) {
      pack_tile<kind>(from, block, step, to.tiles + (block * to.steps + step) * kTile);
    }
  });
}

// --- W ---------------------------------------------------------------------------------------

/// 32 bits of the words of a bitmap, which begin with the lowest.
using Bits [[gnu::may_alias]] = uint32_t;

/// Where the kept elements of W are.
struct Pattern {
  KeptBits bits;
  uint32_t* begin = nullptr;  ///< [rows, panels]: kept elements before each panel of each row
  int64_t cols = 0, panels = 0;
  bool aligned = false;  ///< rows begin at multiples of 32 bits
  bool* kept = nullptr;  ///< to set when it is made; null: it need not be
  bool made = false;

  uint32_t before(int64_t row, int64_t panel) const { return begin[row * panels + panel]; }
  /// The bits of up to 32 columns of a row from `column` on, a multiple of 32.
  [[gnu::always_inline]] uint32_t mask(int64_t row, int64_t column) const {
    const int64_t from = row * cols + column;
    if (aligned) {
      return reinterpret_cast<const Bits*>(bits.words)[from / kDeep];
    }
    const int64_t n = least(kDeep, cols - column);
    const int64_t shift = from & 63;
    uint64_t word = bits.words[from >> 6] >> shift;
    if (shift + n > 64) {
      word |= bits.words[(from >> 6) + 1] << (64 - shift);
    }
    return static_cast<uint32_t>(word) & first_bits(n);
  }
};

Pattern carve_pattern(Carver& carver, const SparseMatrix& weight) {
  Pattern pattern{.cols = weight.cols,
                  .panels = divide_up(weight.cols, kPanel),
                  .aligned = weight.cols % kDeep == 0};
  const int64_t words = divide_up(weight.positions.size, 64);
  const auto carve = [&](Carver& from) {
    // A call without kept forms reads a bitmap where it is.
    const bool own = weight.forms != nullptr || weight.positions.bitmap == nullptr;
    pattern.bits.made = own ? from.take<uint64_t>(words) : nullptr;
    pattern.begin = from.take<uint32_t>(weight.rows * pattern.panels);
  };
  if (weight.forms == nullptr) {
    carve(carver);
  } else {
    Carver sizes;
    carve(sizes);
    const KeptForms::Place place = weight.forms->place(PositionForm::bits, sizes.used);
    Carver kept{place.memory};
    carve(kept);
    pattern.made = *place.made;
    pattern.kept = place.made;
  }
  pattern.bits.row_begin = pattern.made ? nullptr : carver.take<uint32_t>(weight.rows + 1);
  return pattern;
}

void make_pattern(Pattern& pattern, const SparseMatrix& weight, int threads) {
  const uint64_t* const own = pattern.bits.made;
  if (pattern.made) {
    pattern.bits.words = own;
    return;
  }
  make_bits(pattern.bits, weight, threads);
  if (pattern.kept != nullptr && pattern.bits.words != own) {
    std::memcpy(pattern.bits.made, pattern.bits.words,
                static_cast<size_t>(divide_up(weight.positions.size, 64)) * sizeof(uint64_t));
    pattern.bits.words = own;
  }
  for_rows(threads, weight.rows, pattern.panels, [&](int64_t row) {
    uint32_t before = pattern.bits.row_begin[row];
    for (int64_t panel = 0; panel < pattern.panels; ++panel) {
      pattern.begin[row * pattern.panels + panel] = before;
      for (int64_t c = panel * kPanel; c < least(pattern.cols, (panel + 1) * kPanel); c += kDeep) {
        before += static_cast<uint32_t>(__builtin_popcount(pattern.mask(row, c)));
      }
    }
  });
  if (pattern.kept != nullptr) {
    *pattern.kept = true;
  }
}

/// The values of a row from a known place on.
struct RowReader {
  const Half* values;

  /// The next elements at the set bits of `mask`, zeros elsewhere.
  [[gnu::always_inline]] __m512i expand(uint32_t mask) {
    const int64_t n = __builtin_popcount(mask);
    const __m512i packed = _mm512_maskz_loadu_epi16(first_bits(n), values);
    values += n;
    return _mm512_mask_expand_epi16(fresh_zero(), mask, packed);
  }
};

/// Rows and columns of W.
struct Piece {
  int64_t row, rows, column, columns;
};

/// Left tiles: rows of W, at tiles[row / 16][step]. `to.blocks` blocks; those beyond W are zero.
void expand_rows(const Pattern& w, const Half* values, const Piece& piece, const PackedTiles& to) {
  for (int64_t r = 0; r < to.blocks * kSide; ++r) {
    Half* out = to.tiles + r / kSide * to.steps * kTile + r % kSide * kDeep;
    if (r >= piece.rows) {
      for (int64_t step = 0; step < to.steps; ++step) {
        _mm512_store_si512(out + step * kTile, _mm512_setzero_si512());
      }
      continue;
    }
    const int64_t row = piece.row + r;
    RowReader reader{values + w.before(row, piece.column / kPanel)};
    for (int64_t step = 0; step < to.steps; ++step) {
      _mm512_store_si512(out + step * kTile,
                         reader.expand(w.mask(row, piece.column + step * kDeep)));
    }
  }
}

/// Words 0 a, 0 b, 1 a, 1 b, … of the lower (upper) halves of a and b.
alignas(64) constexpr Half kLowPairs[32] = {0,  32, 1,  33, 2,  34, 3,  35, 4,  36, 5,
                                            37, 6,  38, 7,  39, 8,  40, 9,  41, 10, 42,
                                            11, 43, 12, 44, 13, 45, 14, 46, 15, 47};
alignas(64) constexpr Half kHighPairs[32] = {16, 48, 17, 49, 18, 50, 19, 51, 20, 52, 21,
                                             53, 22, 54, 23, 55, 24, 56, 25, 57, 26, 58,
                                             27, 59, 28, 60, 29, 61, 30, 62, 31, 63};

/// Right tiles: pairs of rows of W as depth, at tiles[column / 16][row / 32].
void expand_pairs(const Pattern& w, const Half* values, const Piece& piece, const PackedTiles& to) {
  const __m512i low = _mm512_load_si512(kLowPairs);
  const __m512i high = _mm512_load_si512(kHighPairs);
  for (int64_t pair = 0; pair < to.steps * kSide; ++pair) {
    Half* out = to.tiles + pair / kSide * kTile + pair % kSide * kDeep;
    const int64_t row = piece.row + 2 * pair;
    const int64_t exist = least(2, piece.rows - 2 * pair);
    const auto reader = [&](int64_t i) {
      return RowReader{i < exist ? values + w.before(row + i, piece.column / kPanel) : values};
    };
    RowReader even = reader(0);
    RowReader odd = reader(1);
    for (int64_t block = 0; block < to.blocks; block += 2) {
      const int64_t column = piece.column + block * kSide;
      const bool inside = column < piece.column + piece.columns;
      const __m512i a = even.expand(inside && exist > 0 ? w.mask(row, column) : 0);
      const __m512i b = odd.expand(inside && exist > 1 ? w.mask(row + 1, column) : 0);
      _mm512_store_si512(out + block * to.steps * kTile, _mm512_permutex2var_epi16(a, low, b));
      _mm512_store_si512(out + (block + 1) * to.steps * kTile,
                         _mm512_permutex2var_epi16(a, high, b));
    }
  }
}

// --- y = x Wᵀ, dx = dy W -----------------------------------------------------------------------

/// Features of the result that a thread computes at once: fewer if there is little to divide.
int64_t strip_of(int64_t features, int threads) {
  return features >= 2 * kStrip * threads ? kStrip : kPanel;
}

struct ProductMemory {
  Pattern pattern;
  PackedTiles activations;  ///< of a pass
  int64_t strip = 0;
  int64_t tokens = 0;            ///< of a pass, whole pairs of blocks
  std::byte* threads = nullptr;  ///< per thread: expanded tiles, then sums
  size_t each = 0;

  static constexpr int64_t expanded_size(int64_t strip) { return strip * kChunk; }
};

ProductMemory carve_product(Carver& carver, const SparseMatrix& weight, bool turned, int64_t tokens,
                            int threads) {
  ProductMemory m{.pattern = carve_pattern(carver, weight)};
  const int64_t features = turned ? weight.cols : weight.rows;
  const int64_t depth = turned ? weight.rows : weight.cols;
  m.strip = strip_of(features, threads);
  m.tokens = padded(least(tokens, kPassTokens), kPair);
  m.activations.blocks = m.tokens / kSide;
  m.activations.steps = divide_up(depth, kDeep);
  m.activations.tiles = carver.take<Half>(m.activations.size());
  Carver part;
  part.take<Half>(ProductMemory::expanded_size(m.strip));
  part.take<float>(m.strip * m.tokens);
  m.each = part.used;
  m.threads = carver.take<std::byte>(static_cast<int64_t>(m.each) * threads);
  return m;
}

/// One strip of the result's features for the tokens of a pass: `sums` [strip, tokens], or, turned,
/// [tokens, strip].
void multiply_strip(const ProductMemory& m, const SparseMatrix& weight, bool turned, int64_t first,
                    int64_t tokens, Half* expanded, float* sums) {
  const int64_t depth = turned ? weight.rows : weight.cols;
  const int64_t features = least(m.strip, (turned ? weight.cols : weight.rows) - first);
  const auto* values = static_cast<const Half*>(weight.values.data);
  PackedTiles w{.tiles = expanded, .blocks = padded(features, kPair) / kSide, .steps = 0};
  for (int64_t chunk = 0; chunk < depth; chunk += kChunk) {
    const int64_t deep = least(kChunk, depth - chunk);
    w.steps = divide_up(deep, kDeep);
    if (turned) {
      expand_pairs(m.pattern, values,
                   {.row = chunk, .rows = deep, .column = first, .columns = features}, w);
    } else {
      expand_rows(m.pattern, values,
                  {.row = first, .rows = features, .column = chunk, .columns = deep}, w);
    }
    for (int64_t token = 0; token < tokens; token += kPair) {
      const Blocks x = m.activations.pair(token / kSide, chunk / kDeep);
      for (int64_t f = 0; f < w.blocks * kSide; f += kPair) {
        const Blocks piece = w.pair(f / kSide, 0);
        if (turned) {
          multiply(x, piece, w.steps, sums + token * m.strip + f, m.strip, chunk > 0);
        } else {
          multiply(piece, x, w.steps, sums + f * m.tokens + token, m.tokens, chunk > 0);
        }
      }
    }
  }
}

// --- dW = dyᵀ x --------------------------------------------------------------------------------

struct SampledMemory {
  Pattern pattern;
  PackedTiles dy, x;  ///< of a pass
  int64_t strip = 0;
  float* sums = nullptr;         ///< [kept elements], if there are several passes
  std::byte* threads = nullptr;  ///< per thread: results [strip, kResultRow]
  size_t each = 0;

  static constexpr int64_t kResultRow = kChunk + kSide;  ///< floats
};

SampledMemory carve_sampled_memory(Carver& carver, const SddmmArgs& args, int threads) {
  const SparseMatrix& weight = args.weight;
  SampledMemory m{.pattern = carve_pattern(carver, weight)};
  const int64_t tokens = args.x.rows();
  m.strip = strip_of(weight.rows, threads);
  const int64_t steps = divide_up(least(tokens, kSampledTokens), kDeep);
  m.dy = {.blocks = padded(weight.rows, kPair) / kSide, .steps = steps};
  m.x = {.blocks = padded(weight.cols, kPair) / kSide, .steps = steps};
  m.dy.tiles = carver.take<Half>(m.dy.size());
  m.x.tiles = carver.take<Half>(m.x.size());
  m.sums = tokens > kSampledTokens ? carver.take<float>(weight.positions.count + kLanes) : nullptr;
  m.each = static_cast<size_t>(m.strip * SampledMemory::kResultRow) * sizeof(float);
  m.threads = carver.take<std::byte>(static_cast<int64_t>(m.each) * threads);
  return m;
}

/// to[i] (+)= results[i], i < n.
template <class T>
void put_results(const float* results, int64_t n, bool add, T* to) {
  for (int64_t i = 0; i < n; i += kLanes) {
    const int64_t width = least(kLanes, n - i);
    const auto lanes = static_cast<__mmask16>(first_bits(width));
    Vector sum = read_vector(results + i);
    if constexpr (sizeof(T) == sizeof(float)) {
      if (add) {
        sum += __builtin_bit_cast(Vector, _mm512_maskz_loadu_ps(lanes, to + i));
      }
      _mm512_mask_storeu_ps(to + i, lanes, __builtin_bit_cast(__m512, sum));
    } else {
      T rounded[kLanes];
      if (add) {
        _mm256_storeu_epi16(rounded, _mm256_maskz_loadu_epi16(lanes, to + i));
        sum += read_vector(rounded);
      }
      write_vector(rounded, sum);
      _mm256_mask_storeu_epi16(to + i, lanes, _mm256_loadu_epi16(rounded));
    }
  }
}

/// Appends the kept elements of 32 columns of a row; returns their number. Writes up to 16 floats
/// beyond them.
[[gnu::always_inline]] inline int64_t gather_row(const float* sums, uint32_t mask, float* to) {
  const auto low = static_cast<__mmask16>(mask);
  const auto high = static_cast<__mmask16>(mask >> 16);
  const auto zero = _mm512_castsi512_ps(fresh_zero());
  const int64_t before = __builtin_popcount(low);
  _mm512_storeu_ps(to, _mm512_mask_compress_ps(zero, low, _mm512_loadu_ps(sums)));
  _mm512_storeu_ps(to + before, _mm512_mask_compress_ps(zero, high, _mm512_loadu_ps(sums + kSide)));
  return __builtin_popcount(mask);
}

/// Calls put(results, n, place) for each row of a strip and each chunk of columns, with the n
/// results from W's kept element `place` on.
template <class Put>
void sample_strip(const SampledMemory& m, const SparseMatrix& weight, int64_t first, int64_t steps,
                  float* results, const Put& put) {
  alignas(64) float square[kPair * kPair];
  const int64_t rows = least(m.strip, weight.rows - first);
  for (int64_t chunk = 0; chunk < weight.cols; chunk += kChunk) {
    const int64_t end = least(weight.cols, chunk + kChunk);
    int64_t filled[kStrip] = {};
    for (int64_t column = chunk; column < end; column += kPair) {
      const Blocks x = m.x.pair(column / kSide, 0);
      for (int64_t r = 0; r < rows; r += kPair) {
        multiply(m.dy.pair((first + r) / kSide, 0), x, steps, square, kPair, false);
        for (int64_t i = 0; i < least(kPair, rows - r); ++i) {
          filled[r + i] +=
              gather_row(square + i * kPair, m.pattern.mask(first + r + i, column),
                         results + (r + i) * SampledMemory::kResultRow + filled[r + i]);
        }
      }
    }
    for (int64_t r = 0; r < rows; ++r) {
      put(results + r * SampledMemory::kResultRow, filled[r],
          m.pattern.before(first + r, chunk / kPanel));
    }
  }
}

}  // namespace

bool uses_matrix_unit(const SparseMatrix& weight, DType activations, int64_t tokens) {
  const auto kept = static_cast<double>(weight.positions.count);
  return activations == DType::bf16 && tokens > 0 && kept > 0 &&
         kept >= kLeastDensity * static_cast<double>(weight.positions.size);
}

void matrix_unit_product(Stream& stream, const SparseMatrix& weight, TileUse use, const Tensor& x,
                         const Epilogue& epilogue) {
  const int threads = stream.threads();
  const int64_t tokens = x.rows();
  const bool turned = use == TileUse::transposed;
  Carver sizes;
  carve_product(sizes, weight, turned, tokens, threads);
  Carver carver{cpu::workspace(stream, sizes.used)};
  if (cpu::is_dry(stream)) {
    return;
  }
  ProductMemory m = carve_product(carver, weight, turned, tokens, threads);
  make_pattern(m.pattern, weight, threads);
  const int64_t features = epilogue.out.cols();
  const PutBand put_band = put_band_for(epilogue, x.dtype);
  const PutRows put_rows = put_rows_for(epilogue, x.dtype);
  for (int64_t token = 0; token < tokens; token += m.tokens) {
    const int64_t in_pass = least(m.tokens, tokens - token);
    const Activations from{.x = x, .first = token, .end = token + in_pass};
    if (turned) {
      pack<Packing::left_tokens>(from, m.activations, threads);
    } else {
      pack<Packing::right_tokens>(from, m.activations, threads);
    }
    int64_t rows[kPassTokens];  // of the result; -1: padding
    for (int64_t i = 0; i < m.tokens; ++i) {
      rows[i] = i < in_pass ? token + i : -1;
    }
    for_blocks(threads, divide_up(features, m.strip), features * in_pass, [&](int64_t strip) {
      const TileScope tiles;
      std::byte* own = m.threads + m.each * static_cast<size_t>(thread_index());
      auto* expanded = reinterpret_cast<Half*>(own);
      auto* sums = reinterpret_cast<float*>(expanded + ProductMemory::expanded_size(m.strip));
      const int64_t first = strip * m.strip;
      const int64_t n = least(m.strip, features - first);
      multiply_strip(m, weight, turned, first, padded(in_pass, kPair), expanded, sums);
      if (turned) {
        put_rows(epilogue, sums, {token, in_pass, first, n, m.strip});
      } else {
        put_band(epilogue, sums, {rows, first, n, 1, m.tokens});
      }
    });
  }
}

void matrix_unit_sddmm(Stream& stream, const SddmmArgs& args) {
  const int threads = stream.threads();
  const SparseMatrix& weight = args.weight;
  Carver sizes;
  carve_sampled_memory(sizes, args, threads);
  Carver carver{cpu::workspace(stream, sizes.used)};
  if (cpu::is_dry(stream)) {
    return;
  }
  SampledMemory m = carve_sampled_memory(carver, args, threads);
  make_pattern(m.pattern, weight, threads);
  const int64_t tokens = args.x.rows();
  for (int64_t token = 0; token < tokens; token += kSampledTokens) {
    const int64_t end = least(tokens, token + kSampledTokens);
    const bool last = end == tokens;
    pack<Packing::left_features>({.x = args.dy, .first = token, .end = end}, m.dy, threads);
    pack<Packing::right_features>({.x = args.x, .first = token, .end = end}, m.x, threads);
    for_blocks(threads, divide_up(weight.rows, m.strip), weight.positions.size, [&](int64_t strip) {
      const TileScope tiles;
      std::byte* own = m.threads + m.each * static_cast<size_t>(thread_index());
      auto* results = reinterpret_cast<float*>(own);
      const int64_t steps = divide_up(end - token, kDeep);
      with_type(weight.values.dtype, [&](auto type) {
        using T = decltype(type);
        T* values = elements<T>(weight.values);
        sample_strip(m, weight, strip * m.strip, steps, results,
                     [&](float* found, int64_t n, uint32_t place) {
                       if (token > 0) {
                         put_results(m.sums + place, n, true, found);
                       }
                       if (last) {
                         put_results(found, n, args.accumulate, values + place);
                       } else {
                         put_results(found, n, false, m.sums + place);
                       }
                     });
      });
    });
  }
}

}  // namespace espalier::kernels::ESPALIER_ISA
