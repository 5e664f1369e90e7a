#include "pruning/selection.h"

#include <algorithm>

namespace espalier::pruning {
namespace {

/// All of `members`, the first of which is candidate number `first`.
Group group_of(std::span<const Candidate> members, size_t first, const Settings& settings,
               std::vector<std::string>& warnings) {
  int64_t size = 0;
  int64_t kept = 0;
  for (const Candidate& candidate : members) {
    size += candidate.index->size();
    kept += candidate.index->kept();
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
  return {.first = first, .count = members.size(), .keep = std::min(target, kept)};
}

}  // namespace

Histogram::Found Histogram::kth_largest(int64_t k) const {
  int64_t rest = k;
  for (size_t bin = counts_.size(); bin-- > 0;) {
    if (counts_[bin] >= rest) {
      return {static_cast<uint32_t>(bin), rest};
    }
    rest -= counts_[bin];
  }
  throw_bug("no more keys are kept than there are", fmt::format(" {} {}", k, k - rest));
}

std::vector<Group> groups(std::span<const Candidate> candidates, const Settings& settings,
                          std::vector<std::string>& warnings) {
  std::vector<Group> groups;
  if (candidates.empty()) {
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

std::vector<sparse::Mask> current_masks(std::span<const Candidate> candidates) {
  std::vector<sparse::Mask> masks;
  masks.reserve(candidates.size());
  for (const Candidate& candidate : candidates) {
    masks.push_back(candidate.index->mask());
  }
  return masks;
}

}  // namespace espalier::pruning
