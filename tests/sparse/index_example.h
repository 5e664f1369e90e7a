#pragma once
// Masks for the tests of index encodings, and the shape that each encoding requires.
#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "sparse/index/file_index.h"
#include "sparse/index/index.h"
#include "src/core/error.h"

namespace espalier::sparse {

/// All registered encodings that hold any mask in memory.
inline std::vector<Encoding> any_mask_encodings() {
  std::vector<Encoding> found;
  for (const Encoding* encoding : memory_encodings()) {
    if (encoding->rules == nullptr) {
      found.push_back(*encoding);
    }
  }
  return found;
}

inline Mask random_mask(int64_t size, double density, unsigned seed) {
  std::mt19937_64 random(seed);
  const double limit = density * 0x1p64;
  Mask mask(size, false);
  for (int64_t i = 0; i < size; ++i) {
    mask.set(i, static_cast<double>(random()) < limit);
  }
  return mask;
}

/// Runs of ones and zeros of growing length.
inline Mask runs(int64_t size, int64_t first) {
  Mask mask(size, false);
  int64_t at = first;
  for (int64_t length = 1; at < size; length = length * 2 + 1) {
    for (int64_t i = at; i < std::min(size, at + length); ++i) {
      mask.set(i, true);
    }
    at += 2 * length;
  }
  return mask;
}

/// Rows of `cols`; groups of m keep n elements, or fewer with probability `fewer`.
inline Mask nm_mask(int64_t rows, const IndexShape& shape, double fewer, unsigned seed) {
  std::mt19937_64 random(seed);
  std::bernoulli_distribution drop(fewer);
  Mask mask(rows * shape.cols, false);
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t begin = 0; begin < shape.cols; begin += shape.m) {
      std::vector<int64_t> places;
      for (int64_t c = begin; c < std::min<int64_t>(shape.cols, begin + shape.m); ++c) {
        places.push_back(row * shape.cols + c);
      }
      std::shuffle(places.begin(), places.end(), random);
      places.resize(std::min(places.size(), static_cast<size_t>(shape.n)));
      for (const int64_t place : places) {
        mask.set(place, !drop(random));
      }
    }
  }
  return mask;
}

/// Whole blocks, kept with probability `density`.
inline Mask block_mask(int64_t rows, const IndexShape& shape, double density, unsigned seed) {
  const int64_t across = (shape.cols + shape.width - 1) / shape.width;
  const int64_t down = (rows + shape.height - 1) / shape.height;
  const Mask blocks = random_mask(down * across, density, seed);
  Mask mask(rows * shape.cols, false);
  for (int64_t i = 0; i < mask.size(); ++i) {
    mask.set(i, blocks[i / shape.cols / shape.height * across + i % shape.cols / shape.width]);
  }
  return mask;
}

/// A mask as magnitude pruning produces it: densities of rows and columns differ by factors of
/// about e^spread.
inline Mask uneven_mask(int64_t rows, int64_t cols, double density, double spread) {
  std::mt19937_64 random(11);
  std::normal_distribution<double> normal;
  std::vector<double> row_scale(static_cast<size_t>(rows));
  std::vector<double> col_scale(static_cast<size_t>(cols));
  std::ranges::generate(row_scale, [&] { return std::exp(spread * normal(random)); });
  std::ranges::generate(col_scale, [&] { return std::exp(spread * normal(random)); });
  std::vector<float> values;
  for (int64_t i = 0; i < rows * cols; ++i) {
    values.push_back(
        static_cast<float>(std::abs(normal(random)) * row_scale[i / cols] * col_scale[i % cols]));
  }
  std::vector<float> sorted = values;
  const auto cut =
      sorted.begin() + static_cast<int64_t>((1 - density) * static_cast<double>(rows * cols));
  std::ranges::nth_element(sorted, cut);
  Mask mask(rows * cols, false);
  for (int64_t i = 0; i < rows * cols; ++i) {
    mask.set(i, values[i] >= *cut);
  }
  return mask;
}

/// A mask, and an encoding that can store it.
struct Example {
  Mask mask;
  Encoding encoding;
  IndexShape shape{};

  std::string label() const {
    return fmt::format("size {} kept {} {} (cols {}, {}:{}, {} x {})", mask.size(), mask.kept(),
                       encoding.name, shape.cols, shape.n, shape.m, shape.height, shape.width);
  }
};

inline std::vector<Mask> any_masks() {
  std::vector<Mask> masks;
  unsigned seed = 1;
  for (int64_t size : {0, 1, 63, 64, 65, 511, 512, 513, 1000, 4096, 131'085}) {
    masks.emplace_back(size, false);
    masks.emplace_back(size, true);
    masks.push_back(runs(size, 0));
    masks.push_back(runs(size, std::min<int64_t>(size, 70)));
    for (double density :
         {1 / static_cast<double>(size + 1), 0.001, 0.01, 0.05, 0.1, 0.3, 0.5, 0.9, 0.99}) {
      masks.push_back(random_mask(size, density, seed++));
    }
    if (size > 0) {
      Mask last(size, false);
      last.set(size - 1, true);
      masks.push_back(last);
      Mask all_but_first(size);
      all_but_first.set(0, false);
      masks.push_back(all_but_first);
    }
  }
  return masks;
}

inline std::vector<Example> examples() {
  std::vector<Example> all;
  for (const Mask& mask : any_masks()) {
    for (const Encoding& encoding : any_mask_encodings()) {
      all.push_back({mask, encoding});
    }
  }
  unsigned seed = 500;
  for (const auto& [n, m] : {std::pair{2, 4},
                             {1, 4},
                             {1, 2},
                             {2, 2},
                             {4, 8},
                             {1, 16},
                             {3, 7},
                             {8, 64},
                             {1, 64},
                             {1, 63}}) {
    for (int64_t cols : {1, 5, 64, 100, 777}) {
      for (double fewer : {0.0, 0.3, 0.999}) {
        const IndexShape shape{.cols = cols, .n = n, .m = m};
        all.push_back({nm_mask(131, shape, fewer, seed++), Encoding::nm, shape});
      }
    }
  }
  for (const auto& [height, width] :
       {std::pair{16, 16}, {1, 16}, {8, 1}, {1, 1}, {7, 5}, {1000, 64}, {3, 2000}}) {
    for (int64_t cols : {1, 16, 100, 1025}) {
      for (double density : {0.0, 0.02, 0.1, 0.5, 1.0}) {
        const IndexShape shape{.cols = cols, .height = height, .width = width};
        all.push_back({block_mask(101, shape, density, seed++), Encoding::block, shape});
      }
    }
  }
  return all;
}

}  // namespace espalier::sparse
