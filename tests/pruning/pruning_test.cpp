// Pruning methods against a sort of all elements, and the properties on which training relies.
#include "pruning/pruning.h"
#include "pruning/selection.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>
#include <memory>
#include <random>

#include "pruning/registry.h"
#include "pruning/schedule.h"
#include "tests/support/failure.h"

namespace espalier::pruning::pruning_test {
namespace {

using sparse::Encoding;
using sparse::Index;
using sparse::Mask;

double share_that_differs(const Mask& a, const Mask& b) {
  int64_t different = 0;
  for (int64_t i = 0; i < a.size(); ++i) {
    different += a[i] != b[i] ? 1 : 0;
  }
  return static_cast<double>(different) / static_cast<double>(a.size());
}

/// Dense weights, and the elements that a sequence of masks has kept.
class Model {
 public:
  void add(const std::string& name, const Shape& shape, std::vector<float> weights) {
    names_.push_back(name);
    shapes_.push_back(shape);
    masks_.emplace_back(shape.count());
    weights_.push_back(std::move(weights));
  }
  void add_random(const std::string& name, const Shape& shape, float deviation, unsigned seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> draw(0, deviation);
    std::vector<float> weights(static_cast<size_t>(shape.count()));
    for (float& weight : weights) {
      weight = draw(random);
    }
    add(name, shape, std::move(weights));
  }

  std::vector<Candidate> candidates() {
    packed_.clear();
    indices_.clear();
    std::vector<Candidate> list;
    for (size_t i = 0; i < names_.size(); ++i) {
      const Encoding encoding = i % 2 == 0 ? Encoding::bitmap : Encoding::golomb;
      const Index& index = indices_.emplace_back(*arena_, masks_[i], encoding);
      std::vector<float>& packed = packed_.emplace_back();
      for (int32_t position : index.positions()) {
        packed.push_back(weights_[i][position]);
      }
      list.push_back({names_[i], shapes_[i], &index, packed});
    }
    return list;
  }
  Result prune(const Settings& settings) {
    const auto list = candidates();
    Result result = pruning::prune(list, settings);
    expect_subset(result.masks);
    return result;
  }
  void keep(const std::vector<Mask>& masks) { masks_ = masks; }
  const std::vector<Mask>& masks() const { return masks_; }
  float weight(size_t i, int64_t position) const { return weights_[i][position]; }
  std::vector<float>& weights(size_t i) { return weights_[i]; }
  size_t count() const { return names_.size(); }
  const Shape& shape(size_t i) const { return shapes_[i]; }

 private:
  void expect_subset(const std::vector<Mask>& now) const {
    ASSERT_EQ(now.size(), masks_.size());
    for (size_t i = 0; i < now.size(); ++i) {
      ASSERT_EQ(now[i].size(), masks_[i].size());
      for (int64_t at = 0; at < now[i].size(); ++at) {
        ASSERT_TRUE(!now[i][at] || masks_[i][at]) << "element " << at << " came back";
      }
    }
  }

