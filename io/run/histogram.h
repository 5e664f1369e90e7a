#pragma once
// A histogram of many numbers in one pass and bounded memory, with bins for any magnitude.
//
// A bin is one sign and an eighth of an octave: magnitudes [2^e (1 + i/8), 2^e (1 + (i + 1)/8)),
// i = 0 … 7, so its width is 6 to 12 % of its values. Cost: some 2.3 ns a number; memory: 32 KiB.
#include <cstdint>
#include <limits>
#include <vector>

#include "src/core/tensor.h"

namespace espalier::io {

class Histogram {
 public:
  Histogram() : counts_(kBins) {}

  /// Numbers in host memory (fp32, bf16 or fp16, contiguous). Those that are not finite are left
  /// out.
  void add(const Tensor& numbers);

  int64_t count() const { return count_; }
  double min() const { return min_; }  ///< infinite if there is no number
  double max() const { return max_; }
  double sum() const { return sum_; }
  double sum_of_squares() const { return squares_; }

  /// Numbers below `limit` that are not in an earlier bucket (negative numbers: or equal to it).
  struct Bucket {
    double limit = 0;
    int64_t count = 0;
  };
  /// In ascending order, at most 193. The magnitudes more than 12 octaves below the largest one
  /// share one bucket; empty neighbours are joined. The first and the last have numbers.
  std::vector<Bucket> buckets() const;

 private:
  static constexpr size_t kBins = 4096;  ///< sign, 8 bits of exponent, 3 of fraction

  std::vector<int64_t> counts_;  ///< [kBins]
  int64_t count_ = 0;
  double sum_ = 0, squares_ = 0;
  double min_ = std::numeric_limits<double>::infinity(), max_ = -min_;
};

}  // namespace espalier::io
