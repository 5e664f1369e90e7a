// Random pruning is magnitude pruning of random keys. The key of an element depends on seed,
// parameter name and position only. So counts are exact, every rank draws the same keys, and for
// one seed a higher sparsity keeps a subset of the elements of a lower one.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <iterator>
#include <optional>
#include <vector>

#include "pruning/registry.h"
#include "pruning/selection.h"

namespace espalier::pruning {
namespace {

/// Keys within [low, high] are compared one by one; larger ones are kept, smaller ones pruned.
struct Window {
  uint32_t low, high;
};

/// Eight standard deviations around the expected threshold of the `keep` largest of `count` keys.
Window window_of(int64_t keep, int64_t count) {
  const double n = static_cast<double>(std::max<int64_t>(1, count));
  const double f = static_cast<double>(keep) / n;
  const double middle = 0x1p32 * (1 - f);
  const double reach = 0x1p32 * 8 * std::sqrt(f * (1 - f) / n) + 16;
  return {static_cast<uint32_t>(std::clamp(middle - reach, 0.0, 0x1p32 - 1)),
          static_cast<uint32_t>(std::clamp(middle + reach, 0.0, 0x1p32 - 1))};
}

/// Bit i is byte i, which is 0 or 1.
uint64_t bits_of(const std::array<uint8_t, 64>& bytes) {
  uint64_t bits = 0;
  for (size_t i = 0; i < 64; i += 8) {
    uint64_t eight;
    std::memcpy(&eight, bytes.data() + i, 8);
    bits |= (eight * 0x0102040810204080U >> 56) << i;  // each byte's bit moves to its place on top
  }
  return bits;
}

/// An element whose key is in the window.
struct Near {
  uint32_t key;
  size_t candidate;
  int64_t position;
};

/// The masks of a group whose candidates keep all elements now: those of keep_largest, drawing each
/// key once instead of three times. Nothing if the threshold is not in the window.
std::optional<std::vector<sparse::Mask>> masks_of_whole(std::span<const Candidate> candidates,
                                                        const Group& group, uint64_t seed) {
  const Window window = window_of(group.keep, group.kept);
  std::vector<std::vector<uint64_t>> words(group.count);
  std::vector<Near> near;
  int64_t above = 0;
  for (size_t i = 0; i < group.count; ++i) {
    const Candidate& candidate = candidates[group.first + i];
    const int64_t size = candidate.index->size();
    const RandomKeys keys(seed, candidate.name, 0);
    words[i].reserve(static_cast<size_t>(size + 63) / 64);
    for (int64_t first = 0; first < size; first += 64) {
      const std::array<uint32_t, 64> block = keys.block(first);
      const auto n = static_cast<size_t>(std::min<int64_t>(64, size - first));
      std::array<uint8_t, 64> larger;
      uint32_t any_near = 0;
      for (size_t b = 0; b < 64; ++b) {
        larger[b] = block[b] > window.high ? 1 : 0;
        any_near |= block[b] - window.low <= window.high - window.low ? 1U : 0U;
      }
      uint64_t kept = bits_of(larger);
      kept = n == 64 ? kept : kept & ((uint64_t{1} << n) - 1);
      for (size_t b = 0; any_near != 0 && b < n; ++b) {
        if (block[b] >= window.low && block[b] <= window.high) {
          near.push_back({block[b], i, first + static_cast<int64_t>(b)});
        }
      }
      above += std::popcount(kept);
      words[i].push_back(kept);
    }
  }
  const int64_t rest = group.keep - above;
  if (rest < 0 || rest > std::ssize(near)) {
    return {};
  }
  // Equal keys stay in their order.
  std::ranges::stable_sort(near, std::ranges::greater{}, &Near::key);
  for (const Near& n : std::span(near).first(static_cast<size_t>(rest))) {
    words[n.candidate][static_cast<size_t>(n.position / 64)] |= uint64_t{1} << (n.position % 64);
  }
  std::vector<sparse::Mask> masks;
  for (size_t i = 0; i < group.count; ++i) {
    masks.push_back(sparse::Mask::from_words(candidates[group.first + i].index->size(), words[i]));
    words[i] = {};
  }
  return masks;
}

/// Nothing if another way has to make the masks.
std::optional<Result> random_of_whole(std::span<const Candidate> candidates,
                                      const Settings& settings) {
  const bool whole = std::ranges::all_of(candidates, [](const Candidate& candidate) {
    return candidate.index->kept() == candidate.index->size();
  });
  if (!whole || global_selection_of(settings) != nullptr) {
    return {};
  }
  Result result;
  for (const Group& group : groups(candidates, settings, result.warnings)) {
    std::optional<std::vector<sparse::Mask>> masks =
        masks_of_whole(candidates, group, settings.seed);
    if (!masks) {
      return {};
    }
    std::ranges::move(*masks, std::back_inserter(result.masks));
  }
  return result;
}

Result random(std::span<const Candidate> candidates, const Settings& settings) {
  if (std::optional<Result> result = random_of_whole(candidates, settings)) {
    return std::move(*result);
  }
  return keep_largest(candidates, settings, [&](size_t i, const sparse::Mask& mask, auto&& fn) {
    RandomKeys key(settings.seed, candidates[i].name, 0);
    sparse::for_each_one(mask.words(), [&](int64_t position) { fn(position, key(position)); });
  });
}

}  // namespace

extern const Method kRandom{
    .name = "random",
    .help = "drawn at random",
    .run = random,
    .needs_values = false,
    .random = true,
};

}  // namespace espalier::pruning
