// Convolutions with an unstructured weight, in tiled form (tile.h), without patches. Images are cut
// into pieces of equal extents. Where products take a block of tokens, a convolution takes the same
// pixel of a block of pieces. So the window of that pixel is contiguous in packed images,
// [row][column][channel][piece], one stretch for each row of the window, and one load serves all
// lanes. Padding costs a packed zero; strides cost nothing.
//
// A block of pieces walks down its rows. Packed rows are kept in a ring that is as high as the
// window, so each input pixel is packed once, or twice at the edges of pieces.
//
//   forward   for each output pixel, and each row of its window: tiles of W that are one row high
//   input     for each input pixel, and each window that covers it: tiles of Wᵀ of one place
//   weight    for each row of output pixels, each thread sums the tiles that are its own
#include <omp.h>

#include <cstring>

#include "src/kernels/cpu/sparse/band.h"
#include "src/kernels/cpu/sparse/sampled.h"
#include "src/kernels/cpu/support.h"
#include "src/kernels/cpu/table.h"

namespace espalier::kernels::ESPALIER_ISA {
namespace {

/// Images of height x width pixels, cut into pieces of rows x columns; those at the lower and right
/// edges of an image may be smaller.
struct Pieces {
  int64_t images = 0, height = 0, width = 0;
  int64_t rows = 0, columns = 0;
  int64_t tokens = 0;  ///< pieces of a block

  int64_t across() const { return divide_up(width, columns); }
  int64_t each() const { return divide_up(height, rows) * across(); }
  int64_t count() const { return images * each(); }
  int64_t blocks() const { return divide_up(count(), tokens); }
};

/// Pixels of a packed ring for a piece: `rows` at a time.
struct RingExtents {
  int64_t rows, columns;
};

/// Estimated costs of a cut, in products of a vector. They choose the speed, not the result.
struct CutCosts {
  int64_t step = 1;  ///< pieces begin at multiples of this row and column
  double pixel;      ///< of a pixel of a piece, without packing
  double packed;     ///< of a packed pixel
  int64_t packed_bytes;
  RingExtents (*ring)(const Window& window, int64_t columns);
  double packed_rows_per_row;  ///< input rows / rows of pieces
};

constexpr int64_t kRingBytes = 3 * 512 * 1024;  ///< leaves some of L2 to tiles and the band
constexpr double kBeyondCache = 1.5;            ///< estimate: products take longer by this factor

/// The cut that costs least on `threads` threads. `whole`: one piece an image.
Pieces cut(Pieces whole, const Window& window, const CutCosts& costs, int threads) {
  Pieces best = whole;
  double least_cost = -1;
  const auto for_extents = [&](int64_t length, const auto& body) {
    int64_t before = 0;
    for (int64_t parts = 1; parts <= divide_up(length, costs.step); ++parts) {
      const int64_t extent = divide_up(divide_up(length, parts), costs.step) * costs.step;
      if (extent != before) {
        body(extent);
      }
      before = extent;
    }
  };
  for_extents(whole.height, [&](int64_t rows) {
    for_extents(whole.width, [&](int64_t columns) {
      Pieces pieces = whole;
      pieces.rows = rows;
      pieces.columns = columns;
      const RingExtents ring = costs.ring(window, columns);
      const bool fits = ring.rows * ring.columns * costs.packed_bytes <= kRingBytes;
      const double packed_rows =
          static_cast<double>(rows) * costs.packed_rows_per_row + static_cast<double>(ring.rows);
      const double total =
          static_cast<double>(divide_up(pieces.blocks(), threads)) *
          (static_cast<double>(rows * columns) * costs.pixel * (fits ? 1 : kBeyondCache) +
           packed_rows * static_cast<double>(ring.columns) * costs.packed);
      if (least_cost < 0 || total < least_cost) {
        best = pieces;
        least_cost = total;
      }
    });
  });
  return best;
}

/// The pieces of a block: their image, first row and first column; image -1: none.
struct Block {
  int64_t image[kMostTokens], row[kMostTokens], column[kMostTokens];

