// SynFlow against dense products in plain loops, and its property: no layer loses all its elements.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>

#include "pruning/registry.h"
#include "src/core/error.h"

namespace espalier::pruning::synflow_test {
namespace {

using sparse::Index;
using sparse::Mask;

/// Unpruned matrices with their places in a network.
struct Matrices {
  void add(const Shape& shape, double deviation, const sparse::Flow& flow = {}) {
    std::mt19937 random(static_cast<unsigned>(values.size()) + 1);
    std::normal_distribution<double> draw(0, deviation);
    std::vector<float>& some = values.emplace_back(static_cast<size_t>(shape.count()));
    for (float& value : some) {
      value = static_cast<float>(draw(random));
    }
    shapes.push_back(shape);
    flows.push_back(flow);
  }
  /// Views into this object.
  std::vector<Candidate> candidates() {
    indices = std::make_shared<std::vector<Index>>();
    for (const Shape& shape : shapes) {
      indices->push_back(Index::full(shape.count()));
    }
    std::vector<Candidate> all;
    for (size_t i = 0; i < shapes.size(); ++i) {
      all.push_back({.name = fmt::format("layer {}", i),
                     .shape = shapes[i],
                     .index = &(*indices)[i],
                     .values = values[i]});
    }
    return all;
  }
  Paths paths(const std::vector<Candidate>& all) const {
    Paths found;
    for (size_t i = 0; i < all.size(); ++i) {
      found.matrices.push_back(
          {.shape = shapes[i], .flow = flows[i], .here = &all[i], .pruned = true});
    }
    return found;
  }
  std::vector<Mask> prune(Settings settings) {
    const std::vector<Candidate> all = candidates();
    const Paths network = paths(all);
    settings.method = "synflow";
    settings.paths = &network;
    return pruning::prune(all, settings).masks;
  }

