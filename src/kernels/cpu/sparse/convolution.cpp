// Convolutions with an unstructured weight, in tiled form (tile.h), without patches. A strip is
// some rows of pixels of one image. Where products take a block of tokens, a convolution takes the
// same pixel of a block of strips. So the window of that pixel is contiguous in packed images,
// [row][column][channel][strip], one piece for each row of the window, and one load serves all
// lanes. Padding costs a packed zero; strides cost nothing.
//
// A block of strips walks down its rows. Packed rows are kept in a ring that is as high as the
// window, so each input pixel is packed once, or twice at the edges of strips.
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

/// Images [images] of `height` rows, cut into strips.
struct Strips {
  int64_t images = 0, height = 0;
  int64_t rows = 0;    ///< of a strip; the last one of an image may have fewer
  int64_t each = 0;    ///< strips of an image
  int64_t tokens = 0;  ///< strips of a block

  int64_t blocks() const { return divide_up(images * each, tokens); }
  int64_t image(int64_t strip) const { return strip / each; }
  int64_t first_row(int64_t strip) const { return strip % each * rows; }
};

/// What a row of a strip costs: in itself, and what a strip costs beside its rows.
struct StripCost {
  double row, edge;
};

/// The cut that costs least on `threads` threads; strips begin at multiples of `step`.
Strips cut(int64_t images, int64_t height, int64_t step, int64_t tokens, int threads,
           StripCost cost) {
  Strips best;
  double least_cost = 0;
  for (int64_t rows = divide_up(height, step) * step; rows > 0; rows -= step) {
    const Strips s{images, height, rows, divide_up(height, rows), tokens};
    const double turns = static_cast<double>(divide_up(s.blocks(), threads));
    const double total = turns * (static_cast<double>(rows) * cost.row + cost.edge);
    if (best.rows == 0 || total < least_cost) {
      best = s;
      least_cost = total;
    }
  }
  return best;
}

/// The strips of a block: their image and first row; image -1: none.
struct Block {
  int64_t image[kMostTokens], row[kMostTokens];

  Block(const Strips& s, int64_t block) {
    for (int64_t i = 0; i < s.tokens; ++i) {
      const int64_t strip = block * s.tokens + i;
      const bool exists = strip < s.images * s.each;
      image[i] = exists ? s.image(strip) : -1;
      row[i] = exists ? s.first_row(strip) : 0;
    }
  }
};

/// One side of a convolution: images with their rows, columns and channels.
struct Images {
  Tensor x;
  int64_t height, width;
};

constexpr int64_t kPiece = 1024;  ///< features to pack at once: a long stream that fits the cache

/// Packed rows of images of a block of strips, `slots` at a time, with zero pixels on both sides.
struct Ring {
  Images images;
  int64_t tokens = 0, vectors = 0;  ///< of a packed row
  int64_t slots = 0, padding = 0;
  float* memory = nullptr;

  int64_t channels() const { return images.x.cols(); }
  int64_t pixel() const { return channels() * vectors * kLanes; }  ///< floats
  int64_t row() const { return (images.width + 2 * padding) * pixel(); }
  int64_t size() const { return slots * row(); }
  /// Pixel `column` >= -padding of row r.
  float* at(int64_t r, int64_t column) const {
    return memory + (r % slots + slots) % slots * row() + (column + padding) * pixel();
  }
  void clear_padding() const {
    const size_t bytes = static_cast<size_t>(padding * pixel()) * sizeof(float);
    for (int64_t r = 0; r < slots; ++r) {
      std::memset(at(r, -padding), 0, bytes);
      std::memset(at(r, images.width), 0, bytes);
    }
  }

