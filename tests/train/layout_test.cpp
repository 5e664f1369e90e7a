// Assignment of layers and ranks: balanced stages, grids that fit, tapes for the passes in flight.
#include "src/train/stage/layout.h"

#include <numeric>

#include "src/core/rng.h"
#include "src/train/stage/stage.h"
#include "tests/support/failure.h"
#include "tests/support/settings.h"

namespace espalier::train::layout_test {
namespace {

double most_expensive(std::span<const double> costs, const std::vector<size_t>& ends) {
  double most = 0;
  size_t first = 0;
  for (const size_t end : ends) {
    EXPECT_LT(first, end);
    most = std::max(most, std::accumulate(costs.begin() + static_cast<int64_t>(first),
                                          costs.begin() + static_cast<int64_t>(end), 0.0));
    first = end;
  }
  EXPECT_EQ(first, costs.size());
  return most;
}

/// All partitions, by recursion.
double best_by_trying(std::span<const double> costs, size_t stages) {
  if (stages == 1) {
    return std::accumulate(costs.begin(), costs.end(), 0.0);
  }
  double best = 1e9;
  double first = 0;
  for (size_t cut = 1; cut + stages - 1 <= costs.size(); ++cut) {
    first += costs[cut - 1];
    best = std::min(best, std::max(first, best_by_trying(costs.subspan(cut), stages - 1)));
  }
  return best;
}

TEST(Balance, IsTheBestOfAllCuts) {
  for (uint64_t trial = 0; trial < 200; ++trial) {
    const size_t layers = 1 + mix(trial, 1) % 9;
    std::vector<double> costs;
    for (size_t i = 0; i < layers; ++i) {
      costs.push_back(static_cast<double>(1 + mix(trial, i + 2) % 20));
    }
    for (size_t stages = 1; stages <= layers; ++stages) {
      const auto ends = balance(costs, static_cast<int>(stages));
      EXPECT_EQ(ends.size(), stages);
      EXPECT_EQ(most_expensive(costs, ends), best_by_trying(costs, stages)) << trial;
    }
  }
}

TEST(Balance, EqualLayersAreDealtEvenly) {
  EXPECT_THAT(balance(std::vector<double>(8, 1.0), 4), ElementsAre(2, 4, 6, 8));
}

/// Embedding, six blocks, head: over two ranks in V-shaped placement, three blocks each.
TEST(Balance, MinimisesTheLoadOfARank) {
  const std::vector<double> costs{0.1, 1, 1, 1, 1, 1, 1, 0.2};
  parallel::Schedule v_shaped{
      .ranks = 2, .chunks = 2, .placement = parallel::Placement::v_shape, .programs = {}};
  const auto ends = balance_ranks(costs, v_shaped);
  std::vector<double> ranks(2, 0);
  size_t layer = 0;
  for (int stage = 0; stage < 4; ++stage) {
    for (; layer < ends[static_cast<size_t>(stage)]; ++layer) {
      ranks[static_cast<size_t>(v_shaped.rank_of(stage))] += costs[layer];
    }
  }
  EXPECT_NEAR(std::max(ranks[0], ranks[1]), 3.3, 1e-9);
}

/// Equal blocks between a small embedding and head: rounding of their sums must not move them.
TEST(Balance, RoundingDecidesNothing) {
  for (const double block : {0.1, 0.7, 1.0 / 3, 2.3456789}) {
    std::vector<double> costs(98, block);
    costs.front() = block / 100;
    costs.back() = block / 4;
    const parallel::Schedule schedule{.ranks = 16, .chunks = 2, .programs = {}};
    const auto ends = balance_ranks(costs, schedule);
    ASSERT_EQ(ends.size(), 32U);
    for (size_t stage = 0; stage < ends.size(); ++stage) {
      EXPECT_EQ(ends[stage], stage + 1 == ends.size() ? 98 : 3 * stage + 4) << block;
    }
  }
}

io::Config gpt(int64_t layers) {
  io::Config config;
  config.model.layers = layers;
  testing::apply_settings(config, "model.width=32 model.heads=2 model.context=16");
  return config;
}
const ProblemShape kProblem{.classes = 64, .features = 16, .rows = 16};

TEST(Layout, PartsCoverTheNetworkWithTheTapesOfTheSchedule) {
  for (const std::string schedule :
       {"1f1b", "gpipe", "interleaved", "zb-h1", "zb-v", "dualpipe-v", "message-driven"}) {
    io::Config config = gpt(8);
    config.parallel.pipeline = 3;
    config.parallel.schedule = schedule;
    const Layout layout = make_layout(config, 6, 6, estimated_times(config, kProblem));
    EXPECT_EQ(layout.grid.data, 2);
    std::vector<int> owners(10, 0);
    for (int rank = 0; rank < 3; ++rank) {
      for (const PartShape& part : layout.parts(rank)) {
        for (size_t layer = part.first; layer < part.end; ++layer) {
          ++owners[layer];
        }
        EXPECT_GE(part.tapes, 1);
        EXPECT_EQ(part.deferred > 0, schedule.starts_with("zb") || schedule == "dualpipe-v");
      }
    }
    EXPECT_EQ(owners, std::vector<int>(10, 1)) << schedule;
  }
}

TEST(Layout, MicroBatchesOfASegmentAreCountedIn64Bits) {
  io::Config config = gpt(2);
  config.parallel.schedule = "async";
  const Layout layout = make_layout(config, 1, 4, estimated_times(config, kProblem));
  EXPECT_EQ(layout.segment(3).micro_batches, 12);
  EXPECT_THAT(failure_of([&] { layout.segment(int64_t{1} << 30); }),  // 2^32 become 0 in an int
              HasSubstr("1073741824 steps between two drains have 4294967296 micro-batches"));
}

TEST(LayerTimes, MeasuredOnesTellExpensiveLayersFromCheapOnes) {
  io::Config config = gpt(3);
  config.model.width = 128;
  const auto layers = model::make_layers(config.model, kProblem);
  std::vector<int64_t> kept;
  for (const auto& layer : layers) {
    for (const sparse::ParameterSpec& spec : layer->parameters()) {
      kept.push_back(spec.shape.count());
    }
  }
  kernels::Backend backend(kernels::by_name("auto"), 1);
  const LayerTimes times = measured_times(config, kProblem, layers, kept, 8, backend);
  ASSERT_EQ(times.layers.size(), 5U);
  EXPECT_GT(times.layers[1].forward, times.layers[0].forward);
  // Blocks are timed once.
  EXPECT_EQ(times.layers[1].forward, times.layers[2].forward);
  EXPECT_EQ(times.layers[1].forward, times.layers[3].forward);
}

}  // namespace
}  // namespace espalier::train::layout_test