  Block(const Pieces& pieces, int64_t block) {
    for (int64_t i = 0; i < pieces.tokens; ++i) {
      const int64_t piece = block * pieces.tokens + i;
      const bool exists = piece < pieces.count();
      const int64_t within = piece % most(1, pieces.each());
      image[i] = exists ? piece / pieces.each() : -1;
      row[i] = exists ? within / pieces.across() * pieces.rows : 0;
      column[i] = exists ? within % pieces.across() * pieces.columns : 0;
    }
  }
};

/// One side of a convolution: images with their rows, columns and channels.
struct Images {
  Tensor x;
  int64_t height, width;
};

constexpr int64_t kPiece = 1024;  ///< features to pack at once: a long stream that fits the cache

/// Packed rows of images of a block of pieces. Pixel (r, c) of a ring is the image's pixel
/// (origin row + r, origin column + c), zero outside of the image.
struct Ring {
  Images images;
  int64_t tokens = 0, vectors = 0;  ///< of a packed row of numbers
  RingExtents extents{};
  float* memory = nullptr;

  int64_t channels() const { return images.x.cols(); }
  int64_t pixel() const { return channels() * vectors * kLanes; }  ///< floats
  int64_t row() const { return extents.columns * pixel(); }
  int64_t size() const { return extents.rows * row(); }
  float* at(int64_t r, int64_t column) const {
    return memory + (r % extents.rows + extents.rows) % extents.rows * row() + column * pixel();
  }

  /// Row r, from the images' pixels at these origins. One of `parts` parts of its columns.
  void pack(const SparseKernels& kernels, const Block& block, const Block& origin, int64_t r,
            int64_t part = 0, int64_t parts = 1) const {
    const void* rows[kMostTokens];           // of the images: column 0
    int64_t from = 0, to = extents.columns;  // columns that are inside of all images
    for (int64_t i = 0; i < tokens; ++i) {
      const int64_t row = origin.row[i] + r;
      const bool exists = block.image[i] >= 0 && row >= 0 && row < images.height;
      rows[i] = exists ? row_bytes(images.x, (block.image[i] * images.height + row) * images.width)
                       : nullptr;
      from = exists ? most(from, -origin.column[i]) : from;
      to = exists ? least(to, images.width - origin.column[i]) : to;
    }
    // Columns side by side are one stream of each piece.
    const int64_t together =
        images.x.stride == channels() ? most(1, kPiece / channels()) : int64_t{1};
    const int64_t end = extents.columns * (part + 1) / parts;
    int64_t n = 1;
    for (int64_t c = extents.columns * part / parts; c < end; c += n) {
      const bool inside = c >= from && c < to;
      n = inside ? least(together, least(to, end) - c) : 1;
      const void* pixels[kMostTokens];
      for (int64_t i = 0; i < tokens; ++i) {
        const int64_t column = origin.column[i] + c;
        const bool exists = rows[i] != nullptr && column >= 0 && column < images.width;
        pixels[i] =
            exists ? static_cast<const std::byte*>(rows[i]) + column * pixel_bytes() : nullptr;
      }
      kernels.pack({pixels, 0, n * channels()}, vectors, at(r, c));
    }
  }

 private:
  int64_t pixel_bytes() const {
    return images.x.stride * static_cast<int64_t>(size_of(images.x.dtype));
  }
};

/// Where pixel (r, c) of each piece is in the matrix of all pixels.
void fill_places(const Pieces& pieces, const Block& block, int64_t r, int64_t c, int64_t* places) {
  for (int64_t i = 0; i < pieces.tokens; ++i) {
    const int64_t row = block.row[i] + r, column = block.column[i] + c;
    const bool exists = block.image[i] >= 0 && row < pieces.height && column < pieces.width;
    places[i] = exists ? (block.image[i] * pieces.height + row) * pieces.width + column : -1;
  }
}

/// Memory of a convolution that maps packed pixels to bands.
struct Memory {
  TileMemory tiles;
  float* threads = nullptr;  ///< per thread: a ring, then a band
  int64_t each = 0;

  float* ring(int64_t thread) const { return threads + thread * each; }
};

int64_t whole_lines(int64_t floats) { return divide_up(floats, 16) * 16; }

Memory carve(Carver& carver, const SparseMatrix& weight, TileUse use, int64_t segment,
             const Ring& ring, const SparseKernels& kernels, int threads) {
  Memory m{.tiles = carve_tiles(carver, weight, use, kernels.values, threads, segment)};
  const Tiles& tiles = m.tiles.tiles;
  const int64_t rows = tiles.segment_blocks() * tiles.block_rows;
  m.each =
      whole_lines(ring.size()) + whole_lines(rows * kernels.vectors * kLanes * kernels.lane_tokens);
  m.threads = carver.take<float>(m.each * threads);
  return m;
}

/// The walk of one thread over a block of pieces.
struct Walk {
  const SparseKernels& kernels;
  const Tiles& tiles;
  const Pieces& pieces;
  const Block block;
  Ring ring;
  float* band;
  Epilogue epilogue;
  PutBand put;

