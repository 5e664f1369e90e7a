// Names and bytes of the encodings: what an index takes before one exists, and which one to choose.
#include <algorithm>
#include <array>
#include <cmath>

#include "sparse/index.h"
#include "sparse/index_codings.h"
#include "src/core/error.h"

namespace espalier::sparse {
namespace {

constexpr std::array<std::string_view, 4> kNames{"full", "int32", "delta", "bitmap"};

/// Expected bytes of the varints of a random mask: the gap reaches 128^j with probability
/// (1 - f)^(128^j), and then takes one byte more.
double expected_varint_bytes(int64_t size, int64_t kept) {
  const double pruned = 1 - static_cast<double>(kept) / static_cast<double>(size);
  double each = 1;
  for (double length = 128; length < 0x1p31; length *= 128) {
    each += std::pow(pruned, length);
  }
  return each * static_cast<double>(kept);
}

}  // namespace

void check_counts(int64_t size, int64_t kept) {
  check(size >= 0 && size <= kMaxElements,
        "index: a parameter of {} elements is outside [0, {}]: positions are 32-bit", size,
        kMaxElements);
  check(kept >= 0 && kept <= size, "index: {} kept elements are outside [0, {}]", kept, size);
}

size_t predicted_data_bytes(Encoding encoding, int64_t size, int64_t kept) {
  switch (encoding) {
    case Encoding::int32:
      return static_cast<size_t>(kept) * sizeof(int32_t);
    case Encoding::delta:
      return kept == 0 ? 0 : static_cast<size_t>(std::ceil(expected_varint_bytes(size, kept)));
    case Encoding::bitmap:
      return static_cast<size_t>(bitmap_coding::word_count(size)) * sizeof(uint64_t);
    case Encoding::full:
      break;
  }
  return 0;
}

int64_t rank_words(Encoding encoding, int64_t size, int64_t kept) {
  switch (encoding) {
    case Encoding::delta:
      return 2 * delta_coding::restart_count(kept);
    case Encoding::bitmap:
      return bitmap_coding::rank_count(size);
    default:
      return 0;
  }
}

std::string_view name_of(Encoding encoding) { return kNames.at(static_cast<size_t>(encoding)); }

Encoding encoding_by_name(std::string_view name) {
  const auto* found = std::ranges::find(kNames, name);
  check(found != kNames.end(), "unknown index encoding \"{}\": use one of {}", name,
        fmt::join(kNames, ", "));
  return static_cast<Encoding>(found - kNames.begin());
}

size_t predicted_bytes(Encoding encoding, int64_t size, int64_t kept) {
  check_counts(size, kept);
  if (kept == size) {
    return 0;
  }
  return predicted_data_bytes(encoding, size, kept) +
         static_cast<size_t>(rank_words(encoding, size, kept)) * sizeof(uint32_t);
}

double entropy_bound_bytes(int64_t size, int64_t kept) {
  check_counts(size, kept);
  if (kept == 0 || kept == size) {
    return 0;
  }
  const double f = static_cast<double>(kept) / static_cast<double>(size);
  const double bits = -f * std::log2(f) - (1 - f) * std::log2(1 - f);
  return bits * static_cast<double>(size) / 8;
}

Encoding best_encoding(int64_t size, int64_t kept) {
  // Measured (benchmarks/index_benchmark.cpp, gather of 2^24 fp32, one core with AVX-512): at
  // densities 0.5 to 0.05 kernels read a bitmap at 70-90 % of memcpy speed and no list is faster;
  // below 1/30, where a list is also the smaller one, it is (7 times and more at 0.01). Delta is
  // smaller than both below 0.13, but has to be decoded before each use, 1.3 to 3 times the time of
  // the bitmap: it is for files and tight memory, by name only.
  check_counts(size, kept);
  if (kept == size) {
    return Encoding::full;
  }
  return predicted_bytes(Encoding::int32, size, kept) <
                 predicted_bytes(Encoding::bitmap, size, kept)
             ? Encoding::int32
             : Encoding::bitmap;
}

}  // namespace espalier::sparse
