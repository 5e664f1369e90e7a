#include "pruning/drop_grow.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "pruning/block_grid.h"
#include "pruning/pruning.h"
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

/// Adds to each N:M group as many pruned elements as it has lost, those with the largest keys; of
/// equal keys the lower position first.
template <class Keys>
void grow_in_groups(const Growth& growth, sparse::Mask& mask, Keys&& keys) {
  const int64_t groups = (growth.columns + growth.group - 1) / growth.group;  // of a row
  const auto group_of = [&](int64_t position) {
    return static_cast<size_t>(position / growth.columns * groups +
                               position % growth.columns / growth.group);
  };
  std::vector<int16_t> lost(static_cast<size_t>(mask.size() / growth.columns * groups));
  sparse::for_each_one(growth.before->words(),
                       [&](int64_t position) { ++lost[group_of(position)]; });
  sparse::for_each_one(mask.words(), [&](int64_t position) { --lost[group_of(position)]; });
  std::vector<uint64_t> members;  // of one group: key << 32 | ~position
  const auto close = [&](size_t group) {
    std::ranges::sort(members, std::greater<>());
    for (int16_t i = 0; i < lost[group]; ++i) {
      mask.set(~static_cast<uint32_t>(members[static_cast<size_t>(i)]), true);
    }
    members.clear();
  };
  size_t group = 0;
  keys([&](int64_t position, uint32_t key) {
    if (const size_t next = group_of(position); next != group) {
      close(group);
      group = next;
    }
    if (lost[group] > 0) {
      members.push_back(uint64_t{key} << 32 | ~static_cast<uint32_t>(position));
    }
  });
  close(group);
}

