#include "sparse/index/registry.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "src/core/error.h"

namespace espalier::sparse {
namespace {

/// Encodings of earlier versions, with the last version that has them and its value of
/// `sparse.file_index` for a file without them.
struct Removed {
  std::string_view name, since, last, file_index;
};
constexpr std::array<Removed, 3> kRemoved{{{"delta", "0.2", "0.1", "auto"},
                                           {"elias-fano", "0.2", "0.1", "auto"},
                                           {"entropy", "0.3", "0.2", "golomb"}}};

/// The best for any mask, or one with a form of its own where that is possible and smaller.
template <class IsPossible>
const Encoding& best_of(int64_t size, int64_t kept, const IndexShape& shape,
                        IsPossible is_possible) {
  const Encoding* best = &best_encoding(size, kept);
  for (const Encoding* encoding : encodings()) {
    if (encoding->rules != nullptr && *best != Encoding::full && is_possible(*encoding->rules) &&
        predicted_bytes(*encoding, size, kept, shape) < predicted_bytes(*best, size, kept, shape)) {
      best = encoding;
    }
  }
  return *best;
}

}  // namespace

const Encoding& encoding_by_name(std::string_view name) {
  for (const Removed& removed : kRemoved) {
    check(removed.name != name,
          "index encoding \"{}\" is not supported since version {}: set sparse.index = \"auto\"; "
          "rewrite an old checkpoint with version {} and sparse.file_index = \"{}\"",
          name, removed.since, removed.last, removed.file_index);
  }
  return find(encodings(), "index encoding", name);
}

int32_t number_of(const Encoding& encoding) {
  const auto found =
      std::ranges::find(Encoding::kAll, encoding, [](const Encoding* entry) { return *entry; });
  require(found != Encoding::kAll.end(), "a registered encoding", encoding.name);
  return static_cast<int32_t>(found - Encoding::kAll.begin());
}

std::vector<const Encoding*> memory_encodings() {
  std::vector<const Encoding*> found;
  for (const Encoding* encoding : encodings()) {
    if (*encoding != Encoding::full) {
      found.push_back(encoding);
    }
  }
  return found;
}

void check_counts(int64_t size, int64_t kept) {
  check(size <= kMaxElements,
        "index: a parameter of {} elements is too large: positions are 32-bit", size);
  check_planned_counts(size, kept);
}

void check_planned_counts(int64_t size, int64_t kept) {
  check(size >= 0 && size <= kMaxPlannedElements,
        "index: a parameter of {} elements is outside [0, {}]", size, kMaxPlannedElements);
  check(kept >= 0 && kept <= size, "index: {} kept elements are outside [0, {}]", kept, size);
}

size_t predicted_bytes(const Encoding& encoding, int64_t size, int64_t kept,
                       const IndexShape& shape) {
  check_planned_counts(size, kept);
  if (kept == size) {
    return 0;
  }
  if (encoding.rules != nullptr) {
    encoding.rules->check(size, shape);
  }
  const Counts counts{size, kept, shape};
  const Coding& coding = *encoding.coding;
  const size_t data = coding.expected_bytes == nullptr
                          ? coding.exact_bytes(Mask(), counts)
                          : static_cast<size_t>(std::ceil(coding.expected_bytes(counts)));
  return data + static_cast<size_t>(coding.prefix_counts_size(counts)) * sizeof(uint32_t);
}

double entropy_bound_bytes(int64_t size, int64_t kept) {
  check_planned_counts(size, kept);
  if (kept == 0 || kept == size) {
    return 0;
  }
  const double f = static_cast<double>(kept) / static_cast<double>(size);
  const double bits = -f * std::log2(f) - (1 - f) * std::log2(1 - f);
  return bits * static_cast<double>(size) / 8;
}

const Encoding& best_encoding(int64_t size, int64_t kept) {
  check_planned_counts(size, kept);
  if (kept == size) {
    return Encoding::full;
  }
  const size_t bitmap = predicted_bytes(Encoding::bitmap, size, kept);
  const size_t golomb = predicted_bytes(Encoding::golomb, size, kept);
  return golomb < bitmap - bitmap / 10 ? Encoding::golomb : Encoding::bitmap;
}

const Encoding& best_encoding(const Mask& mask, const IndexShape& shape) {
  return best_of(mask.size(), mask.kept(), shape,
                 [&](const ShapeRules& rules) { return rules.holds(mask, shape); });
}

const Encoding& best_encoding(int64_t size, int64_t kept, const IndexShape& shape) {
  return best_of(size, kept, shape,
                 [&](const ShapeRules& rules) { return rules.possible(size, shape); });
}

}  // namespace espalier::sparse
