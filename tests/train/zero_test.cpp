// ZeRO-1 as whole runs: a run with a sharded optimizer has the bits of one without, for any
// training, pruning, codec or resume; a rank holds only its share.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>

#include "src/train/exchange/agreement.h"
#include "tests/support/failure.h"
#include "tests/support/support.h"
#include "tests/support/ways.h"

namespace espalier::zero_test {
namespace {

using ::testing::HasSubstr;
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

const std::vector<Way> kWays{
    {"dense", [](io::Config&) {}},
    {"pruned", prune},
    {"sparse_storage", prune_sparse},
    {"expanded_storage", prune_expanded},
    {"gradual", prune_gradually},
    {"rigl", move_masks},
    {"set",
     [](io::Config& config) {
       prune_sparse(config);
       config.pruning.method = "set";
       config.pruning.at_step = 0;
       config.pruning.every = 3;
     }},
    {"movement",
     [](io::Config& config) {
       prune_gradually(config);
       config.pruning.method = "movement";
     }},
    {"elsa",
     [](io::Config& config) {
       prune_gradually(config);
       config.pruning.method = "elsa";
     }},
    {"sgd",
     [](io::Config& config) {
       prune(config);
       config.optimizer.kind = "sgd";
     }},
    {"eight_bits", testing::set_eight_bits},
    {"sgd_in_eight_bits",
     [](io::Config& config) {
       config.model.width = 64;
       config.optimizer.kind = "sgd";
       config.optimizer.state_bits = 8;
     }},
    {"fp32_gradients", [](io::Config& config) { config.train.gradient_dtype = "fp32"; }},
    {"one_bucket",
     [](io::Config& config) {
       prune(config);
       config.parallel.bucket_mb = 64;
     }},
    {"without_overlap",
     [](io::Config& config) {
       prune(config);
       config.parallel.overlap = false;
       config.train.micro_batch = 1;
     }},
};

class Zero : public ::testing::TestWithParam<std::tuple<size_t, std::string>> {
 protected:
  io::Config config() const {
    io::Config made = clipped(dir_);
    kWays[std::get<0>(GetParam())].apply(made);
    made.train.dtype = std::get<1>(GetParam());
    return made;
  }
  TempDir dir_;
};

/// Ways that divide the state among the ranks differently run on each number of ranks.
TEST_P(Zero, HasTheBitsOfAWholeOptimizer) {
  const std::string& way = kWays[std::get<0>(GetParam())].name;
  const bool divided = way == "dense" || way == "eight_bits" || way == "one_bucket";
  for (const int ranks : divided ? std::vector{1, 2, 3, 4} : std::vector{3}) {
    EXPECT_EQ(run(sharded(config()), ranks), run(config(), ranks)) << ranks << " ranks";
  }
}

INSTANTIATE_TEST_SUITE_P(Ways, Zero,
                         ::testing::Combine(::testing::Range(size_t{0}, kWays.size()),
                                            ::testing::Values("fp32", "bf16")),
                         [](const auto& tested) {
                           return kWays[std::get<0>(tested.param)].name + "_" +
                                  std::get<1>(tested.param);
                         });

class Resumed : public ::testing::TestWithParam<std::string> {
 protected:
  io::Config config() const {
    io::Config made = clipped(dir_);
    prune_sparse(made);
    made.train.dtype = GetParam();
    return made;
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
  TempDir dir_;
};

TEST_P(Resumed, IsNoBreakWithAndWithout) {
  const Outcome whole = run(config(), 3);
  const io::Config with = sharded(config());
  const io::Config without = config();
  EXPECT_EQ(in_parts({with, without, with, with}), whole);
  EXPECT_EQ(in_parts({without, with, with, without}), whole);
}

TEST_P(Resumed, OnOtherRanks) {
  // Checkpoints do not depend on ownership: the same run resumes from either.
  const Outcome from_whole = broken(7, {config(), 3}, {config(), 2});
  EXPECT_EQ(broken(7, {sharded(config()), 3}, {config(), 2}), from_whole);
  EXPECT_EQ(broken(7, {sharded(config()), 3}, {sharded(config()), 2}), from_whole);
  EXPECT_EQ(broken(7, {config(), 3}, {sharded(config()), 2}), from_whole);
  const Outcome alone = run(config(), 1);
  ASSERT_EQ(from_whole.losses.size(), alone.losses.size());
  EXPECT_NEAR(from_whole.losses.back(), alone.losses.back(), GetParam() == "fp32" ? 2e-5 : 2e-2);
}

TEST_P(Resumed, WeightsOfAShardedRunStartAnother) {
  run(sharded(config()), 3);
  const train::TrainerOptions options{.init = (dir_ / "run/checkpoints/step-000012.h5").string()};
  io::Config next = config();
  next.run.out = (dir_ / "next").string();
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

TEST(ZeroMemory, TheOptimizersShareIsDividedByTheRanks) {
  const TempDir dir;
  io::Config config = clipped(dir);
  prune_sparse(config);
  config.model.width = 64;
  config.train.steps = 5;
  config.train.dtype = "bf16";
  config.parallel.bucket_mb = 0.05;
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

TEST(ZeroMemory, SendsHalvesOfAnAllReduce) {
  const TempDir dir;
  io::Config config = clipped(dir);
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

TEST(ZeroErrors, ARankThatFailsEndsTheOthersWithItsMessage) {
  const TempDir dir;
  io::Config config = sharded(clipped(dir));
  std::atomic<int> ended = 0;
  const std::string message = failure_of([&] {
    parallel::run_ranks(3, [&](parallel::Communicator& comm) {
      train::TrainerOptions options{.resume = "none"};
      options.on_step = [&](const train::StepReport& report) {
        if (comm.rank() == 1 && report.step == 5) {
          fail("rank 1 lost its disk");
        }
      };
      train::Trainer trainer(config, comm, options);
      try {
        trainer.run();
      } catch (const parallel::PeerLost& lost) {
        EXPECT_THAT(lost.what(), HasSubstr("rank 1 lost its disk"));
        ++ended;
        throw;
      }
    });
  });
  EXPECT_THAT(message, HasSubstr("rank 1 lost its disk"));
  EXPECT_EQ(ended, 2);
}

/// Replicated state is compared between ranks, and an error names the rank that differs.
TEST(ZeroErrors, ADifferentRankIsFound) {
  for (const int64_t zero : {0, 1}) {
    const TempDir dir;
    io::Config config = clipped(dir);
    config.parallel.zero = zero;
    config.train.dtype = "bf16";
    const std::string message = failure_of([&] {
      parallel::run_ranks(3, [&](parallel::Communicator& comm) {
        train::Trainer trainer(config, comm, {.resume = "none"});
        sparse::Store& store = trainer.stage().store();
        if (comm.rank() == 2) {  // an exact copy: values alone would not show it
          store.find("norm.bias").dense.get<float>()[0] += 1e-6F;
        }
        train::compare_ranks(store, comm);
      });
    });
    EXPECT_THAT(message, HasSubstr("norm.bias (exact copy)"));
    EXPECT_THAT(message, HasSubstr("2"));
  }
}

}  // namespace
}  // namespace espalier::zero_test
