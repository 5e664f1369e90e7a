#pragma once
// Selects the k largest of many 32-bit keys, exactly, without copying or sorting them. A histogram
// of the upper 16 bits finds the bin of the k-th largest key; a histogram of the lower 16 bits
// within that bin finds the key. Keys are visited three times (two histograms, one decision): O(n)
// time, 512 KiB. If ranks compete, they sum their histograms: 1 MiB per rank and decision, for any
// model. Fewer than 2^16 keys are taken in four digits of 8 bits, which need 2 KiB at a time.
//
// Magnitudes are used as keys: non-negative floats have the same order as their bits.
#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <span>
#include <vector>

#include "pruning/candidate.h"
#include "src/core/error.h"
#include "src/core/rng.h"

namespace espalier::pruning {

/// |value| as a key: a larger magnitude gives a larger key. The key of a NaN would exceed infinity;
/// check_candidate rejects NaN.
inline uint32_t magnitude_key(float value) { return std::bit_cast<uint32_t>(value) & 0x7fffffffU; }

/// `value` as a key: larger values give larger keys; -0 counts as +0. Not for NaN.
inline uint32_t ordered_key(float value) {
  const auto bits = std::bit_cast<uint32_t>(value + 0.0F);
  return bits >> 31 != 0 ? ~bits : bits | 0x80000000U;
}

/// Random keys of the elements of a parameter, a function of (seed, name, counter, position); for
/// ascending positions. Four positions share a draw.
class RandomKeys {
 public:
  RandomKeys(uint64_t seed, std::string_view name, uint64_t counter);
  uint32_t operator()(int64_t position) {
    if (position / 4 != drawn_) {
      drawn_ = position / 4;
      words_ = philox(key_, counter_, static_cast<uint64_t>(drawn_));
    }
    return words_[static_cast<size_t>(position % 4)];
  }
  /// The keys of positions [first, first + 64); `first` is a multiple of 4.
  std::array<uint32_t, 64> block(int64_t first) const {
    return philox_block(key_, counter_, static_cast<uint64_t>(first) / 4);
  }

 private:
  uint64_t key_, counter_;
  int64_t drawn_ = -1;
  Philox words_{};
};

bool has_nan(std::span<const float> values);
/// The place of `name` in `names`; throws Failure that begins with `what` and lists them.
size_t number_of(std::span<const std::string_view> names, std::string_view what,
                 std::string_view name);

/// Keeps every key above `key`, and the first `ties` keys equal to it.
struct Threshold {
  uint32_t key = 0;
  int64_t ties = 0;
};

/// The bin of the k-th largest key, and k minus the number of keys in bins above it.
struct Bin {
  uint32_t bin = 0;
  int64_t rest = 0;
};
/// 1 <= k <= sum of `counts`, which are keys by bin; first adds those of all ranks.
Bin kth_largest(int64_t k, std::vector<int64_t>& counts, const GlobalSelection* selection);

/// `visit(fn)` calls fn(key) for every key, in the same order each time. Keeps k >= 1 of `count`
/// keys, over all ranks of a selection.
template <class Visit>
Threshold select_largest(int64_t k, int64_t count, Visit&& visit,
                         const GlobalSelection* selection = nullptr) {
  const int digit = count < (1 << 16) ? 8 : 16;  // bits
  std::vector<int64_t> bins(size_t{1} << digit);
  Threshold limit{.key = 0, .ties = k};
  for (int shift = 32 - digit; shift >= 0; shift -= digit) {
    std::ranges::fill(bins, 0);
    visit([&bins, shift, digit, above = uint64_t{limit.key}](uint32_t key) {
      const uint64_t upper = key >> shift;
      if (upper >> digit == above) {
        ++bins[upper & (bins.size() - 1)];
      }
    });
    const Bin found = kth_largest(limit.ties, bins, selection);
    limit = {.key = (limit.key << digit) | found.bin, .ties = found.rest};
  }
  return limit;
}

/// Candidates [first, first + count), which are pruned together.
struct Group {
  size_t first = 0;
  size_t count = 0;
  int64_t kept = 0;  ///< elements, now; over all ranks of a selection
  int64_t keep = 0;  ///< of them that remain
};

/// The ranks that a group spans: in global scope the settings' global_selection, else null.
inline const GlobalSelection* global_selection_of(const Settings& settings) {
  return settings.scope == Scope::global ? settings.global_selection : nullptr;
}

/// Distributes `ties` over the candidates here, which have equal[i] tied elements; earlier
/// candidates come first.
std::vector<int64_t> share_ties(int64_t ties, std::span<const int64_t> equal,
                                const GlobalSelection& selection);

/// In global scope one group of all candidates, else one group per candidate. Throws Failure if a
/// layer would keep nothing. If the target exceeds the elements that are kept now, adds a warning
/// and keeps all of them.
std::vector<Group> groups(std::span<const Candidate> candidates, const Settings& settings,
                          std::vector<std::string>& warnings);

/// Copies of the current masks, from which a method starts.
std::vector<sparse::Mask> current_masks(std::span<const Candidate> candidates);

/// Keeps the elements with the largest keys in each group. `keys(i, mask, fn)` calls
/// fn(position, key) for every kept element of candidate i, ascending.
template <class Keys>
Result keep_largest(std::span<const Candidate> candidates, const Settings& settings, Keys&& keys) {
  Result result{.masks = current_masks(candidates), .warnings = {}};
  const GlobalSelection* selection = global_selection_of(settings);
  for (const Group& group : groups(candidates, settings, result.warnings)) {
    const size_t end = group.first + group.count;
    Threshold limit{.key = ~0U, .ties = 0};
    const auto visit = [&](auto&& add) {
      for (size_t i = group.first; i < end; ++i) {
        keys(i, result.masks[i], [&add, i](int64_t, uint32_t key) { add(i, key); });
      }
    };
    if (group.keep > 0) {
      limit = select_largest(
          group.keep, group.kept,
          [&](auto&& add) { visit([&add](size_t, uint32_t key) { add(key); }); }, selection);
    }
    std::vector<int64_t> shares;  // ties by candidate; without a selection, the first ones
    if (selection != nullptr) {
      std::vector<int64_t> equal(group.count, 0);
      visit([&](size_t i, uint32_t key) { equal[i - group.first] += key == limit.key ? 1 : 0; });
      shares = share_ties(limit.ties, equal, *selection);
    }
    for (size_t i = group.first; i < end; ++i) {
      sparse::Mask& mask = result.masks[i];
      int64_t& ties = selection != nullptr ? shares[i - group.first] : limit.ties;
      keys(i, mask, [&](int64_t position, uint32_t key) {
        const bool kept = key > limit.key || (key == limit.key && ties-- > 0);
        if (!kept) {
          mask.set(position, false);
        }
      });
    }
  }
  return result;
}

/// Keeps the elements with the largest Candidate::scores, by sign and size.
Result keep_largest_scores(std::span<const Candidate> candidates, const Settings& settings);

/// Keeps the elements with the largest |value|.
Result keep_largest_magnitudes(std::span<const Candidate> candidates, const Settings& settings);

}  // namespace espalier::pruning