  std::unique_ptr<Arena> arena_ = std::make_unique<Arena>();
  std::vector<std::string> names_;
  std::vector<Shape> shapes_;
  std::vector<Mask> masks_;
  std::vector<std::vector<float>> weights_;
  std::deque<Index> indices_;
  std::deque<std::vector<float>> packed_;
};

Model three_layers() {
  Model model;
  model.add_random("a.weight", Shape{40, 50}, 1.0F, 1);
  model.add_random("b.weight", Shape{33, 17}, 0.8F, 2);
  model.add_random("c.weight", Shape{8, 125}, 1.2F, 3);
  return model;
}

int64_t kept_in(const std::vector<Mask>& masks) {
  int64_t kept = 0;
  for (const Mask& mask : masks) {
    kept += mask.kept();
  }
  return kept;
}

/// Whole layers of these sizes.
Model layers_of(const std::vector<int64_t>& sizes) {
  Model model;
  for (size_t i = 0; i < sizes.size(); ++i) {
    model.add("layer " + std::to_string(i), Shape{sizes[i]},
              std::vector<float>(static_cast<size_t>(sizes[i]), 1.0F));
  }
  return model;
}

/// The reference: sort all kept elements by magnitude (stable: earlier ones first), keep the first.
std::vector<Mask> sorted_reference(const Model& model, size_t first, size_t end, int64_t keep) {
  struct Element {
    float magnitude;
    size_t parameter;
    int64_t position;
  };
  std::vector<Element> elements;
  std::vector<Mask> masks;
  for (size_t i = first; i < end; ++i) {
    masks.emplace_back(model.masks()[i].size(), false);
    for (int64_t at = 0; at < model.masks()[i].size(); ++at) {
      if (model.masks()[i][at]) {
        elements.push_back({std::abs(model.weight(i, at)), i, at});
      }
    }
  }
  std::ranges::stable_sort(elements, [](auto& a, auto& b) { return a.magnitude > b.magnitude; });
  for (size_t k = 0; k < std::min(elements.size(), static_cast<size_t>(keep)); ++k) {
    masks[elements[k].parameter - first].set(elements[k].position, true);
  }
  return masks;
}

TEST(Magnitude, GlobalIsTheSortedPrefix) {
  Model model = three_layers();
  const int64_t size = 40 * 50 + 33 * 17 + 8 * 125;
  for (double sparsity : {0.0, 0.001, 0.25, 0.5, 0.9, 0.99, 0.9999}) {
    const Result result = model.prune({.method = "magnitude", .sparsity = sparsity});
    const auto expected = static_cast<int64_t>(std::llround((1 - sparsity) * size));
    EXPECT_EQ(kept_in(result.masks), expected) << sparsity;
    EXPECT_EQ(result.masks, sorted_reference(model, 0, 3, expected)) << sparsity;
  }
}

/// Few and many elements use histograms of different sizes.
TEST(Magnitude, ManyElementsToo) {
  for (const int64_t columns : {65'535, 65'536, 100'000}) {
    Model model;
    model.add_random("a.weight", Shape{1, columns}, 1.0F, 4);
    for (const double sparsity : {0.001, 0.9, 0.9999}) {
      const auto expected = std::llround((1 - sparsity) * static_cast<double>(columns));
      EXPECT_EQ(model.prune({.sparsity = sparsity}).masks, sorted_reference(model, 0, 1, expected))
          << columns << " " << sparsity;
    }
  }
}

TEST(Magnitude, LayerIsTheSortedPrefixOfEach) {
  Model model = three_layers();
  const Result result = model.prune({.sparsity = 0.9, .scope = Scope::layer});
  for (size_t i = 0; i < 3; ++i) {
    const auto keep = std::llround(0.1 * static_cast<double>(model.shape(i).count()));
    EXPECT_EQ(result.masks[i], sorted_reference(model, i, i + 1, keep)[0]);
  }
  EXPECT_NE(result.masks, model.prune({.sparsity = 0.9}).masks) << "scopes differ";
}

TEST(Magnitude, AfterEarlierPruningToo) {
  Model model = three_layers();
  model.keep(model.prune({.method = "random", .sparsity = 0.5}).masks);
  const int64_t keep = kept_count(40 * 50 + 33 * 17 + 8 * 125, 0.8);
  const Result result = model.prune({.sparsity = 0.8});
  EXPECT_EQ(result.masks, sorted_reference(model, 0, 3, keep));
  EXPECT_TRUE(result.warnings.empty());
}

TEST(Magnitude, TiesKeepEarlierParametersThenLowerPositions) {
  Model model;
  model.add("a", Shape{10}, {1, -2, 1, 1, -1, 2, 1, 1, 1, 1});
  model.add("b", Shape{4}, {-1, 1, 3, 1});
  const Result result = model.prune({.sparsity = 0.5});  // 7 of 14: 3, 2, 2 and four of the ones
  EXPECT_EQ(result.masks[0].positions(), (std::vector<int32_t>{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(result.masks[1].positions(), (std::vector<int32_t>{2}));
  Model equal;
  equal.add("x", Shape{1000}, std::vector<float>(1000, -0.5F));
  const auto positions = equal.prune({.sparsity = 0.9}).masks[0].positions();
  ASSERT_EQ(positions.size(), 100U);
  EXPECT_EQ(positions.back(), 99);
}

TEST(Magnitude, OddFloatsHaveTheirPlace) {
  const float tiny = std::numeric_limits<float>::denorm_min();
  const float most = std::numeric_limits<float>::max();
  Model model;
  model.add("a", Shape{8}, {0.0F, -0.0F, tiny, -2 * tiny, 1e-38F, -most, 3e38F, -1});
  const std::vector<std::pair<double, std::vector<int32_t>>> expected{
      {0.875, {5}},
      {0.75, {5, 6}},
      {0.5, {4, 5, 6, 7}},
      {0.375, {3, 4, 5, 6, 7}},
      {0.25, {2, 3, 4, 5, 6, 7}},
      {0.125, {0, 2, 3, 4, 5, 6, 7}}};
  for (const auto& [sparsity, positions] : expected) {
    EXPECT_EQ(model.prune({.sparsity = sparsity}).masks[0].positions(), positions);
  }
  model.weights(0)[5] = -std::numeric_limits<float>::infinity();
  EXPECT_THROW(model.prune({.sparsity = 0.5}), Failure);
}

TEST(Magnitude, ANanNamesItsParameter) {
  Model model = three_layers();
  model.weights(1)[77] = -std::numeric_limits<float>::quiet_NaN();
  for (const char* method : {"magnitude", "nm", "block"}) {
    EXPECT_THAT(failure_of([&] { model.prune({.method = method, .sparsity = 0.5}); }),
                HasSubstr("\"b.weight\""));
  }
}

TEST(Magnitude, AnEmptyParameterIsReported) {
  Model model;
  model.add_random("big", Shape{100}, 10.0F, 1);
  model.add_random("small", Shape{100}, 1e-6F, 2);
  const Result result = model.prune({.sparsity = 0.5});
  EXPECT_EQ(result.masks[1].kept(), 0);
  ASSERT_EQ(result.warnings.size(), 1U);
  EXPECT_THAT(result.warnings[0], HasSubstr("\"small\""));
  EXPECT_EQ(kept_in(result.masks), 100);
  model.add_random("scalar", Shape{1}, 1.0F, 3);
  EXPECT_THROW(model.prune({.sparsity = 0.9, .scope = Scope::layer}), Failure);
}

TEST(Magnitude, ATargetAlreadyPassedIsReported) {
  Model model = three_layers();
  model.keep(model.prune({.sparsity = 0.9}).masks);
  const Result result = model.prune({.sparsity = 0.5});
  EXPECT_EQ(result.masks, model.masks());
  ASSERT_EQ(result.warnings.size(), 1U);
  EXPECT_THAT(result.warnings[0], HasSubstr("nothing comes back"));
}

TEST(Random, ExactCountsFromSeedAndName) {
  Model model = three_layers();
  const Settings settings{.method = "random", .sparsity = 0.7, .seed = 11};
  const Result result = model.prune(settings);
  EXPECT_EQ(kept_in(result.masks), kept_count(40 * 50 + 33 * 17 + 8 * 125, 0.7));
  EXPECT_EQ(model.prune(settings).masks, result.masks);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_NEAR(result.masks[i].density(), 0.3, 0.07) << "no parameter is preferred";
  }
  Settings other = settings;
  other.seed = 12;
  EXPECT_GT(share_that_differs(model.prune(other).masks[0], result.masks[0]), 0.3);

  Model renamed;
  renamed.add_random("a.weight", Shape{40, 50}, 1.0F, 9);
  renamed.add_random("other", Shape{40, 50}, 1.0F, 9);
  const auto masks =
      renamed.prune({.method = "random", .sparsity = 0.7, .scope = Scope::layer}).masks;
  EXPECT_EQ(masks[0].kept(), 600);
  EXPECT_EQ(masks[1].kept(), 600);
  EXPECT_GT(share_that_differs(masks[0], masks[1]), 0.3) << "the name is part of the key";
}

TEST(Random, OneSeedGivesNestedMasks) {
  Model once = three_layers();
  Model twice = three_layers();
  twice.keep(twice.prune({.method = "random", .sparsity = 0.5}).masks);
  EXPECT_EQ(twice.prune({.method = "random", .sparsity = 0.9}).masks,
            once.prune({.method = "random", .sparsity = 0.9}).masks);
}

/// The `keep` elements of layers [first, end) with the largest keys; of equal keys the first ones.
std::vector<Mask> largest_random_keys(const Model& model, size_t first, size_t end, int64_t keep) {
  struct Element {
    uint32_t key;
    size_t layer;
    int64_t position;
  };
  std::vector<Element> elements;
  std::vector<Mask> masks;
  for (size_t i = first; i < end; ++i) {
    masks.emplace_back(model.shape(i).count(), false);
    RandomKeys key(1, "layer " + std::to_string(i), 0);
    for (int64_t at = 0; at < model.shape(i).count(); ++at) {
      elements.push_back({key(at), i - first, at});
    }
  }
  std::ranges::stable_sort(elements, std::ranges::greater{}, &Element::key);
  for (const Element& e : std::span(elements).first(static_cast<size_t>(keep))) {
    masks[e.layer].set(e.position, true);
  }
  return masks;
}

TEST(Random, KeepsTheLargestKeys) {
  Model model = layers_of({1, 63, 64, 65, 1000, 99'991});
  for (const double sparsity : {0.0, 0.1, 0.5, 0.9, 0.999}) {
    const int64_t all = kept_in(model.masks());
    EXPECT_EQ(model.prune({.method = "random", .sparsity = sparsity}).masks,
              largest_random_keys(model, 0, model.count(), kept_count(all, sparsity)));
  }
  Model large = layers_of({1000, 99'991});
  std::vector<Mask> each;
  for (size_t i = 0; i < 2; ++i) {
    each.push_back(
        largest_random_keys(large, i, i + 1, kept_count(large.shape(i).count(), 0.9))[0]);
  }
  EXPECT_EQ(large.prune({.method = "random", .sparsity = 0.9, .scope = Scope::layer}).masks, each);
}

TEST(NM, KeepsTheLargestOfEveryGroup) {
  for (const auto& [n, m] :
       std::vector<std::pair<int, int>>{{2, 4}, {1, 4}, {4, 8}, {3, 3}, {1, 7}}) {
    Model model = three_layers();  // 50, 17 and 125 columns: the last groups are partial
    const Result result = model.prune({.method = "nm", .n = n, .m = m});
    for (size_t i = 0; i < model.count(); ++i) {
      const int64_t cols = model.shape(i).cols();
      for (int64_t row = 0; row < model.shape(i).rows(); ++row) {
        for (int64_t begin = 0; begin < cols; begin += m) {
          const int64_t end = std::min<int64_t>(cols, begin + m);
          int64_t kept = 0;
          float least_kept = std::numeric_limits<float>::infinity();
          float largest_pruned = 0;
          for (int64_t at = row * cols + begin; at < row * cols + end; ++at) {
            const float magnitude = std::abs(model.weight(i, at));
            if (result.masks[i][at]) {
              ++kept;
              least_kept = std::min(least_kept, magnitude);
            } else {
              largest_pruned = std::max(largest_pruned, magnitude);
            }
          }
          ASSERT_EQ(kept, std::min<int64_t>(n, end - begin));
          ASSERT_GE(least_kept, largest_pruned);
        }
      }
    }
  }
}

TEST(NM, TiesAndEarlierPruning) {
  Model model;
  model.add("x", Shape{2, 6}, {1, 1, 1, 1, 1, 1, 5, 4, 3, 2, 1, 1});
  EXPECT_EQ(model.prune({.method = "nm", .n = 2, .m = 4}).masks[0].positions(),
            (std::vector<int32_t>{0, 1, 4, 5, 6, 7, 10, 11}));
  Mask left(12, false);
  for (const int64_t position : {1, 2, 3, 5, 8, 9, 10}) {
    left.set(position, true);
  }
  model.keep({left});
  EXPECT_EQ(model.prune({.method = "nm", .n = 2, .m = 4}).masks[0].positions(),
            (std::vector<int32_t>{1, 2, 5, 8, 9, 10}));
}

TEST(BlockPruning, KeepsWholeBlocksWithTheLargestNorm) {
  Model model = three_layers();
  const int b = 5;  // 33 x 17 and 8 x 125 have partial blocks
  const Result result = model.prune({.method = "block", .sparsity = 0.6, .block = b});
  double least_kept = std::numeric_limits<double>::infinity();
  double largest_pruned = 0;
  int64_t size = 0;
  for (size_t i = 0; i < model.count(); ++i) {
    const int64_t rows = model.shape(i).rows();
    const int64_t cols = model.shape(i).cols();
    size += rows * cols;
    for (int64_t r = 0; r < rows; r += b) {
      for (int64_t c = 0; c < cols; c += b) {
        const bool kept = result.masks[i][r * cols + c];
        double sum = 0;
        int64_t area = 0;
        for (int64_t y = r; y < std::min<int64_t>(rows, r + b); ++y) {
          for (int64_t x = c; x < std::min<int64_t>(cols, c + b); ++x) {
            ASSERT_EQ(result.masks[i][y * cols + x], kept) << "a block is kept or pruned as one";
            const double w = std::abs(model.weight(i, y * cols + x));
            sum += w * w;
            ++area;
          }
        }
        const double mean = sum / static_cast<double>(area);
        const double score = std::sqrt(mean);
        (kept ? least_kept : largest_pruned) =
            kept ? std::min(least_kept, score) : std::max(largest_pruned, score);
      }
    }
  }
  EXPECT_GE(least_kept, largest_pruned * (1 - 1e-6));
  EXPECT_NEAR(static_cast<double>(kept_in(result.masks)),
              static_cast<double>(kept_count(size, 0.6)), b * b / 2.0);
}

TEST(BlockPruning, LayerScopeTiesAndSingleBlocks) {
  Model model;
  model.add("same", Shape{8, 8}, std::vector<float>(64, 1.0F));
  model.add_random("small", Shape{3, 3}, 1e-3F, 1);
  const Settings settings{.method = "block", .sparsity = 0.5, .scope = Scope::layer, .block = 4};
  const Result result = model.prune(settings);
  const auto positions = result.masks[0].positions();
  ASSERT_EQ(positions.size(), 32U);
  EXPECT_EQ(positions.back(), 31) << "ties keep the upper blocks";
  EXPECT_EQ(result.masks[1].kept(), 9) << "the only block of a matrix stays";
  Settings all = settings;
  all.sparsity = 0;
  EXPECT_EQ(kept_in(model.prune(all).masks), 64 + 9);
}

TEST(Methods, SparsityZeroKeepsEverythingThatIsKept) {
  for (const char* method : {"magnitude", "random", "block", "none"}) {
    Model model = three_layers();
    EXPECT_EQ(model.prune({.method = method}).masks, model.masks()) << method;
    EXPECT_TRUE(model.prune({.method = method}).warnings.empty()) << method;
  }
}

TEST(Methods, GradualSequencesShrinkAndRepeat) {
  const PruningSchedule schedule{
      .from_step = 0, .to_step = 100, .every = 20, .final_sparsity = 0.95};
  for (const char* method : {"magnitude", "random", "block"}) {
    for (const Scope scope : {Scope::global, Scope::layer}) {
      auto run = [&] {
        Model model = three_layers();  // its `prune` expects each mask within the last one
        for (int64_t step : prune_steps(schedule)) {
          const double target = target_sparsity(schedule, step);
          const Result result =
              model.prune({.method = method, .sparsity = target, .scope = scope, .block = 2});
          EXPECT_TRUE(result.warnings.empty()) << result.warnings.front();
          model.keep(result.masks);
          for (size_t i = 0; i < model.count(); ++i) {
            model.weights(i)[step] += 1;  // weights change between prunings
          }
        }
        return model.masks();
      };
      const auto masks = run();
      EXPECT_NEAR(static_cast<double>(kept_in(masks)), 0.05 * (40 * 50 + 33 * 17 + 8 * 125), 6);
      EXPECT_EQ(masks, run()) << method;
    }
  }
}

TEST(Methods, NoCandidatesAndEmptyOnes) {
  for (const Method* method : methods()) {
    if (method->run == nullptr) {
      continue;
    }
    const Settings settings{.method = std::string(method->name), .sparsity = 0.5};
    EXPECT_TRUE(prune({}, settings).masks.empty());
    Model model;
    model.add("empty", Shape{0, 4}, {});
    model.add("no columns", Shape{4, 0}, {});
    EXPECT_EQ(kept_in(model.prune(settings).masks), 0);
  }
}

TEST(Methods, WrongSettingsAreNamed) {
  Model model = three_layers();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (double sparsity : {-0.1, 1.0, 90.0, nan}) {
    EXPECT_THROW(model.prune({.sparsity = sparsity}), Failure);
  }
  EXPECT_THROW(model.prune({.method = "magnitud"}), Failure);
  EXPECT_THROW(model.prune({.method = "nm", .n = 5, .m = 4}), Failure);
  EXPECT_THROW(model.prune({.method = "nm", .n = 0, .m = 4}), Failure);
  EXPECT_THROW(model.prune({.method = "block", .block = 0}), Failure);
  EXPECT_THROW(scope_by_name("local"), Failure);
  EXPECT_EQ(scope_by_name("layer"), Scope::layer);
  auto list = model.candidates();
  list[0].values = list[0].values.first(10);
  EXPECT_THROW(prune(list, {.sparsity = 0.5}), Bug);
  EXPECT_EQ(kept_in(prune(list, {.method = "random", .sparsity = 0.5}).masks),
            kept_count(40 * 50 + 33 * 17 + 8 * 125, 0.5))
      << "random looks at no value";
}

TEST(MasksFromDense, ZerosOfEitherSignArePruned) {
  const std::vector<float> values{0.0F, -0.0F, 1e-45F, -3};
  EXPECT_EQ(mask_from_dense_zeros("w", values).positions(), (std::vector<int32_t>{2, 3}));
  for (const float odd :
       {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
    EXPECT_THROW(mask_from_dense_zeros("w", std::vector<float>{1, odd}), Failure);
  }
}

}  // namespace
}  // namespace espalier::pruning::pruning_test
