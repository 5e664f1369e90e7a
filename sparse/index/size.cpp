// Names and bytes of the encodings: what an index takes before one exists, and which one to choose.
#include <algorithm>
#include <array>
#include <cmath>

#include "sparse/index/codings.h"
#include "sparse/index/index.h"
#include "src/core/error.h"

namespace espalier::sparse {
namespace {

constexpr std::array<std::string_view, 9> kNames{"full",       "int32", "delta", "bitmap", "golomb",
                                                 "elias-fano", "nm",    "block", "entropy"};

}  // namespace

void check_counts(int64_t size, int64_t kept) {
  check(size >= 0 && size <= kMaxElements,
        "index: a parameter of {} elements is outside [0, {}]: positions are 32-bit", size,
        kMaxElements);
  check(kept >= 0 && kept <= size, "index: {} kept elements are outside [0, {}]", kept, size);
}

std::string_view name_of(Encoding encoding) { return kNames.at(static_cast<size_t>(encoding)); }

Encoding encoding_by_name(std::string_view name) {
  const auto* found = std::ranges::find(kNames, name);
  check(found != kNames.end(), "unknown index encoding \"{}\": use one of {}", name,
        fmt::join(kNames, ", "));
  return static_cast<Encoding>(found - kNames.begin());
}

size_t predicted_bytes(Encoding encoding, int64_t size, int64_t kept, const IndexShape& shape) {
  check_counts(size, kept);
  if (kept == size) {
    return 0;
  }
  if (encoding == Encoding::entropy) {
    return static_cast<size_t>(std::ceil(entropy_bound_bytes(size, kept)));
  }
  if (encoding == Encoding::nm) {
    check_nm_shape(size, shape);
  } else if (encoding == Encoding::block) {
    check_block_shape(size, shape);
  }
  const Coding& coding = coding_of(encoding);
  const Counts counts{size, kept, shape};
  return static_cast<size_t>(std::ceil(coding.expected_bytes(counts))) +
         static_cast<size_t>(coding.rank_count(counts)) * sizeof(uint32_t);
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
  check_counts(size, kept);
  if (kept == size) {
    return Encoding::full;
  }
  const size_t bitmap = predicted_bytes(Encoding::bitmap, size, kept);
  return predicted_bytes(Encoding::golomb, size, kept) < bitmap - bitmap / 10 ? Encoding::golomb
                                                                              : Encoding::bitmap;
}

namespace {

/// The best for any mask, or one of nm and block where they are possible and smaller.
template <class IsPossible>
Encoding best_of(int64_t size, int64_t kept, const IndexShape& shape, IsPossible is_possible) {
  Encoding best = best_encoding(size, kept);
  for (const Encoding encoding : {Encoding::nm, Encoding::block}) {
    if (best != Encoding::full && is_possible(encoding) &&
        predicted_bytes(encoding, size, kept, shape) < predicted_bytes(best, size, kept, shape)) {
      best = encoding;
    }
  }
  return best;
}

}  // namespace

Encoding best_encoding(const Mask& mask, const IndexShape& shape) {
  return best_of(mask.size(), mask.kept(), shape, [&](Encoding encoding) {
    return encoding == Encoding::nm ? is_nm(mask, shape) : is_block(mask, shape);
  });
}

Encoding best_encoding(int64_t size, int64_t kept, const IndexShape& shape) {
  return best_of(size, kept, shape, [&](Encoding encoding) {
    return encoding == Encoding::nm ? has_groups(size, shape) : has_blocks(size, shape);
  });
}

}  // namespace espalier::sparse
