// Keeps at most N of every M consecutive elements of a row, the largest or random ones. Groups
// start at column 0. The last group of a row may be shorter than M; it keeps at most N too, as if
// padded with zeros. Source: Mishra et al., "Accelerating sparse deep neural networks", 2021 (2:4),
// section 3.
#include <algorithm>
#include <functional>

#include "pruning/drop_grow.h"
#include "pruning/registry.h"
#include "pruning/selection.h"
#include "src/core/error.h"

namespace espalier::pruning {
namespace {

/// The kept elements of one group as key << 32 | ~position: descending order puts larger keys
/// first, then lower positions.
class NmGroup {
 public:
  explicit NmGroup(int n) : n_(static_cast<size_t>(n)) {}

  void add(int64_t position, uint32_t key) {
    members_.push_back(uint64_t{key} << 32 | ~static_cast<uint32_t>(position));
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

/// `key(position)` is called for the kept elements, ascending.
template <class Key>
void prune_one(const Candidate& candidate, const Settings& settings, sparse::Mask& mask,
               Key&& key) {
  const int64_t cols = candidate.shape.cols();
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
    group.add(position, key(position));
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
        "pruning.method = \"{}\": n = {} is not below m = {}; set a smaller n, such as 2 of 4",
        config.method, config.n, config.m);
  check(!config.gradual(),
        "pruning.method = \"{}\" cannot prune gradually, because its sparsity is always 1 - n/m; "
        "set pruning.at_step instead of from_step and to_step",
        config.method);
}

Result largest_of_groups(std::span<const Candidate> candidates, const Settings& settings) {
  Result result;
  for (const Candidate& candidate : candidates) {
    const float* value = candidate.values.data();
    prune_one(candidate, settings, result.masks.emplace_back(candidate.index->mask()),
              [&](int64_t) { return magnitude_key(*value++); });
  }
  return result;
}

Result random_of_groups(std::span<const Candidate> candidates, const Settings& settings) {
  Result result;
  for (const Candidate& candidate : candidates) {
    prune_one(candidate, settings, result.masks.emplace_back(candidate.index->mask()),
              RandomKeys(settings.seed, candidate.name, 0));
  }
  return result;
}

}  // namespace

extern const Method kGroups{
    .name = "nm",
    .help = "the largest n of every m consecutive elements of a row",
    .run = largest_of_groups,
    .by_layer = true,
    .sparsity = sparsity,
    .shape = group_shape,
    .check_config = check_groups,
};

extern const Method kRandomGroups{
    .name = "random-nm",
    .help = "n of every m consecutive elements of a row, drawn at random",
    .run = random_of_groups,
    .needs_values = false,
    .random = true,
    .by_layer = true,
    .sparsity = sparsity,
    .shape = group_shape,
    .check_config = check_groups,
};

extern const Method kRiglGroups{
    .name = "rigl-nm",
    .help = "rigl within groups of m, each of which keeps n",
    .run = largest_of_groups,
    .by_layer = true,
    .sparsity = sparsity,
    .shape = group_shape,
    .every = 100,
    .check_config = check_groups,
    .kind = Moving{.grow = grow_by_gradient, .by_gradient = true, .start = "random-nm"},
};

extern const Method kSetGroups{
    .name = "set-nm",
    .help = "set within groups of m, each of which keeps n",
    .run = largest_of_groups,
    .by_layer = true,
    .sparsity = sparsity,
    .shape = group_shape,
    .every = 100,
    .check_config = check_groups,
    .kind = Moving{.grow = grow_at_random, .start = "random-nm"},
};

}  // namespace espalier::pruning
