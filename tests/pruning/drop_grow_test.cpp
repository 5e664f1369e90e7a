// Drop and grow as pure functions: counts, dropped elements, grown elements, and steps.
#include "pruning/drop_grow.h"
#include "pruning/registry.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <random>

#include "pruning/schedule.h"
#include "tests/support/failure.h"

namespace espalier::pruning::drop_grow_test {
namespace {

using sparse::Encoding;
using sparse::Index;
using sparse::Mask;

std::vector<float> numbers(int64_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> draw(0, 1);
  std::vector<float> values(static_cast<size_t>(count));
  std::ranges::generate(values, [&] { return draw(random); });
  return values;
}

/// The first `count` positions where `wanted` holds, ordered by descending key, then position;
/// returned in ascending order.
template <class Wanted, class Key>
std::vector<int32_t> largest(int64_t size, int64_t count, Wanted wanted, Key key) {
  std::vector<int32_t> order;
  for (int32_t i = 0; i < size; ++i) {
    if (wanted(i)) {
      order.push_back(i);
    }
  }
  std::ranges::stable_sort(order, [&](int32_t a, int32_t b) { return key(a) > key(b); });
  order.resize(static_cast<size_t>(count));
  std::ranges::sort(order);
  return order;
}

/// A mask of a given density, with an index over it.
struct Pruned {
  Pruned(int64_t size, double density, unsigned seed) : mask(size, false) {
    std::mt19937 random(seed);
    for (int64_t i = 0; i < size; ++i) {
      mask.set(i, std::uniform_real_distribution<>(0, 1)(random) < density);
    }
    index = Index(arena, mask, Encoding::bitmap);
    values = numbers(mask.kept(), seed + 1);
  }
  Candidate candidate() const {
    return {.name = "w", .shape = Shape{mask.size()}, .index = &index, .values = values};
  }