  int64_t band_row() const { return kernels.vectors * kLanes * kernels.lane_tokens; }

  /// band += tiles times the packed pixels at x: the panels and the blocks of these segments.
  void add(int64_t row_segment, int64_t col_segment, const float* x) const {
    const int64_t blocks = tiles.segment_blocks();
    const int64_t panels = tiles.segment_panels();
    for (int64_t panel = 0; panel < panels; ++panel) {
      for (int64_t b = 0; b < blocks; ++b) {
        kernels.add_tile(tiles, tiles.at(row_segment * blocks + b, col_segment * panels + panel),
                         x + panel * tiles.panel() * kernels.vectors * kLanes,
                         band + b * tiles.block_rows * band_row());
      }
    }
  }
  void clear() const {
    std::memset(band, 0, static_cast<size_t>(tiles.row_segment * band_row()) * sizeof(float));
  }
  void put_pixel(int64_t r, int64_t c) const {
    int64_t places[kMostTokens];
    fill_places(pieces, block, r, c, places);
    put(epilogue, band, {places, 0, tiles.row_segment, kernels.lane_tokens, band_row()});
  }
};

/// The input's pixels of a row of output pixels.
RingExtents window_ring(const Window& window, int64_t columns) {
  return {window.extent, (columns - 1) * window.stride + window.extent};
}

/// Where the windows of a block of pieces of output pixels begin.
Block window_origin(const Window& window, const Pieces& pieces, Block block) {
  for (int64_t i = 0; i < pieces.tokens; ++i) {
    block.row[i] = block.row[i] * window.stride - window.padding;
    block.column[i] = block.column[i] * window.stride - window.padding;
  }
  return block;
}

void walk_forward(Walk& w, const Window& window) {
  const Block origin = window_origin(window, w.pieces, w.block);
  int64_t packed = 0;
  for (int64_t r = 0; r < w.pieces.rows; ++r) {
    const int64_t top = r * window.stride;
    for (packed = most(packed, top); packed < top + window.extent; ++packed) {
      w.ring.pack(w.kernels, w.block, origin, packed);
    }
    for (int64_t c = 0; c < w.pieces.columns; ++c) {
      w.clear();
      for (int64_t i = 0; i < window.extent; ++i) {
        w.add(0, i, w.ring.at(top + i, c * window.stride));
      }
      w.put_pixel(r, c);
    }
  }
}

/// Windows that cover pixels of a piece and begin before it, in one dimension.
int64_t windows_before(const Window& window) { return window.extent / window.stride; }

/// The windows that cover a row of input pixels.
RingExtents covering_ring(const Window& window, int64_t columns) {
  const int64_t before = windows_before(window);
  return {divide_up(window.extent, window.stride) + 1,
          before + (columns - 1 + window.padding) / window.stride + 1};
}

/// For each place of the window that may be at pixel `at` of a piece, in one dimension:
/// body(place, the window's index in the ring).
template <class Body>
void for_windows(const Window& window, int64_t at, const Body& body) {
  for (int64_t i = 0; i < window.extent; ++i) {
    const int64_t distance = at + window.padding - i;
    if (distance % window.stride == 0) {
      body(i, windows_before(window) + distance / window.stride);
    }
  }
}

void walk_input(Walk& w, const Window& window) {
  const int64_t before = windows_before(window);
  Block origin = w.block;
  for (int64_t i = 0; i < w.pieces.tokens; ++i) {
    origin.row[i] = origin.row[i] / window.stride - before;
    origin.column[i] = origin.column[i] / window.stride - before;
  }
  // Where pieces are as wide as images, windows outside of the images need no products.
  const bool wide = w.pieces.across() == 1;
  const int64_t from = wide ? before : 0;
  const int64_t to = wide ? before + window.out_width() : w.ring.extents.columns;
  int64_t packed = 0;
  for (int64_t r = 0; r < w.pieces.rows; ++r) {
    for (; packed <= before + (r + window.padding) / window.stride; ++packed) {
      w.ring.pack(w.kernels, w.block, origin, packed);
    }
    for (int64_t c = 0; c < w.pieces.columns; ++c) {
      w.clear();
      for_windows(window, r, [&](int64_t i, int64_t row) {
        for_windows(window, c, [&](int64_t j, int64_t column) {
          if (column >= from && column < to) {
            w.add(i * window.extent + j, 0, w.ring.at(row, column));
          }
        });
      });
      w.put_pixel(r, c);
    }
  }
}

/// A convolution from packed images `from` to `epilogue.out`.
struct Plan {
  TileUse use;
  int64_t segment;  ///< columns of W
  Images from;
  int64_t height, width;  ///< of the result's images
  int64_t step;           ///< pieces begin at multiples of this pixel
  double packed_rows;     ///< a row of the result
  RingExtents (*ring)(const Window& window, int64_t columns);
  void (*walk)(Walk& w, const Window& window);
};

void convolve(Stream& stream, const Window& window, const SparseMatrix& weight, const Plan& plan,
              const Epilogue& epilogue) {
  const int threads = stream.threads();
  const SparseKernels kernels = sparse_kernels(plan.from.x.dtype);
  const int64_t packed_row = kernels.vectors * kLanes;
  // Per pixel: a product per kept element; about as much per channel to pack and to unpack it.
  const Pieces pieces =
      cut({.images = epilogue.out.rows() / (plan.height * plan.width),
           .height = plan.height,
           .width = plan.width,
           .rows = plan.height,
           .columns = plan.width,
           .tokens = packed_row * kernels.lane_tokens},
          window,
          {.step = plan.step,
           .pixel = static_cast<double>(weight.positions.count + 4 * epilogue.out.cols()),
           .packed = 4 * static_cast<double>(plan.from.x.cols()),
           .packed_bytes = plan.from.x.cols() * packed_row * 4,
           .ring = plan.ring,
           .packed_rows_per_row = plan.packed_rows},
          threads);
  const Ring ring{.images = plan.from,
                  .tokens = pieces.tokens,
                  .vectors = kernels.vectors,
                  .extents = plan.ring(window, pieces.columns)};
  Carver sizes;
  carve(sizes, weight, plan.use, plan.segment, ring, kernels, threads);
  Carver carver{cpu::workspace(stream, sizes.used)};
  if (cpu::is_dry(stream) || epilogue.out.count() == 0) {
    return;
  }
  const Memory m = carve(carver, weight, plan.use, plan.segment, ring, kernels, threads);
  TileMemory tile_memory = m.tiles;
  make_tiles(tile_memory, weight, plan.use, threads);
  const PutBand put = put_band_for(epilogue, plan.from.x.dtype);
  const int64_t work = weight.positions.count * epilogue.out.rows();
  for_blocks(threads, pieces.blocks(), work, [&](int64_t b) {
    Walk walk{.kernels = kernels,
              .tiles = tile_memory.tiles,
              .pieces = pieces,
              .block = Block(pieces, b),
              .ring = ring,
              .band = nullptr,
              .epilogue = epilogue,
              .put = put};
    walk.ring.memory = m.ring(thread_index());
    walk.band = walk.ring.memory + whole_lines(ring.size());
    plan.walk(walk, window);
  });
}

/// Memory of the weight's gradient.
struct WeightMemory {
  Sampled sampled;
  Pieces pieces;
  Ring x, dy;
};

WeightMemory carve(Carver& carver, const SparseConvolutionWeightArgs& args, int threads) {
  const Window& window = args.window;
  WeightMemory m{.sampled = carve_sampled(carver, args.weight, args.x.dtype, threads,
                                          window.extent * args.x.cols()),
                 .pieces = {},
                 .x = {},
                 .dy = {}};
  // Not by the number of threads: sums depend on the cut.
  m.pieces = cut({.images = args.x.rows() / window.pixels(),
                  .height = window.out_height(),
                  .width = window.out_width(),
                  .rows = window.out_height(),
                  .columns = window.out_width(),
                  .tokens = m.sampled.tokens()},
                 window,
                 {.pixel = static_cast<double>(args.weight.positions.count + 4 * args.dy.cols()),
                  .packed = 4 * static_cast<double>(args.x.cols()),
                  .packed_bytes = args.x.cols() * m.sampled.packed_row() * 4,
                  .ring = window_ring,
                  .packed_rows_per_row = static_cast<double>(window.stride)},
                 1);
  const auto ring = [&](const Tensor& x, int64_t height, int64_t width, RingExtents extents) {
    return Ring{.images = {x, height, width},
                .tokens = m.pieces.tokens,
                .vectors = m.sampled.kernels.dot_vectors,
                .extents = extents};
  };
  m.x = ring(args.x, window.height, window.width, window_ring(window, m.pieces.columns));
  m.dy = ring(args.dy, window.out_height(), window.out_width(), {1, m.pieces.columns});
  m.x.memory = carver.take<float>(m.x.size());
  m.dy.memory = carver.take<float>(m.dy.size() + m.sampled.packed_row());
  return m;
}

/// One thread's share of a block of pieces: columns to pack, then tiles.
void sum_block(const Window& window, const WeightMemory& m, int64_t b, int64_t thread,
               int64_t threads) {
  const SparseKernels& kernels = m.sampled.kernels;
  const Tiles& tiles = m.sampled.tiles.tiles;
  const int64_t row = m.sampled.packed_row();
  const Block block(m.pieces, b);
  const Block origin = window_origin(window, m.pieces, block);
  int64_t packed = 0;
  for (int64_t r = 0; r < m.pieces.rows; ++r) {
    const int64_t top = r * window.stride;
    for (packed = most(packed, top); packed < top + window.extent; ++packed) {
      m.x.pack(kernels, block, origin, packed, thread, threads);
    }
    m.dy.pack(kernels, block, block, r, thread, threads);
#pragma omp barrier
    for (int64_t p = 0; p < tiles.panels; ++p) {
      const int64_t place = p / tiles.segment_panels();
      const int64_t offset = p % tiles.segment_panels() * tiles.panel() * row;
      for (int64_t k = 0; k < tiles.blocks; ++k) {
        const int64_t tile = tiles.at(k, p);
        if (m.sampled.thread_of(tile, threads) != thread) {
          continue;
        }
        for (int64_t c = 0; c < m.pieces.columns; ++c) {
          kernels.dot_tile(tiles, tile,
                           {m.dy.at(r, c) + k * tiles.block_rows * row,
                            m.x.at(top + place, c * window.stride) + offset,
                            b > 0 || r > 0 || c > 0, m.sampled.results});
        }
      }
    }
#pragma omp barrier
  }
}

}  // namespace

void sparse_convolution(Stream& stream, const SparseConvolutionArgs& args) {
  const Window& window = args.window;
  convolve(stream, window, args.weight,
           {.use = TileUse::product,
            .segment = window.extent * args.x.cols(),
            .from = {args.x, window.height, window.width},
            .height = window.out_height(),
            .width = window.out_width(),
            .step = 1,
            .packed_rows = static_cast<double>(window.stride),
            .ring = window_ring,
            .walk = walk_forward},
           {.bias = elements<const float>(args.bias), .out = args.y});
}

void sparse_convolution_input(Stream& stream, const SparseConvolutionInputArgs& args) {
  const Window& window = args.window;
  convolve(stream, window, args.weight,
           {.use = TileUse::transposed,
            .segment = args.dx.cols(),
            .from = {args.dy, window.out_height(), window.out_width()},
            .height = window.height,
            .width = window.width,
            .step = window.stride,
            .packed_rows = 1 / static_cast<double>(window.stride),
            .ring = covering_ring,
            .walk = walk_input},
           {.out = args.dx});
}

void sparse_convolution_weight(Stream& stream, const SparseConvolutionWeightArgs& args) {
  const int threads = stream.threads();
  if (args.weight.positions.count == 0 || (args.accumulate && args.x.rows() == 0)) {
    return;
  }
  Carver sizes;
  carve(sizes, args, threads);
  Carver carver{cpu::workspace(stream, sizes.used)};
  if (cpu::is_dry(stream)) {
    return;
  }
  WeightMemory m = carve(carver, args, threads);
  begin_sums(m.sampled, args.weight, args.x.rows(), threads);
#pragma omp parallel num_threads(team_of(stream, args.weight.positions.count* args.dy.rows()))
  {
    const int thread = omp_get_thread_num();
    const int team = omp_get_num_threads();
    for (int64_t b = 0; b < m.pieces.blocks(); ++b) {
      sum_block(args.window, m, b, thread, team);
    }
  }
  return_values(m.sampled, args.weight, args.accumulate, threads);
}

}  // namespace espalier::kernels::ESPALIER_ISA
