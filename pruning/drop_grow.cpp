#include "pruning/drop_grow.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "pruning/pruning.h"
#include "pruning/registry.h"
#include "pruning/selection.h"
#include "src/core/error.h"

namespace espalier::pruning {
namespace {

constexpr std::array<std::string_view, 2> kDistributions{"uniform", "erk"};

/// Calls fn(position) for each pruned element, ascending. `fn` may set the bit it is called for.
template <class Fn>
void for_each_pruned(const sparse::Mask& mask, Fn&& fn) {
  const std::span<const uint64_t> words = mask.words();
  for (size_t w = 0; w < words.size(); ++w) {
    const auto base = static_cast<int64_t>(w) * 64;
    for (uint64_t pruned = ~words[w]; pruned != 0; pruned &= pruned - 1) {
      const int64_t position = base + std::countr_zero(pruned);
      if (position >= mask.size()) {
        return;  // bits beyond the size are zero as well
      }
      fn(position);
    }
  }
}

/// Adds the `count` pruned elements with the largest keys; `keys(fn)` calls fn(position, key) for
/// every pruned element, ascending.
template <class Keys>
void grow_largest(int64_t count, sparse::Mask& mask, Keys&& keys) {
  require(count >= 0 && count <= mask.size() - mask.kept(), "no more grow than are pruned", count,
          mask.size() - mask.kept());
  if (count == 0) {
    return;
  }
  Threshold limit = select_largest(count, mask.size() - mask.kept(), [&](auto&& add) {
    keys([&](int64_t, uint32_t key) { add(key); });
  });
  keys([&](int64_t position, uint32_t key) {
    if (key > limit.key || (key == limit.key && limit.ties-- > 0)) {
      mask.set(position, true);
    }
  });
}

double dimensions(const Shape& shape) {
  double sum = 0;
  for (int i = 0; i < shape.rank(); ++i) {
    sum += static_cast<double>(shape[i]);
  }
  return sum;
}

/// Erdős-Rényi-kernel counts: epsilon · (sum of sizes) elements per shape, at most its size;
/// epsilon distributes the rest of `target` over shapes that are not full. At most one round per
/// shape.
std::vector<double> erk_counts(std::span<const Shape> shapes, double target) {
  std::vector<double> counts(shapes.size());
  std::vector<bool> full(shapes.size());
  for (bool again = true; again;) {
    again = false;
    double left = target;
    double weight = 0;
    for (size_t i = 0; i < shapes.size(); ++i) {
      left -= full[i] ? static_cast<double>(shapes[i].count()) : 0.0;
      weight += full[i] ? 0.0 : dimensions(shapes[i]);
    }
    const double epsilon = weight > 0 ? left / weight : 0.0;
    for (size_t i = 0; i < shapes.size(); ++i) {
      const auto size = static_cast<double>(shapes[i].count());
      counts[i] = full[i] ? size : epsilon * dimensions(shapes[i]);
      if (counts[i] > size) {
        full[i] = again = true;
      }
    }
  }
  return counts;
}

}  // namespace

Distribution distribution_by_name(std::string_view name) {
  return static_cast<Distribution>(
      number_of(kDistributions, "unknown distribution of densities", name));
}

std::vector<int64_t> start_counts(std::span<const Shape> shapes, double sparsity,
                                  Distribution distribution) {
  check_sparsity(sparsity);
  std::vector<double> wanted;
  double all = 0;
  for (const Shape& shape : shapes) {
    wanted.push_back((1 - sparsity) * static_cast<double>(shape.count()));
    all += static_cast<double>(shape.count());
  }
  if (distribution == Distribution::erk) {
    wanted = erk_counts(shapes, (1 - sparsity) * all);
  }
  // Differences of rounded running sums, so that the counts add up exactly.
  std::vector<int64_t> counts;
  double sum = 0;
  for (size_t i = 0; i < shapes.size(); ++i) {
    const int64_t before = std::llround(sum);
    sum += wanted[i];
    counts.push_back(std::clamp<int64_t>(std::llround(sum) - before, 0, shapes[i].count()));
  }
  return counts;
}

Result random_start(std::span<const Candidate> candidates, const Settings& settings,
                    Distribution distribution) {
  std::vector<Shape> shapes;
  for (const Candidate& candidate : candidates) {
    shapes.push_back(candidate.shape);
  }
  const std::vector<int64_t> counts = start_counts(shapes, settings.sparsity, distribution);
  Result result;
  for (size_t i = 0; i < candidates.size(); ++i) {
    check(counts[i] > 0 || shapes[i].count() == 0,
          "\"{}\" has {} elements and would keep none at sparsity {:.6g}: exclude it or lower the "
          "sparsity",
          candidates[i].name, shapes[i].count(), settings.sparsity);
    Settings alone = settings;
    alone.method = "random";
    alone.scope = Scope::layer;
    const auto size = static_cast<double>(std::max<int64_t>(shapes[i].count(), 1));
    alone.sparsity = std::max(0.0, 1 - static_cast<double>(counts[i]) / size);
    Result one = prune(candidates.subspan(i, 1), alone);
    result.masks.push_back(std::move(one.masks.front()));
    std::ranges::move(one.warnings, std::back_inserter(result.warnings));
  }
  return result;
}

int64_t drop_count(int64_t kept, double fraction) {
  require(fraction >= 0 && fraction <= 1, "a share is dropped", fraction);
  return std::llround(fraction * static_cast<double>(kept));
}

sparse::Mask drop_to(const Candidate& candidate, int64_t keep) {
  check_candidate(candidate, true);
  require(keep >= 0 && keep <= candidate.index->kept(), "no more survive than are kept", keep,
          candidate.index->kept());
  sparse::Mask mask(candidate.shape.count(), false);
  if (keep == 0) {
    return mask;
  }
  Threshold limit = select_largest(keep, candidate.index->kept(), [&](auto&& add) {
    for (const float value : candidate.values) {
      add(magnitude_key(value));
    }
  });
  const sparse::Mask now = candidate.index->mask();
  const float* value = candidate.values.data();
  sparse::for_each_one(now.words(), [&](int64_t position) {
    const uint32_t key = magnitude_key(*value++);
    if (key > limit.key || (key == limit.key && limit.ties-- > 0)) {
      mask.set(position, true);
    }
  });
  return mask;
}

namespace {

/// |gradient| by the root mean squares of its row and of its column, times that of the matrix. The
/// gradient of a matrix is Σ δ xᵀ: by |gradient| alone, a few rows (large δ) and columns (large x)
/// take all growth, and other neurons lose their last element. Lines of one element count as 1, and
/// so do scales that are zero or infinite.
class RelativeGradient {
 public:
  RelativeGradient(std::span<const float> gradient, int64_t columns)
      : gradient_(gradient),
        columns_(static_cast<size_t>(columns)),
        row_scale_(gradient.size() / columns_),
        column_scale_(columns_) {
    double all = 0;
    for (size_t i = 0; i < gradient.size(); ++i) {
      const double square = static_cast<double>(gradient[i]) * static_cast<double>(gradient[i]);
      row_scale_[i / columns_] += square;
      column_scale_[i % columns_] += square;
      all += square;
    }
    for (double& scale : row_scale_) {
      const double share = scale / all * static_cast<double>(row_scale_.size());
      scale = columns_ > 1 ? std::sqrt(share) : 1;
    }
    for (double& scale : column_scale_) {
      const double mean = scale / static_cast<double>(row_scale_.size());
      scale = row_scale_.size() > 1 ? std::sqrt(mean) : 1;
    }
  }
  uint32_t operator()(int64_t position) const {
    const auto i = static_cast<size_t>(position);
    const double scale = row_scale_[i / columns_] * column_scale_[i % columns_];
    const bool usable = scale > 0 && std::isfinite(scale);
    return magnitude_key(usable ? static_cast<float>(static_cast<double>(gradient_[i]) / scale)
                                : gradient_[i]);
  }