template <class Keys>
void grow_elements(const Growth& growth, sparse::Mask& mask, Keys&& keys) {
  if (growth.group > 0) {
    grow_in_groups(growth, mask, keys);
  } else {
    grow_largest(growth.count, mask, keys);
  }
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
    const auto* moving = std::get_if<Moving>(&method_by_name(settings.method).kind);
    alone.method = moving != nullptr ? moving->start : "random";
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

sparse::Mask drop_to(const sparse::Mask& now, std::span<const float> values, int64_t keep) {
  require(keep >= 0 && keep <= std::ssize(values), "no more survive than are kept", keep,
          values.size());
  sparse::Mask mask(now.size(), false);
  if (keep == 0) {
    return mask;
  }
  Threshold limit = select_largest(keep, std::ssize(values), [&](auto&& add) {
    for (const float value : values) {
      add(magnitude_key(value));
    }
  });
  const float* value = values.data();
  sparse::for_each_one(now.words(), [&](int64_t position) {
    const uint32_t key = magnitude_key(*value++);
    if (key > limit.key || (key == limit.key && limit.ties-- > 0)) {
      mask.set(position, true);
    }
  });
  return mask;
}

bool Dropped::grows() const {
  return std::ranges::any_of(counts, [](int64_t count) { return count > 0; });
}

namespace {

Dropped drop_blocks(const Candidate& candidate, const sparse::Mask& target, double fraction,
                    int64_t edge) {
  const BlockGrid grid(candidate.shape, edge);
  const sparse::Mask now = candidate.index->mask();
  std::vector<double> squares(static_cast<size_t>(grid.count()));
  std::vector<bool> kept(squares.size());
  std::vector<bool> wanted(squares.size());
  const float* value = candidate.values.data();
  grid.for_each(now, [&](int64_t, size_t block) {
    const double x = *value++;
    squares[block] += x * x;
    kept[block] = true;
  });
  grid.for_each(target, [&](int64_t, size_t block) { wanted[block] = true; });
  Dropped dropped;
  sparse::Mask survivors(grid.count(), false);
  for (const BlockGrid::Part& part : grid.parts()) {
    sparse::Mask in_part(part.count(), false);
    std::vector<float> norms;
    int64_t keep = 0;
    for (int64_t i = 0; i < part.count(); ++i) {
      const size_t block = grid.number(part, i);
      keep += wanted[block] ? 1 : 0;
      if (kept[block]) {
        in_part.set(i, true);
        norms.push_back(static_cast<float>(std::sqrt(squares[block])));
      }
    }
    const int64_t count = drop_count(keep, fraction);
    sparse::for_each_one(drop_to(in_part, norms, keep - count).words(), [&](int64_t i) {
      survivors.set(static_cast<int64_t>(grid.number(part, i)), true);
    });
    dropped.counts.push_back(count);
  }
  dropped.mask = grid.elements(survivors);
  return dropped;
}

void grow_blocks(const Moving& kind, const Growth& growth, const Candidate& candidate, int64_t edge,
                 Dropped& dropped) {
  const BlockGrid grid(candidate.shape, edge);
  sparse::Mask blocks(grid.count(), false);
  grid.for_each(dropped.mask,
                [&](int64_t, size_t block) { blocks.set(static_cast<int64_t>(block), true); });
  const std::vector<double> squares =
      kind.by_gradient ? grid.squares(growth.gradient) : std::vector<double>();
  const std::vector<BlockGrid::Part> parts = grid.parts();
  for (size_t p = 0; p < parts.size(); ++p) {
    const BlockGrid::Part& part = parts[p];
    sparse::Mask in_part(part.count(), false);
    std::vector<float> norms;
    for (int64_t i = 0; i < part.count(); ++i) {
      const size_t block = grid.number(part, i);
      in_part.set(i, blocks[static_cast<int64_t>(block)]);
      if (kind.by_gradient) {
        norms.push_back(static_cast<float>(std::sqrt(squares[block])));
      }
    }
    Growth of_part = growth;
    of_part.count = dropped.counts[p];
    of_part.seed += p;
    of_part.columns = part.cols;
    of_part.gradient = norms;
    kind.grow(of_part, in_part);
    sparse::for_each_one(in_part.words(), [&](int64_t i) {
      blocks.set(static_cast<int64_t>(grid.number(part, i)), true);
    });
  }
  dropped.mask = grid.elements(blocks);
}

}  // namespace

void check_blocks(const Candidate& candidate, const sparse::Mask& mask, int64_t edge) {
  const BlockGrid grid(candidate.shape, edge);
  std::vector<int64_t> kept(static_cast<size_t>(grid.count()));
  grid.for_each(mask, [&](int64_t, size_t block) { ++kept[block]; });
  for (size_t block = 0; block < kept.size(); ++block) {
    check(kept[block] == 0 || kept[block] == grid.area(static_cast<int64_t>(block)),
          "pruning: \"{}\" keeps some blocks of {}x{} in part, and only whole blocks can move; "
          "start from a dense network, or from masks of method \"block:{}\"",
          candidate.name, edge, edge, edge);
  }
}

Dropped drop(const Candidate& candidate, const sparse::Mask& target, double fraction,
             const sparse::IndexShape& shape) {
  check_candidate(candidate, true);
  if (shape.height > 0) {
    return drop_blocks(candidate, target, fraction, shape.height);
  }
  const int64_t kept = target.kept();
  const int64_t count = drop_count(kept, fraction);
  return {.mask = drop_to(candidate.index->mask(), candidate.values, kept - count),
          .counts = {count}};
}

void grow(const Moving& kind, Growth growth, const Candidate& candidate,
          const sparse::IndexShape& shape, Dropped& dropped) {
  growth.name = candidate.name;
  growth.columns = candidate.shape.cols();
  if (shape.height > 0) {
    grow_blocks(kind, growth, candidate, shape.height, dropped);
    return;
  }
  const sparse::Mask before = shape.n > 0 ? candidate.index->mask() : sparse::Mask();
  growth.group = shape.m;
  growth.before = &before;
  growth.count = dropped.counts.front();
  kind.grow(growth, dropped.mask);
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

}  // namespace

void grow_by_gradient(const Growth& growth, sparse::Mask& mask) {
  require(static_cast<int64_t>(growth.gradient.size()) == mask.size() &&
              mask.size() % growth.columns == 0,
          "a gradient for each element", growth.name, growth.gradient.size(), mask.size());
  check(!has_nan(growth.gradient),
        "pruning: the gradient of parameter \"{}\" holds a NaN: training has diverged, start from "
        "an earlier checkpoint with a lower optimizer.lr",
        growth.name);
  const RelativeGradient key(growth.gradient, growth.columns);
  grow_elements(growth, mask, [&](auto&& fn) {
    for_each_pruned(mask, [&](int64_t position) { fn(position, key(position)); });
  });
}

void grow_at_random(const Growth& growth, sparse::Mask& mask) {
  grow_elements(growth, mask, [&](auto&& fn) {
    // Counters use step + 1: method random, which may have made the first masks, uses those of
    // zero.
    RandomKeys key(growth.seed, growth.name, static_cast<uint64_t>(growth.step) + 1);
    for_each_pruned(mask, [&](int64_t position) { fn(position, key(position)); });
  });
}

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