  std::vector<Shape> shapes;
  std::vector<sparse::Flow> flows;
  std::vector<std::vector<float>> values;
  std::shared_ptr<std::vector<Index>> indices;  ///< of the last call of `candidates`
};

Matrices block() {
  Matrices matrices;  // of width 6: attention and MLP of two blocks
  for (int i = 0; i < 2; ++i) {
    matrices.add(Shape{18, 6}, 0.3, {.begins_branch = true, .parts = 3});
    matrices.add(Shape{6, 6}, 0.2, {.ends_branch = true});
    matrices.add(Shape{24, 6}, 0.1, {.begins_branch = true});
    matrices.add(Shape{6, 24}, 0.4, {.ends_branch = true});
  }
  return matrices;
}

using Values = std::vector<double>;

Values times(const Values& matrix, const Values& to) {
  Values y(matrix.size() / to.size(), 0.0);
  for (size_t row = 0; row < y.size(); ++row) {
    for (size_t column = 0; column < to.size(); ++column) {
      y[row] += matrix[row * to.size() + column] * to[column];
    }
  }
  return y;
}

double sum_of(const Values& x) {
  double sum = 0;
  for (const double some : x) {
    sum += some;
  }
  return sum;
}

/// The flow through two blocks, written out.
double flow(const std::vector<Values>& a) {
  Values x(6, 1.0);
  for (size_t i = 0; i < 2; ++i) {
    const Values qkv = times(a[4 * i], x);
    Values sum(6);
    for (size_t k = 0; k < 6; ++k) {
      sum[k] = qkv[k] + qkv[k + 6] + qkv[k + 12];
    }
    const Values attention = times(a[4 * i + 1], sum);
    for (size_t k = 0; k < 6; ++k) {
      x[k] += attention[k];
    }
    const Values mlp = times(a[4 * i + 3], times(a[4 * i + 2], x));
    for (size_t k = 0; k < 6; ++k) {
      x[k] += mlp[k];
    }
  }
  return sum_of(x);
}

/// A block of width 8: four heads of width 2, which share two of keys and values; a gated MLP.
Matrices grouped_block() {
  Matrices matrices;
  const sparse::Flow shared{.beside = true, .repeats = 2, .repeated_rows = 2};
  matrices.add(Shape{8, 8}, 0.3, {.begins_branch = true});
  matrices.add(Shape{4, 8}, 0.3, shared);
  matrices.add(Shape{4, 8}, 0.2, shared);
  matrices.add(Shape{8, 8}, 0.2, {.ends_branch = true});
  matrices.add(Shape{10, 8}, 0.1, {.begins_branch = true});
  matrices.add(Shape{10, 8}, 0.2, {.beside = true});
  matrices.add(Shape{8, 10}, 0.4, {.ends_branch = true});
  return matrices;
}

double grouped_flow(const std::vector<Values>& a) {
  Values x(8, 1.0);
  const Values q = times(a[0], x);
  const Values k = times(a[1], x);
  const Values v = times(a[2], x);
  Values read(8);
  for (size_t head = 0; head < 4; ++head) {
    for (size_t d = 0; d < 2; ++d) {
      read[2 * head + d] = q[2 * head + d] + k[head / 2 * 2 + d] + v[head / 2 * 2 + d];
    }
  }
  const Values attention = times(a[3], read);
  for (size_t c = 0; c < 8; ++c) {
    x[c] += attention[c];
  }
  Values hidden = times(a[4], x);
  const Values up = times(a[5], x);
  for (size_t f = 0; f < 10; ++f) {
    hidden[f] += up[f];
  }
  return sum_of(x) + sum_of(times(a[6], hidden));
}

struct Network {
  Matrices (*matrices)();
  double (*flow)(const std::vector<Values>&);
};

class SynflowScores : public ::testing::TestWithParam<Network> {};

/// One round: the flow is linear in each element, so |w| dR/d|w| = R - R without the element.
TEST_P(SynflowScores, AreTheFlowThroughAnElement) {
  Matrices matrices = GetParam().matrices();
  const auto flow_of = GetParam().flow;
  std::vector<Values> absolute;
  for (const auto& some : matrices.values) {
    auto& a = absolute.emplace_back();
    for (const float value : some) {
      a.push_back(std::abs(static_cast<double>(value)));
    }
  }
  const double whole = flow_of(absolute);
  std::vector<double> scores;
  for (auto& matrix : absolute) {
    for (double& element : matrix) {
      const double kept = std::exchange(element, 0.0);
      scores.push_back(whole - flow_of(absolute));
      element = kept;
    }
  }
  std::vector<double> sorted = scores;
  std::ranges::sort(sorted, std::greater<>());
  for (const double sparsity : {0.2, 0.5, 0.9}) {
    const std::vector<Mask> masks = matrices.prune({.sparsity = sparsity, .rounds = 1});
    const int64_t keep = kept_count(static_cast<int64_t>(scores.size()), sparsity);
    const double limit = sorted[static_cast<size_t>(keep) - 1];
    size_t i = 0;
    int64_t kept = 0;
    for (const Mask& mask : masks) {
      kept += mask.kept();
      for (int64_t at = 0; at < mask.size(); ++at, ++i) {
        if (std::abs(scores[i] - limit) > 1e-6 * limit) {
          ASSERT_EQ(mask[at], scores[i] > limit) << i;
        }
      }
    }
    EXPECT_EQ(kept, keep);
  }
}

INSTANTIATE_TEST_SUITE_P(Networks, SynflowScores,
                         ::testing::Values(Network{block, flow},
                                           Network{grouped_block, grouped_flow}));

/// Repeats single rounds of the method on the elements that the rounds before left.
TEST(Synflow, RoundsPruneWhatIsLeft) {
  const Matrices start = block();
  Matrices step = start;
  constexpr int kRounds = 5;
  std::vector<Mask> last;
  for (int round = 1; round <= kRounds; ++round) {
    last = step.prune({.sparsity = 1 - std::pow(0.1, round / 5.0), .rounds = 1});
    for (size_t i = 0; i < last.size(); ++i) {
      for (int64_t at = 0; at < last[i].size(); ++at) {
        if (!last[i][at]) {
          step.values[i][static_cast<size_t>(at)] = 0;  // carries no flow: pruned first
        }
      }
    }
  }
  Matrices whole = start;
  EXPECT_EQ(whole.prune({.sparsity = 0.9, .rounds = kRounds}), last);
  EXPECT_NE(whole.prune({.sparsity = 0.9, .rounds = 1}), last);
}

/// A thin layer with small weights: global magnitude empties it, one round of flow nearly so.
TEST(Synflow, LeavesNoLayerEmpty) {
  Matrices matrices;
  matrices.add(Shape{64, 64}, 1.0);
  matrices.add(Shape{8, 64}, 0.01);
  matrices.add(Shape{64, 8}, 0.5);
  for (int i = 0; i < 30; ++i) {
    matrices.add(Shape{64, 64}, 100.0);  // the flow exceeds the range of float by far
  }
  const std::vector<Candidate> all = matrices.candidates();
  EXPECT_EQ(prune(all, {.method = "magnitude", .sparsity = 0.99}).masks[1].kept(), 0);
  int64_t kept = 0;
  int64_t size = 0;
  for (const Mask& mask : matrices.prune({.sparsity = 0.99, .rounds = 100})) {
    EXPECT_GT(mask.kept(), 0);
    kept += mask.kept();
    size += mask.size();
  }
  EXPECT_EQ(kept, kept_count(size, 0.99));
}

TEST(Synflow, NamesANetworkWithoutFlow) {
  Matrices matrices;
  matrices.add(Shape{4, 4}, 1.0);
  matrices.add(Shape{4, 4}, 0.0);
  EXPECT_THROW(matrices.prune({.sparsity = 0.5}), Failure);
}

}  // namespace
}  // namespace espalier::pruning::synflow_test