 private:
  std::span<const float> gradient_;
  size_t columns_;
  std::vector<double> row_scale_;     ///< relative to the matrix
  std::vector<double> column_scale_;  ///< absolute
};

void grow_by_gradient(const Growth& growth, sparse::Mask& mask) {
  require(static_cast<int64_t>(growth.gradient.size()) == mask.size() &&
              mask.size() % growth.columns == 0,
          "a gradient for each element", growth.name, growth.gradient.size(), mask.size());
  check(!has_nan(growth.gradient),
        "pruning: the gradient of parameter \"{}\" holds a NaN: training has diverged, start from "
        "an earlier checkpoint with a lower optimizer.lr",
        growth.name);
  const RelativeGradient key(growth.gradient, growth.columns);
  grow_largest(growth.count, mask, [&](auto&& fn) {
    for_each_pruned(mask, [&](int64_t position) { fn(position, key(position)); });
  });
}

/// A pure function of (seed, step, name, mask): each pruned element is equally likely.
void grow_at_random(const Growth& growth, sparse::Mask& mask) {
  grow_largest(growth.count, mask, [&](auto&& fn) {
    // Counters use step + 1: method random, which may have made the first masks, uses those of
    // zero.
    RandomKeys key(growth.seed, growth.name, static_cast<uint64_t>(growth.step) + 1);
    for_each_pruned(mask, [&](int64_t position) { fn(position, key(position)); });
  });
}

}  // namespace

extern const Method kRigl{
    .name = "rigl",
    .help = "masks that move: drops the smallest |value|, grows the largest relative |gradient|",
    .run = keep_largest_magnitudes,
    .every = 100,
    .kind = Moving{.grow = grow_by_gradient, .by_gradient = true},
};

extern const Method kSet{
    .name = "set",
    .help = "masks that move: drops the smallest |value|, grows at random",
    .run = keep_largest_magnitudes,
    .every = 100,
    .kind = Moving{.grow = grow_at_random},
};

}  // namespace espalier::pruning