  /// Row r of each strip: the image's row first[strip] + r. One of `parts` parts of its columns.
  void pack(const SparseKernels& kernels, const Block& block, const int64_t* first, int64_t r,
            int64_t part = 0, int64_t parts = 1) const {
    const void* rows[kMostTokens];
    for (int64_t i = 0; i < tokens; ++i) {
      const int64_t row = first[i] + r;
      const bool exists = block.image[i] >= 0 && row >= 0 && row < images.height;
      rows[i] = exists ? row_bytes(images.x, (block.image[i] * images.height + row) * images.width)
                       : nullptr;
    }
    // Columns side by side are one stream of each strip.
    const int64_t each = images.x.stride == channels() ? most(1, kPiece / channels()) : 1;
    const int64_t end = images.width * (part + 1) / parts;
    for (int64_t c = images.width * part / parts; c < end; c += each) {
      kernels.pack({rows, c * images.x.stride, least(each, end - c) * channels()}, vectors,
                   at(r, c));
    }
  }
};

/// Where pixel (row r of each strip, column) is in the matrix of all pixels.
void fill_places(const Strips& s, const Block& block, int64_t r, int64_t width, int64_t column,
                 int64_t* places) {
  for (int64_t i = 0; i < s.tokens; ++i) {
    const int64_t row = block.row[i] + r;
    const bool exists = block.image[i] >= 0 && r < s.rows && row < s.height;
    places[i] = exists ? (block.image[i] * s.height + row) * width + column : -1;
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
  Memory m{.tiles = carve_tiles(carver, weight, use, threads, segment)};
  const Tiles& tiles = m.tiles.tiles;
  const int64_t rows = tiles.segment_blocks() * tiles.block_rows;
  m.each =
      whole_lines(ring.size()) + whole_lines(rows * kernels.vectors * kLanes * kernels.lane_tokens);
  m.threads = carver.take<float>(m.each * threads);
  return m;
}

/// The walk of one thread over a block of strips.
struct Walk {
  const SparseKernels& kernels;
  const Tiles& tiles;
  const Strips& strips;
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
                         x + panel * kPanel * kernels.vectors * kLanes,
                         band + b * tiles.block_rows * band_row());
      }
    }
  }
  void clear() const {
    std::memset(band, 0, static_cast<size_t>(tiles.row_segment * band_row()) * sizeof(float));
  }
  void put_pixel(int64_t r, int64_t width, int64_t column) const {
    int64_t places[kMostTokens];
    fill_places(strips, block, r, width, column, places);
    put(epilogue, band, {places, 0, tiles.row_segment, kernels.lane_tokens, band_row()});
  }
};

void walk_forward(Walk& w, const Window& window) {
  int64_t first[kMostTokens];
  for (int64_t i = 0; i < w.strips.tokens; ++i) {
    first[i] = w.block.row[i] * window.stride - window.padding;
  }
  int64_t packed = 0;
  for (int64_t r = 0; r < w.strips.rows; ++r) {
    const int64_t top = r * window.stride;
    for (packed = most(packed, top); packed < top + window.extent; ++packed) {
      w.ring.pack(w.kernels, w.block, first, packed);
    }
    for (int64_t c = 0; c < window.out_width(); ++c) {
      w.clear();
      for (int64_t i = 0; i < window.extent; ++i) {
        w.add(0, i, w.ring.at(top + i, c * window.stride - window.padding));
      }
      w.put_pixel(r, window.out_width(), c);
    }
  }
}

/// The windows that cover a pixel, in one dimension: for each place i of the window that may be
/// there, body(i, index of the window).
template <class Body>
void for_windows(const Window& window, int64_t at, const Body& body) {
  for (int64_t i = 0; i < window.extent; ++i) {
    const int64_t distance = at + window.padding - i;
    if (distance % window.stride == 0) {
      body(i, distance / window.stride);
    }
  }
}