  Arena arena;
  Mask mask;
  Index index;
  std::vector<float> values;
};

TEST(StartCounts, UniformAndErkAddUpExactly) {
  const std::vector<Shape> shapes{Shape{40, 50}, Shape{33, 17}, Shape{8, 125}, Shape{300, 7}};
  int64_t all = 0;
  for (const Shape& shape : shapes) {
    all += shape.count();
  }
  for (const double sparsity : {0.0, 0.3, 0.7, 0.9, 0.95, 0.99}) {
    for (const Distribution kind : {Distribution::uniform, Distribution::erk}) {
      const std::vector<int64_t> counts = start_counts(shapes, sparsity, kind);
      EXPECT_EQ(std::accumulate(counts.begin(), counts.end(), int64_t{0}),
                kept_count(all, sparsity))
          << static_cast<int>(kind) << " " << sparsity;
      for (size_t i = 0; i < shapes.size(); ++i) {
        EXPECT_LE(counts[i], shapes[i].count());
        if (kind == Distribution::uniform) {
          EXPECT_NEAR(static_cast<double>(counts[i]),
                      (1 - sparsity) * static_cast<double>(shapes[i].count()), 1.0);
        }
      }
    }
  }
  EXPECT_TRUE(start_counts({}, 0.9, Distribution::erk).empty());
}

TEST(StartCounts, ErkGivesSmallLayersMore) {
  // Sums of sizes 90 and 50: counts are proportional to them, whatever the products.
  const std::vector<Shape> open{Shape{40, 50}, Shape{30, 20}};
  const auto counts = start_counts(open, 0.9, Distribution::erk);
  EXPECT_NEAR(static_cast<double>(counts[0]) / static_cast<double>(counts[1]), 90.0 / 50.0, 0.03);
  // A layer whose share exceeds its size is full; the others share the remainder.
  const std::vector<Shape> tight{Shape{100, 100}, Shape{4, 4}, Shape{100, 100}};
  const auto full = start_counts(tight, 0.9, Distribution::erk);
  EXPECT_EQ(full[1], 16);
  EXPECT_NEAR(static_cast<double>(full[0]), (2001.6 - 16) / 2, 1.0);
}

TEST(RandomStart, HasTheCountsAndDrawsByName) {
  const Index matrix = Index::full(2000);
  const Index narrow = Index::full(600);
  std::vector<Candidate> candidates{{"a", Shape{40, 50}, &matrix, {}},
                                    {"b", Shape{40, 50}, &matrix, {}},
                                    {"c", Shape{30, 20}, &narrow, {}}};
  const Settings settings{.sparsity = 0.9, .seed = 4};
  const Result result = random_start(candidates, settings, Distribution::erk);
  const auto counts = start_counts(std::vector{Shape{40, 50}, Shape{40, 50}, Shape{30, 20}}, 0.9,
                                   Distribution::erk);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(result.masks[i].kept(), counts[i]);
  }
  EXPECT_NE(result.masks[0], result.masks[1]);
  EXPECT_EQ(random_start(candidates, settings, Distribution::erk).masks, result.masks);
  candidates[2].shape = Shape{1, 2};
  const Index tiny = Index::full(2);
  candidates[2].index = &tiny;
  EXPECT_THAT(failure_of([&] { random_start(candidates, settings, Distribution::uniform); }),
              HasSubstr("\"c\" has 2 elements"));
}

TEST(Drop, KeepsTheLargest) {
  const Pruned layer(5000, 0.2, 1);
  const std::vector<int32_t> positions = layer.mask.positions();
  std::vector<float> dense(5000);
  for (size_t k = 0; k < positions.size(); ++k) {
    dense[positions[k]] = layer.values[k];
  }
  for (const int64_t keep : {int64_t{0}, int64_t{1}, int64_t{500}, layer.mask.kept()}) {
    const Mask kept = drop_to(layer.mask, layer.values, keep);
    EXPECT_EQ(kept.positions(), largest(
                                    5000, keep, [&](int32_t i) { return layer.mask[i]; },
                                    [&](int32_t i) { return std::abs(dense[i]); }))
        << keep;
  }
}

TEST(Drop, TiesDropHigherPositionsAndANanIsNamed) {
  Pruned layer(100, 0.5, 2);
  std::ranges::fill(layer.values, -0.5F);
  const auto positions = layer.mask.positions();
  EXPECT_EQ(drop_to(layer.mask, layer.values, 10).positions(),
            std::vector<int32_t>(positions.begin(), positions.begin() + 10));
  layer.values[3] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THROW(drop(layer.candidate(), layer.mask, 0.1, {}), Failure);
  EXPECT_THROW(drop_to(layer.mask, layer.values, 101), Bug);
}

void grow_by_gradient(std::string_view name, std::span<const float> gradient, int64_t count,
                      Mask& mask) {
  std::get<Moving>(method_by_name("rigl").kind)
      .grow({.name = name, .count = count, .gradient = gradient}, mask);
}

TEST(GrowByGradient, AddsTheLargestThatDidNotSurvive) {
  const Pruned layer(5003, 0.1, 3);
  const std::vector<float> gradient = numbers(5003, 7);
  const Mask survivors = drop_to(layer.mask, layer.values, layer.mask.kept() - 150);
  Mask grown = survivors;
  grow_by_gradient("w", gradient, 150, grown);
  EXPECT_EQ(grown.kept(), layer.mask.kept());
  const auto expected = largest(
      5003, 150, [&](int32_t i) { return !survivors[i]; },
      [&](int32_t i) { return std::abs(gradient[i]); });
  Mask reference = survivors;
  for (const int32_t position : expected) {
    reference.set(position, true);
  }
  EXPECT_EQ(grown, reference);
  int64_t back = 0;  // dropped ones grow back about as often as any: 150 of 4,650 grow
  for (const int32_t position : expected) {
    back += layer.mask[position] ? 1 : 0;
  }
  EXPECT_LT(back, 20);
}

TEST(GrowByGradient, ScalesOfRowsAndColumnsDoNotMatter) {
  constexpr int64_t kRows = 40, kColumns = 50, kCount = 400;
  const std::vector<float> plain = numbers(kRows * kColumns, 3);
  std::vector<float> scaled = plain;
  for (size_t i = 0; i < scaled.size(); ++i) {
    const auto row = static_cast<int>(i / kColumns);
    const auto column = static_cast<int>(i % kColumns);
    scaled[i] = std::ldexp(scaled[i], row % 9 - column % 7 - 30);
  }
  const auto grown = [&](std::span<const float> gradient) {
    Mask mask(kRows * kColumns, false);
    std::get<Moving>(method_by_name("rigl").kind)
        .grow({.name = "w", .count = kCount, .columns = kColumns, .gradient = gradient}, mask);
    return mask;
  };
  const Mask mask = grown(scaled);
  std::vector<int64_t> by_row(kRows), by_column(kColumns);
  for (const int32_t position : mask.positions()) {
    ++by_row[position / kColumns];
    ++by_column[position % kColumns];
  }
  EXPECT_GT(std::ranges::min(by_row), 0) << "no neuron is left out";
  EXPECT_LT(std::ranges::max(by_row), 3 * kCount / kRows);
  EXPECT_LT(std::ranges::max(by_column), 3 * kCount / kColumns);
  const Mask both = grown(plain);
  int64_t same = 0;
  for (const int32_t position : mask.positions()) {
    same += both[position] ? 1 : 0;
  }
  EXPECT_GT(same, kCount / 2) << "by chance: a fifth";
}

TEST(GrowByGradient, EdgesAndMistakes) {
  std::vector<float> gradient(130, 0.25F);
  Mask mask(130, false);
  mask.set(1, true);
  grow_by_gradient("w", gradient, 3, mask);
  EXPECT_EQ(mask.positions(), (std::vector<int32_t>{0, 1, 2, 3})) << "ties take lower positions";
  grow_by_gradient("w", gradient, 0, mask);
  EXPECT_EQ(mask.kept(), 4);
  gradient[7] = std::numeric_limits<float>::infinity();
  grow_by_gradient("w", gradient, 1, mask);
  EXPECT_TRUE(mask[7]) << "infinity is the largest";
  grow_by_gradient("w", gradient, 125, mask);
  EXPECT_EQ(mask, Mask(130)) << "all of them";
  EXPECT_THROW(grow_by_gradient("w", gradient, 1, mask), Bug);
  gradient[8] = -std::numeric_limits<float>::quiet_NaN();
  EXPECT_THAT(failure_of([&] { grow_by_gradient("block.w", gradient, 0, mask); }),
              HasSubstr("\"block.w\" holds a NaN"));
}

TEST(GrowAtRandom, IsAFunctionOfSeedStepAndName) {
  const Mask before = Pruned(20'001, 0.1, 5).mask;
  auto grow = [&](std::string_view name, uint64_t seed, int64_t step, int64_t count) {
    Mask mask = before;
    std::get<Moving>(method_by_name("set").kind)
        .grow({.name = name, .count = count, .seed = seed, .step = step}, mask);
    EXPECT_EQ(mask.kept(), before.kept() + count);
    for (int64_t i = 0; i < mask.size(); ++i) {
      EXPECT_TRUE(mask[i] || !before[i]) << "nothing is lost";
    }
    return mask;
  };
  const Mask grown = grow("w", 1, 100, 900);
  EXPECT_EQ(grow("w", 1, 100, 900), grown);
  EXPECT_NE(grow("v", 1, 100, 900), grown);
  EXPECT_NE(grow("w", 2, 100, 900), grown);
  EXPECT_NE(grow("w", 1, 200, 900), grown);
  // Each tenth of the positions gets its share: 90 of 900, standard deviation 9.
  for (int64_t tenth = 0; tenth < 10; ++tenth) {
    int64_t count = 0;
    for (int64_t i = tenth * 2000; i < (tenth + 1) * 2000; ++i) {
      count += grown[i] && !before[i] ? 1 : 0;
    }
    EXPECT_NEAR(static_cast<double>(count), 90, 45) << tenth;
  }
}

/// A matrix with a mask, moved once.
struct Moved {
  Moved(const Shape& matrix, const Mask& mask, unsigned seed)
      : shape(matrix),
        index(arena, mask, Encoding::bitmap),
        values(numbers(mask.kept(), seed)),
        gradient(numbers(matrix.count(), seed + 1)) {}

  Mask by(std::string_view method, const sparse::IndexShape& units, const Mask& target) {
    const auto& kind = std::get<Moving>(method_by_name(method).kind);
    const Candidate candidate{.name = "w", .shape = shape, .index = &index, .values = values};
    Dropped dropped = drop(candidate, target, 0.3, units);
    EXPECT_TRUE(dropped.grows());
    grow(kind, {.seed = 3, .step = 7, .gradient = gradient}, candidate, units, dropped);
    return std::move(dropped.mask);
  }
  Mask by(std::string_view method, const sparse::IndexShape& units) {
    return by(method, units, index.mask());
  }

  Shape shape;
  Arena arena;
  Index index;
  std::vector<float> values, gradient;
};

TEST(MovesOfUnits, BlocksAndGroupsOfOneSizeAreElements) {
  const Mask mask = Pruned(30 * 40, 0.2, 4).mask;
  const Mask row = Pruned(1000, 0.2, 5).mask;
  const auto kept = static_cast<int>(row.kept());
  for (const char* method : {"rigl", "set"}) {
    Moved matrix(Shape{30, 40}, mask, 6);
    EXPECT_EQ(matrix.by(method, {.height = 1, .width = 1}), matrix.by(method, {})) << method;
    Moved vector(Shape{1, 1000}, row, 6);
    EXPECT_EQ(vector.by(method, {.n = kept, .m = 1000}), vector.by(method, {})) << method;
  }
}

Mask random_mask(const char* method, const Shape& shape, Settings settings) {
  const Index all = Index::full(shape.count());
  settings.method = method;
  settings.scope = Scope::layer;
  return prune(std::vector<Candidate>{{"w", shape, &all, {}}}, settings).masks.front();
}

TEST(MovesOfUnits, BlocksStayWholeAndKeepTheNumberOfElements) {
  for (const auto& [rows, cols, edge] :
       {std::array{64, 48, 8}, std::array{37, 50, 8}, std::array{50, 19, 4}}) {
    const Shape shape{rows, cols};
    const Mask start = random_mask("random-block", shape, {.sparsity = 0.7, .block = edge});
    const auto blocks_of = [&](const Mask& mask) {
      std::map<std::pair<int, int>, int> kept;
      for (const int32_t i : mask.positions()) {
        ++kept[{i / cols / edge, i % cols / edge}];
      }
      for (const auto& [block, count] : kept) {
        EXPECT_EQ(count, std::min(edge, rows - block.first * edge) *
                             std::min(edge, cols - block.second * edge));
      }
      return kept;
    };
    const auto before = blocks_of(start);
    for (const char* method : {"rigl", "set"}) {
      Moved moved(shape, start, 8);
      const Mask after = moved.by(method, {.height = edge, .width = edge});
      EXPECT_EQ(after.kept(), start.kept()) << method << " " << shape.text();
      EXPECT_NE(after, start);
      const auto kept = blocks_of(after);
      EXPECT_EQ(kept.size(), before.size());
      // A block that is gone has a smaller norm than the median.
      std::map<std::pair<int, int>, double> norms;
      std::vector<double> sorted;
      const std::vector<int32_t> positions = start.positions();
      for (size_t k = 0; k < positions.size(); ++k) {
        const double x = moved.values[k];
        norms[{positions[k] / cols / edge, positions[k] % cols / edge}] += x * x;
      }
      std::erase_if(norms, [&](const auto& one) { return before.at(one.first) < edge * edge; });
      for (const auto& [block, norm] : norms) {
        sorted.push_back(norm);
      }
      std::ranges::sort(sorted);
      for (const auto& [block, norm] : norms) {
        EXPECT_TRUE(kept.contains(block) || norm <= sorted[sorted.size() / 2]) << method;
      }
    }
  }
}

TEST(MovesOfUnits, RiglTakesTheBlocksWithTheLargestGradients) {
  const Shape shape{64, 64};
  const Mask start = random_mask("random-block", shape, {.sparsity = 0.75, .block = 16});
  Moved moved(shape, start, 9);
  std::ranges::fill(moved.gradient, 0.0F);
  // One pruned block has a gradient.
  int chosen = 0;
  while (start[chosen / 4 * 16 * 64 + chosen % 4 * 16]) {
    ++chosen;
  }
  const int first = chosen / 4 * 16 * 64 + chosen % 4 * 16;
  moved.gradient[first + 5 * 64 + 3] = -1;
  EXPECT_TRUE(moved.by("rigl", {.height = 16, .width = 16})[first]);
}

TEST(MovesOfUnits, GroupsKeepTheirNumber) {
  for (const auto& [rows, cols, n, m] :
       {std::array{12, 64, 2, 4}, std::array{9, 50, 1, 8}, std::array{5, 37, 3, 10}}) {
    const Shape shape{rows, cols};
    const Mask start = random_mask("random-nm", shape, {.n = n, .m = m});
    const auto groups_of = [&](const Mask& mask) {
      std::map<std::pair<int, int>, int> kept;
      for (const int32_t i : mask.positions()) {
        ++kept[{i / cols, i % cols / m}];
      }
      return kept;
    };
    for (const auto& [group, kept] : groups_of(start)) {
      EXPECT_EQ(kept, std::min(n, cols - group.second * m));
    }
    for (const char* method : {"rigl", "set"}) {
      const Mask after = Moved(shape, start, 10).by(method, {.n = n, .m = m});
      EXPECT_EQ(groups_of(after), groups_of(start)) << method << " " << shape.text();
      EXPECT_NE(after, start);
    }
  }
}

TEST(MovesOfUnits, BlocksKeptInPartAreNamed) {
  Mask mask = random_mask("random-block", Shape{32, 32}, {.sparsity = 0.7, .block = 8});
  mask.set(mask.positions().front(), false);
  const Moved moved(Shape{32, 32}, mask, 1);
  const Candidate candidate{.name = "w", .shape = moved.shape, .index = &moved.index};
  EXPECT_THAT(failure_of([&] { check_blocks(candidate, mask, 8); }),
              AllOf(HasSubstr("\"w\""), HasSubstr("in part"), HasSubstr("block:8")));
  check_blocks(candidate, mask, 1);
}

TEST(RandomUnits, AGroupOfAWholeRowIsRandom) {
  EXPECT_EQ(random_mask("random-nm", Shape{1, 1000}, {.seed = 5, .n = 300, .m = 1000}),
            random_mask("random", Shape{1, 1000}, {.sparsity = 0.7, .seed = 5}));
}

/// And those of a higher sparsity are among those of a lower one.
TEST(RandomUnits, BlocksAreBalanced) {
  for (const auto& [rows, cols] : {std::pair{64, 64}, {48, 64}, {8, 96}, {40, 24}, {56, 8}}) {
    const Shape shape{rows, cols};
    Mask before(shape.count());
    for (const double sparsity : {0.1, 0.5, 0.7, 0.85, 0.9}) {
      const Settings settings{.sparsity = sparsity, .seed = 5, .block = 8};
      const Mask mask = random_mask("random-block", shape, settings);
      std::vector<int> by_row(rows / 8), by_column(cols / 8);
      for (const int32_t position : mask.positions()) {
        EXPECT_TRUE(before[position]);
        ++by_row[position / cols / 8];
        ++by_column[position % cols / 8];
      }
      for (const auto& counts : {by_row, by_column}) {
        EXPECT_LE(std::ranges::max(counts) - std::ranges::min(counts), 64) << shape.text();
      }
      EXPECT_NEAR(mask.density(), 1 - sparsity, 0.5 / (rows / 8 * cols / 8) + 1e-9);
      before = mask;
    }
    EXPECT_NE(before, random_mask("random-block", shape, {.sparsity = 0.9, .seed = 6, .block = 8}));
  }
}

TEST(MaskMoveSchedule, StepsAndFractions) {
  const MaskMoveSchedule moves{.from_step = 20, .to_step = 100, .every = 25, .fraction = 0.4};
  check_moves(moves);
  std::vector<int64_t> steps;
  for (int64_t step = 0; step < 200; ++step) {
    if (moves_at(moves, step)) {
      steps.push_back(step);
    }
    EXPECT_LE(drop_fraction(moves, step + 1), drop_fraction(moves, step));
  }
  EXPECT_EQ(steps, (std::vector<int64_t>{45, 70, 95}));
  EXPECT_DOUBLE_EQ(drop_fraction(moves, 20), 0.4);
  EXPECT_NEAR(drop_fraction(moves, 60), 0.2, 1e-15);
  EXPECT_EQ(drop_fraction(moves, 100), 0.0);
  EXPECT_FALSE(moves_at({.to_step = 100, .every = 10, .fraction = 0}, 50)) << "masks that stay";
  EXPECT_THROW(check_moves({.from_step = 5, .to_step = 5}), Failure);
  EXPECT_THROW(check_moves({.to_step = 5, .every = 0}), Failure);
  EXPECT_THROW(check_moves({.to_step = 5, .fraction = 1}), Failure);
  EXPECT_EQ(drop_count(1000, 0.1234), 123);
  EXPECT_THROW(distribution_by_name("er"), Failure);
  EXPECT_EQ(distribution_by_name("uniform"), Distribution::uniform);
}

}  // namespace
}  // namespace espalier::pruning::drop_grow_test
