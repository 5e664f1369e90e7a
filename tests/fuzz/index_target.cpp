// Masks in files, in each registered encoding: [encoding][size: 2 bytes][kept: 2 bytes][the bytes].
// An accepted index has one form, and its positions ascend.
#include <algorithm>

#include "sparse/index/file_index.h"
#include "src/core/error.h"
#include "tests/fuzz/fuzz.h"

namespace espalier::fuzz {
namespace {

using namespace sparse;

constexpr int64_t kLongest = int64_t{1} << 12;  // four chunks of a decoder

void check_index(const Index& index, const Mask& mask, Input bytes) {
  const std::vector<int32_t> positions = index.positions();
  require(index.kept() == mask.kept() && mask.positions() == positions, "a mask and its positions",
          index.kept(), mask.kept());
  require(std::ranges::adjacent_find(positions, std::greater_equal<>()) == positions.end(),
          "positions ascend");
  require(positions.empty() || (positions.front() >= 0 && positions.back() < index.size()),
          "positions lie within the parameter", index.size());
  require(index.encoding() == Encoding::full || std::ranges::equal(index.to_bytes(), bytes),
          "a mask has one form in each encoding", index.encoding().name);
  const int64_t middle = index.size() / 2;
  const auto before = std::ranges::lower_bound(positions, middle) - positions.begin();
  require(index.kept_before(middle) == before, "kept elements before the middle", before);
}

const Registration kTarget({"index", [](Input input) {
                              Draws draws(input);
                              const auto all = encodings();
                              const Encoding& encoding = *all[draws.below(all.size(), 1)];
                              const auto size = static_cast<int64_t>(draws.below(kLongest + 1, 2));
                              const auto kept = static_cast<int64_t>(draws.below(kLongest + 1, 2));
                              const Input bytes = draws.rest();
                              const Mask mask = mask_from_file(encoding, size, kept, bytes);
                              require(mask.size() == size && mask.kept() == kept,
                                      "a mask of that size and count", mask.size(), mask.kept());
                              Arena arena;
                              check_index(Index::from_bytes(arena, encoding, size, kept, bytes),
                                          mask, bytes);
                            }});

}  // namespace
}  // namespace espalier::fuzz