void walk_input(Walk& w, const Window& window) {
  int64_t first[kMostTokens];
  for (int64_t i = 0; i < w.strips.tokens; ++i) {
    first[i] = w.block.row[i] / window.stride;
  }
  // Windows above the strip cover its first rows.
  int64_t packed = -(window.extent / window.stride);
  for (int64_t r = 0; r < w.strips.rows; ++r) {
    for (; packed <= (r + window.padding) / window.stride; ++packed) {
      w.ring.pack(w.kernels, w.block, first, packed);
    }
    for (int64_t c = 0; c < window.width; ++c) {
      w.clear();
      for_windows(window, r, [&](int64_t i, int64_t row) {
        for_windows(window, c, [&](int64_t j, int64_t column) {
          if (column >= 0 && column < window.out_width()) {
            w.add(i * window.extent + j, 0, w.ring.at(row, column));
          }
        });
      });
      w.put_pixel(r, window.width, c);
    }
  }
}

/// A convolution from packed images `from` to `epilogue.out`, whose images have `height` rows.
struct Plan {
  TileUse use;
  int64_t segment;  ///< columns of W
  Images from;
  int64_t slots, padding;  ///< of the ring
  int64_t height, width;   ///< of the result's images
  int64_t step;            ///< strips begin at multiples of this row
  void (*walk)(Walk& w, const Window& window);
};

void convolve(Stream& stream, const Window& window, const SparseMatrix& weight, const Plan& plan,
              const Epilogue& epilogue) {
  const int threads = stream.threads();
  const SparseKernels kernels = sparse_kernels(plan.from.x.dtype, plan.use);
  const int64_t tokens = kernels.vectors * kLanes * kernels.lane_tokens;
  const Ring ring{.images = plan.from,
                  .tokens = tokens,
                  .vectors = kernels.vectors,
                  .slots = plan.slots,
                  .padding = plan.padding};
  Carver sizes;
  carve(sizes, weight, plan.use, plan.segment, ring, kernels, threads);
  Carver carver{cpu::workspace(stream, sizes.used)};
  if (cpu::is_dry(stream) || epilogue.out.count() == 0) {
    return;
  }
  const Memory m = carve(carver, weight, plan.use, plan.segment, ring, kernels, threads);
  TileMemory tile_memory = m.tiles;
  make_tiles(tile_memory, weight, plan.use, threads);
  const Tiles& tiles = tile_memory.tiles;
  // Per pixel: a product per kept element; about as much per channel to pack and to unpack it.
  const auto products = static_cast<double>(weight.positions.count);
  const auto packing = 4 * static_cast<double>(plan.from.x.cols() * plan.from.width);
  const auto pixels = static_cast<double>(plan.width);
  const Strips strips =
      cut(epilogue.out.rows() / (plan.height * plan.width), plan.height, plan.step, tokens, threads,
          {pixels * (products + 4 * static_cast<double>(tiles.row_segment)) + packing,
           packing * static_cast<double>(plan.slots)});
  const PutBand put = put_band_for(epilogue, plan.from.x.dtype);
  const int64_t work = weight.positions.count * epilogue.out.rows();
  for_blocks(threads, strips.blocks(), work, [&](int64_t b) {
    Walk walk{.kernels = kernels,
              .tiles = tiles,
              .strips = strips,
              .block = Block(strips, b),
              .ring = ring,
              .band = nullptr,
              .epilogue = epilogue,
              .put = put};
    walk.ring.memory = m.ring(thread_index());
    walk.band = walk.ring.memory + whole_lines(ring.size());
    walk.ring.clear_padding();
    plan.walk(walk, window);
  });
}

/// Memory of the weight's gradient.
struct WeightMemory {
  Sampled sampled;
  Ring x, dy;
};

WeightMemory carve(Carver& carver, const SparseConvolutionWeightArgs& args, int threads) {
  const Window& window = args.window;
  WeightMemory m{.sampled = carve_sampled(carver, args.weight, args.x.dtype, threads,
                                          window.extent * args.x.cols()),
                 .x = {},
                 .dy = {}};
  m.x = {.images = {args.x, window.height, window.width},
         .tokens = m.sampled.tokens(),
         .vectors = m.sampled.kernels.dot_vectors,
         .slots = window.extent,
         .padding = window.padding};
  m.dy = {.images = {args.dy, window.out_height(), window.out_width()},
          .tokens = m.sampled.tokens(),
          .vectors = m.sampled.kernels.dot_vectors,
          .slots = 1};
  m.x.memory = carver.take<float>(m.x.size());
  m.dy.memory = carver.take<float>(m.dy.size() + m.sampled.packed_row());
  return m;
}

