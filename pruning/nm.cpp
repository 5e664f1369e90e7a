// Keeps at most N of every M consecutive elements of a row, the largest. Groups start at column 0.
// The last group of a row may be shorter than M; it keeps at most N too, as if padded with zeros.
// Source: Mishra et al., "Accelerating sparse deep neural networks", 2021 (2:4), section 3.
#include <algorithm>
#include <functional>

#include "pruning/registry.h"
#include "pruning/selection.h"
#include "src/core/error.h"

namespace espalier::pruning {
namespace {

/// The kept elements of one group as key << 32 | ~position: descending order puts larger magnitudes
/// first, then lower positions.
class NmGroup {
 public:
  explicit NmGroup(int n) : n_(static_cast<size_t>(n)) {}

  void add(int64_t position, float value) {
    members_.push_back(uint64_t{magnitude_key(value)} << 32 | ~static_cast<uint32_t>(position));
  }
  /// Clears all but the n largest, and starts the next group.
  void close(sparse::Mask& mask) {
    if (members_.size() > n_) {
      std::ranges::sort(members_, std::greater<>());
      for (size_t i = n_; i < members_.size(); ++i) {
        mask.set(~static_cast<uint32_t>(members_[i]), false);
      }
    }
    members_.clear();
  }

 private:
  size_t n_;
  std::vector<uint64_t> members_;
};

void prune_one(const Candidate& candidate, const Settings& settings, sparse::Mask& mask) {
  const int64_t cols = candidate.shape.cols();
  const float* value = candidate.values.data();
  NmGroup group(settings.n);
  int64_t row_begin = 0;
  int64_t group_end = 0;
  sparse::for_each_one(mask.words(), [&](int64_t position) {
    if (position >= group_end) {
      group.close(mask);
      if (position - row_begin >= cols) {
        row_begin = position / cols * cols;
      }
      const int64_t column = position - row_begin;
      group_end = row_begin + std::min(cols, (column / settings.m + 1) * settings.m);
    }
    group.add(position, *value++);
  });
  group.close(mask);
}

double sparsity(const io::PruningConfig& config) {
  return 1.0 - static_cast<double>(config.n) / static_cast<double>(config.m);
}

sparse::IndexShape group_shape(const io::PruningConfig& config) {
  return {.n = static_cast<int>(config.n), .m = static_cast<int>(config.m)};
}

void check_groups(const io::PruningConfig& config) {
  check(config.n < config.m,
        "pruning.method = \"nm\": n = {} is not below m = {}; set a smaller n, such as 2 of 4",
        config.n, config.m);
  check(!config.gradual(),
        "pruning.method = \"nm\" cannot prune gradually, because its sparsity is always 1 - n/m; "
        "set pruning.at_step instead of from_step and to_step");
}

Result nm(std::span<const Candidate> candidates, const Settings& settings) {
  Result result;
  for (const Candidate& candidate : candidates) {
    prune_one(candidate, settings, result.masks.emplace_back(candidate.index->mask()));
  }
  return result;
}

}  // namespace

extern const Method kGroups{
    .name = "nm",
    .help = "the largest n of every m consecutive elements of a row",
    .run = nm,
    .by_layer = true,
    .sparsity = sparsity,
    .shape = group_shape,
    .check_config = check_groups,
};

}  // namespace espalier::pruning
