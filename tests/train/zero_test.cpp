// ZeRO-1 as whole runs: a run with a sharded optimizer has the bits of one without, for any
// training, pruning, codec or resume; a rank holds only its share.
#include <array>

#include "tests/support/settings.h"
#include "tests/support/support.h"

namespace espalier::zero_test {
namespace {

using namespace testing;

io::Config sharded(io::Config config) {
  config.parallel.zero = 1;
  return config;
}

/// A step with clipping: the norm of the gradient must have the same bits, too.
io::Config clipped(const TempDir& dir) {
  io::Config config = tiny_config(dir);
  config.optimizer.clip = 0.05;
  return config;
}

class Zero : public RunTestWithParam<std::tuple<std::string, std::string>> {
 protected:
  Zero() {
    const auto& [settings, dtype] = GetParam();
    config = clipped(dir);
    apply_settings(config, settings + " train.dtype=" + dtype);
  }
};

/// Ways that divide the state among the ranks differently run on each number of ranks.
TEST_P(Zero, HasTheBitsOfAWholeOptimizer) {
  const std::string& settings = std::get<0>(GetParam());
  const bool divided = settings.empty() || settings == "eight_bits" || settings.ends_with("=64");
  for (const int ranks : divided ? std::vector{1, 2, 3, 4} : std::vector{3}) {
    EXPECT_EQ(run(sharded(config), ranks), run(config, ranks)) << ranks << " ranks";
  }
}

INSTANTIATE_TEST_SUITE_P(
    Ways, Zero,
    ::testing::Combine(::testing::Values("", "prune", "prune_sparse", "prune_expanded",
                                         "prune_gradually", "move_masks",
                                         "move_masks pruning.method=set",
                                         "prune_gradually pruning.method=movement",
                                         "prune_gradually pruning.method=elsa",
                                         "prune optimizer.kind=sgd", "eight_bits",
                                         "model.width=64 optimizer.kind=sgd optimizer.state_bits=8",
                                         "train.gradient_dtype=fp32", "prune parallel.bucket_mb=64",
                                         "prune parallel.overlap=false train.micro_batch=1"),
                       ::testing::Values("fp32", "bf16")));

class Resumed : public RunTestWithParam<std::string> {
 protected:
  Resumed() {
    config = clipped(dir);
    apply_settings(config, "prune_sparse train.dtype=" + GetParam());
  }
  /// Four parts of one run on three ranks, with breaks before, at and after the pruning.
  Outcome in_parts(const std::array<io::Config, 4>& configs) const {
    constexpr std::array<int64_t, 4> kStops{2, 4, 7, 0};
    std::vector<double> losses;
    Outcome last;
    for (size_t i = 0; i < configs.size(); ++i) {
      last = run(configs[i], 3, {.resume = i == 0 ? "none" : "auto", .stop_after = kStops[i]});
      losses.insert(losses.end(), last.losses.begin(), last.losses.end());
    }
    last.losses = losses;
    return last;
  }
  /// Stops after `stop` steps of `first` on some ranks, and resumes as `second` on others.
  Outcome broken(int64_t stop, const std::pair<io::Config, int>& first,
                 const std::pair<io::Config, int>& second) const {
    const Outcome begin = run(first.first, first.second, {.stop_after = stop});
    Outcome all = run(second.first, second.second, {.resume = "auto"});
    all.losses.insert(all.losses.begin(), begin.losses.begin(), begin.losses.end());
    return all;
  }
};

TEST_P(Resumed, IsNoBreakWithAndWithout) {
  const Outcome whole = run(config, 3);
  const io::Config with = sharded(config);
  EXPECT_EQ(in_parts({with, config, with, with}), whole);
  EXPECT_EQ(in_parts({config, with, with, config}), whole);
}

TEST_P(Resumed, OnOtherRanks) {
  // Checkpoints do not depend on ownership: the same run resumes from either.
  const Outcome from_whole = broken(7, {config, 3}, {config, 2});
  EXPECT_EQ(broken(7, {sharded(config), 3}, {config, 2}), from_whole);
  EXPECT_EQ(broken(7, {sharded(config), 3}, {sharded(config), 2}), from_whole);
  EXPECT_EQ(broken(7, {config, 3}, {sharded(config), 2}), from_whole);
  const Outcome alone = run(config, 1);
  ASSERT_EQ(from_whole.losses.size(), alone.losses.size());
  EXPECT_NEAR(from_whole.losses.back(), alone.losses.back(), GetParam() == "fp32" ? 2e-5 : 2e-2);
}

TEST_P(Resumed, WeightsOfAShardedRunStartAnother) {
  run(sharded(config), 3);
  const train::TrainerOptions options{.init = (dir / "run/checkpoints/step-000012.h5").string()};
  io::Config next = config;
  next.run.out = (dir / "next").string();
  const Outcome whole = run(next, 2, options);
  EXPECT_EQ(run(sharded(next), 2, options), whole);
  EXPECT_LT(whole.losses.front(), run(next, 2).losses.front() - 0.1) << "it starts trained";
}

INSTANTIATE_TEST_SUITE_P(DTypes, Resumed, ::testing::Values("fp32", "bf16", "fp16"));

/// Bytes of one kind on each rank.
std::vector<double> bytes_of(const nlohmann::ordered_json& summary, const std::string& kind) {
  std::vector<double> bytes;
  for (const auto& rank : summary["memory"]["ranks"]) {
    bytes.push_back(rank[kind]["bytes"].get<double>());
  }
  return bytes;
}

using ZeroMemory = RunTest;

TEST_F(ZeroMemory, TheOptimizersShareIsDividedByTheRanks) {
  config = clipped(dir);
  prune_sparse(config);
  apply_settings(config, "model.width=64 train.steps=5 train.dtype=bf16 parallel.bucket_mb=0.05");
  for (const int ranks : {2, 4}) {
    run(config, ranks);
    const auto whole = testing::read_json(dir / "run/summary.json");
    run(sharded(config), ranks);
    const auto summary = testing::read_json(dir / "run/summary.json");
    double optimizer = 0;
    for (const char* kind : {"moment", "master"}) {
      const double all = bytes_of(whole, kind).front();
      optimizer += all * (1 - 1.0 / ranks);
      double sum = 0;
      for (const double bytes : bytes_of(summary, kind)) {
        EXPECT_NEAR(bytes, all / ranks, 0.1 * all / ranks) << kind;
        sum += bytes;
      }
      EXPECT_NEAR(sum, all, 0.03 * all) << kind << ": nothing is held twice";
    }
    for (const char* kind : {"weight", "gradient", "index"}) {
      EXPECT_EQ(bytes_of(summary, kind).back(), bytes_of(whole, kind).front()) << kind;
    }
    EXPECT_EQ(summary["zero"], 1);
    const double saved =
        whole["model_state_bytes"].get<double>() - summary["model_state_bytes"].get<double>();
    EXPECT_NEAR(saved, optimizer, 0.1 * optimizer);
  }
}

TEST_F(ZeroMemory, SendsHalvesOfAnAllReduce) {
  config = clipped(dir);
  for (const char* dtype : {"fp32", "bf16"}) {
    config.train.dtype = dtype;
    run(config, 2);
    const auto whole = io::read_metrics(dir / "run/metrics.jsonl").back();
    run(sharded(config), 2);
    const auto halves = io::read_metrics(dir / "run/metrics.jsonl").back();
    // Slices of rank 0 are not exactly half of each bucket.
    // In bf16 values have half the bytes of the gradients, which are summed in fp32.
    const double share = dtype == std::string_view("bf16") ? 0.75 : 1;
    const double bytes = share * whole["allreduce_bytes"].get<double>();
    EXPECT_NEAR(halves["allreduce_bytes"].get<double>(), bytes, 0.1 * bytes) << dtype;
  }
}

}  // namespace
}  // namespace espalier::zero_test
