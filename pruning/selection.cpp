#include "pruning/selection.h"

#include <fmt/ranges.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace espalier::pruning {
namespace {

/// The group of all `members`; members[0] is candidate number `first`.
Group group_of(std::span<const Candidate> members, size_t first, const Settings& settings,
               std::vector<std::string>& warnings) {
  std::array<int64_t, 2> counts{};
  auto& [size, kept] = counts;
  for (const Candidate& candidate : members) {
    size += candidate.index->size();
    kept += candidate.index->kept();
  }
  if (const GlobalSelection* selection = global_selection_of(settings); selection != nullptr) {
    selection->sum(counts);
  }
  const int64_t target = kept_count(size, settings.sparsity);
  const bool layer = settings.scope == Scope::layer;
  const std::string name = layer ? fmt::format("\"{}\"", members.front().name) : "all parameters";
  check(
      !layer || target > 0 || kept == 0,
      "{} has {} elements and would keep none at sparsity {:.6g}: exclude it or lower the sparsity",
      name, size, settings.sparsity);
  if (target > kept) {
    warnings.push_back(
        fmt::format("{}: {} of {} elements are kept already, fewer than the {} of sparsity {}; "
                    "nothing comes back",
                    name, kept, size, target, settings.sparsity));
  }
  return {.first = first, .count = members.size(), .kept = kept, .keep = std::min(target, kept)};
}

}  // namespace

RandomKeys::RandomKeys(uint64_t seed, std::string_view name, uint64_t counter)
    : key_(mix(seed, XXH3_64bits(name.data(), name.size()))), counter_(counter) {}

bool has_nan(std::span<const float> values) {
  uint32_t largest = 0;  // over the bits: this loop vectorises
  for (const float value : values) {
    largest = std::max(largest, magnitude_key(value));
  }
  return largest > magnitude_key(HUGE_VALF);
}

size_t number_of(std::span<const std::string_view> names, std::string_view what,
                 std::string_view name) {
  const auto found = std::ranges::find(names, name);
  check(found != names.end(), "{} \"{}\": use one of {}", what, name, fmt::join(names, ", "));
  return static_cast<size_t>(found - names.begin());
}

Bin kth_largest(int64_t k, std::vector<int64_t>& counts, const GlobalSelection* selection) {
  if (selection != nullptr) {
    selection->sum(counts);
  }
  int64_t rest = k;
  for (size_t bin = counts.size(); bin-- > 0;) {
    if (counts[bin] >= rest) {
      return {static_cast<uint32_t>(bin), rest};
    }
    rest -= counts[bin];
  }
  throw_bug("no more keys are kept than there are", fmt::format(" {} {}", k, k - rest));
}

std::vector<Group> groups(std::span<const Candidate> candidates, const Settings& settings,
                          std::vector<std::string>& warnings) {
  std::vector<Group> groups;
  if (candidates.empty() && global_selection_of(settings) == nullptr) {
    return groups;
  }
  if (settings.scope == Scope::global) {
    groups.push_back(group_of(candidates, 0, settings, warnings));
    return groups;
  }
  for (size_t i = 0; i < candidates.size(); ++i) {
    groups.push_back(group_of(candidates.subspan(i, 1), i, settings, warnings));
  }
  return groups;
}

std::vector<int64_t> share_ties(int64_t ties, std::span<const int64_t> equal,
                                const GlobalSelection& selection) {
  require(selection.mine.size() == equal.size(), "a number for each candidate",
          selection.mine.size(), equal.size());
  std::vector<int64_t> all(selection.candidates, 0);
  for (size_t i = 0; i < equal.size(); ++i) {
    all[selection.mine[i]] = equal[i];
  }
  selection.sum(all);
  for (int64_t& some : all) {
    some = std::min(some, ties);
    ties -= some;
  }
  std::vector<int64_t> shares;
  for (const size_t number : selection.mine) {
    shares.push_back(all[number]);
  }
  return shares;
}

std::vector<sparse::Mask> current_masks(std::span<const Candidate> candidates) {
  std::vector<sparse::Mask> masks;
  masks.reserve(candidates.size());
  for (const Candidate& candidate : candidates) {
    masks.push_back(candidate.index->mask());
  }
  return masks;
}

Result keep_largest_scores(std::span<const Candidate> candidates, const Settings& settings) {
  return keep_largest(candidates, settings, [&](size_t i, const sparse::Mask& mask, auto&& fn) {
    const float* score = candidates[i].scores.data();
    sparse::for_each_one(mask.words(),
                         [&](int64_t position) { fn(position, ordered_key(*score++)); });
  });
}

Result keep_largest_magnitudes(std::span<const Candidate> candidates, const Settings& settings) {
  return keep_largest(candidates, settings, [&](size_t i, const sparse::Mask& mask, auto&& fn) {
    const float* value = candidates[i].values.data();
    sparse::for_each_one(mask.words(),
                         [&](int64_t position) { fn(position, magnitude_key(*value++)); });
  });
}

}  // namespace espalier::pruning