/// One thread's share of a block of strips: columns to pack, then tiles.
void sum_block(const Window& window, const WeightMemory& m, const Strips& strips, int64_t b,
               int64_t thread, int64_t threads) {
  const SparseKernels& kernels = m.sampled.kernels;
  const Tiles& tiles = m.sampled.tiles.tiles;
  const int64_t row = m.sampled.packed_row();
  const Block block(strips, b);
  int64_t first[kMostTokens];
  for (int64_t i = 0; i < strips.tokens; ++i) {
    first[i] = block.row[i] * window.stride - window.padding;
  }
  int64_t packed = 0;
  for (int64_t r = 0; r < strips.rows; ++r) {
    const int64_t top = r * window.stride;
    for (packed = most(packed, top); packed < top + window.extent; ++packed) {
      m.x.pack(kernels, block, first, packed, thread, threads);
    }
    m.dy.pack(kernels, block, block.row, r, thread, threads);
#pragma omp barrier
    for (int64_t p = 0; p < tiles.panels; ++p) {
      const int64_t place = p / tiles.segment_panels();
      const int64_t offset = p % tiles.segment_panels() * kPanel * row;
      for (int64_t k = 0; k < tiles.blocks; ++k) {
        const int64_t tile = tiles.at(k, p);
        if (m.sampled.thread_of(tile, threads) != thread) {
          continue;
        }
        for (int64_t c = 0; c < window.out_width(); ++c) {
          kernels.dot_tile(tiles, tile,
                           {m.dy.at(r, c) + k * tiles.block_rows * row,
                            m.x.at(top + place, c * window.stride - window.padding) + offset,
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
            .slots = window.extent,
            .padding = window.padding,
            .height = window.out_height(),
            .width = window.out_width(),
            .step = 1,
            .walk = walk_forward},
           {.bias = elements<const float>(args.bias), .out = args.y});
}

void sparse_convolution_input(Stream& stream, const SparseConvolutionInputArgs& args) {
  const Window& window = args.window;
  convolve(stream, window, args.weight,
           {.use = TileUse::transposed,
            .segment = args.dx.cols(),
            .from = {args.dy, window.out_height(), window.out_width()},
            .slots = divide_up(window.extent, window.stride) + 1,
            .padding = 0,
            .height = window.height,
            .width = window.width,
            .step = window.stride,
            .walk = walk_input},
           {.out = args.dx});
}

void sparse_convolution_weight(Stream& stream, const SparseConvolutionWeightArgs& args) {
  const Window& window = args.window;
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
  make_tiles(m.sampled.tiles, args.weight, TileUse::sampled, threads);
  if (args.x.rows() == 0) {
    std::memset(m.sampled.results, 0,
                static_cast<size_t>(m.sampled.tiles.tiles.capacity) * sizeof(float));
  }
  m.x.clear_padding();
  const int64_t work = args.weight.positions.count * args.dy.rows();
  // Not by the number of threads: sums depend on the cut.
  const auto products = static_cast<double>(args.weight.positions.count * window.out_width());
  const auto packing = 4 * static_cast<double>(args.x.cols() * window.width);
  const Strips strips =
      cut(args.x.rows() / window.pixels(), window.out_height(), 1, m.sampled.tokens(), 1,
          {products + packing, packing * static_cast<double>(window.extent)});
#pragma omp parallel num_threads(team_of(stream, work))
  {
    const int thread = omp_get_thread_num();
    const int team = omp_get_num_threads();
    for (int64_t b = 0; b < strips.blocks(); ++b) {
      sum_block(window, m, strips, b, thread, team);
    }
  }
  return_values(m.sampled, args.weight, args.accumulate, threads);
}

}  // namespace espalier::kernels::ESPALIER_ISA
