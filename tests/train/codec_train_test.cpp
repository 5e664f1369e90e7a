// Compressed communication as whole runs: replicas stay equal, resuming changes no bit, errors are
// kept, values that are not finite stop the run.
#include <cmath>
#include <fstream>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include "parallel/transport/collectives.h"
#include "parallel/wire/codec.h"
#include "src/train/checkpoint/snapshot.h"
#include "src/train/stage/wire_formats.h"
#include "tests/support/codec_samples.h"
#include "tests/support/failure.h"
#include "tests/support/grid.h"
#include "tests/support/settings.h"

namespace espalier::codec_train_test {
namespace {

using namespace testing;

io::Config coded(const TempDir& dir, const std::string& codec) {
  io::Config config = tiny_config(dir);
  apply_settings(config, fmt::format("parallel.codec={} parallel.codec_min_size=64", codec));
  return config;
}

using CodedRuns = RunTest;

/// check_every = 3 and the end of the run compare the replicas' parameters bit for bit.
TEST_F(CodedRuns, KeepReplicasEqualInEveryCodecAndReduction) {
  const Outcome plain = run(tiny_config(dir), 3);
  for (const std::string reduction : {"sra", "ring", "all-to-all", "hierarchical"}) {
    for (const std::string& codec : lossy_codecs()) {
      SCOPED_TRACE(reduction + " " + codec);
      config = coded(dir, codec);
      config.parallel.reduction = reduction;
      const Outcome got = run(config, 3);
      ASSERT_EQ(got.losses.size(), plain.losses.size());
      EXPECT_TRUE(std::isfinite(got.losses.back()));
      EXPECT_EQ(got.losses.front(), plain.losses.front()) << "the first loss precedes any codec";
      if (reduction != "hierarchical") {  // one machine: nothing is encoded
        EXPECT_NE(got.values, plain.values);
      } else {
        EXPECT_EQ(got.values, plain.values);
      }
    }
  }
}

TEST_F(CodedRuns, EightBitsLearnAsWellAsAll) {
  config.train.steps = 60;
  const double plain = run(config, 2).val_loss;
  for (const std::string codec : {"dynamic8", "maxmin:8", "linear8", "bf16"}) {
    io::Config with = coded(dir, codec);
    with.train.steps = 60;
    EXPECT_NEAR(run(with, 2).val_loss, plain, 0.02 * plain) << codec;
  }
}

/// One rank: a codec does not change the sums.
TEST_F(CodedRuns, OneRankSendsNothingAndChangesNothing) {
  const Outcome plain = run(tiny_config(dir), 1);
  for (const std::string codec : {"sign", "maxmin:4"}) {
    EXPECT_EQ(run(coded(dir, codec), 1), plain) << codec;
  }
}

struct Way {
  std::string codec;
  int zero = 0;
  std::string rounding = "nearest";
  bool pruned = false;
};

/// With the same replicas a resumed run has the bits of an uninterrupted one.
TEST_F(CodedRuns, ResumeIsNoBreakWithErrorFeedback) {
  for (const Way& way : {Way{"maxmin:2"}, Way{"topk:0.05", 1}, Way{"sign", 0, "nearest", true},
                         Way{"linear8", 0, "stochastic"}, Way{"eden:1", 1, "stochastic"}}) {
    SCOPED_TRACE(way.codec);
    config = coded(dir, way.codec);
    config.parallel.error_feedback = true;
    config.parallel.zero = way.zero;
    config.parallel.rounding = way.rounding;
    config.train.checkpoint_every = 5;
    if (way.pruned) {
      apply_settings(
          config,
          "pruning.method=magnitude pruning.sparsity=0.7 pruning.at_step=3 sparse.storage=sparse");
    }
    expect_resume_is_no_break(config, 2, {5});
  }
}

TEST_F(CodedRuns, ResumeOverAPipelineKeepsTheErrorsOfEachReplica) {
  config = coded(dir, "maxmin:2");
  apply_settings(config,
                 "parallel.error_feedback=true parallel.pipeline=2 parallel.schedule=1f1b "
                 "train.micro_batch=2 train.checkpoint_every=5");
  expect_resume_is_no_break(config, 4, {5});
}

int64_t count_of(const std::string& text, const std::string& part) {
  int64_t count = 0;
  for (size_t at = text.find(part); at != text.npos; at = text.find(part, at + 1)) {
    ++count;
  }
  return count;
}

struct Adaptive {
  std::string codec;
  std::string optimizer;  ///< decides the measure of errors
};

TEST_F(CodedRuns, AdaptiveBitsKeepToTheirBudgetAndResume) {
  for (const Adaptive& way : {Adaptive{"adaptive:4", "adamw"}, Adaptive{"adaptive:4:1.5", "sgd"},
                              Adaptive{"adaptive-time:4", "adamw"}}) {
    SCOPED_TRACE(way.codec);
    config = coded(dir, way.codec);
    config.optimizer.kind = way.optimizer;
    config.parallel.error_feedback = true;
    std::string notes;
    const Outcome whole = run(config, 2, notes);
    EXPECT_EQ(count_of(notes, "codecs chosen"), 3) << "at steps 0, 4 and 8, by rank 0";
    EXPECT_TRUE(std::isfinite(whole.losses.back()));
    if (way.codec.starts_with("adaptive-time")) {
      continue;  // measured times differ from run to run
    }
    config.train.checkpoint_every = 6;  // between two choices
    config.run.out = (dir / "parts").string();
    run(config, 2, {.stop_after = 6});
    const Outcome resumed = run(config, 2, {.resume = "auto"});
    EXPECT_EQ(resumed.values, whole.values);
  }
}

TEST_F(CodedRuns, FastestAndAutoAreMeasuredAndSaySo) {
  for (const std::string codec : {"fastest", "maxmin:4"}) {
    config = coded(dir, codec);
    config.parallel.reduction = codec == "fastest" ? "sra" : "auto";
    std::string notes;
    const Outcome got = run(config, 2, notes);
    EXPECT_THAT(notes, AnyOf(HasSubstr("fastest codecs"), HasSubstr("pay"))) << codec;
    EXPECT_TRUE(std::isfinite(got.losses.back()));
  }
}

/// To the byte, where a run measures nothing that decides. With so small an error "adaptive" takes
/// its longest codecs.
TEST_F(CodedRuns, MemoryOfMessagesIsPlanned) {
  for (const std::string codec : {"fp32", "maxmin:4", "topk:0.5", "adaptive:4", "adaptive:4:0.01",
                                  "adaptive-time:4", "fastest", "adaprec:4:5"}) {
    for (const std::string reduction : {"sra", "ring", "all-to-all", "hierarchical", "auto"}) {
      SCOPED_TRACE(codec + " " + reduction);
      config = coded(dir, codec);
      config.parallel.reduction = reduction;
      config.parallel.error_feedback = codec != "fp32";
      config.train.dtype = codec == "fp32" || codec == "maxmin:4" ? "bf16" : "fp32";
      config.model.width = 64;
      const bool measures = (reduction == "auto" && codec != "fp32") || codec == "adaptive:4" ||
                            codec == "adaptive-time:4" || codec == "fastest";
      expect_within_plan(config, 3, measures ? 2 : 1);
    }
  }
}

/// Runs know on how many machines their replicas are: one machine needs no memory between machines.
TEST_F(CodedRuns, MemoryOfMessagesIsPlannedByMachines) {
  for (const char* codec : {"fp32", "maxmin:4"}) {
    for (const char* reduction : {"hierarchical", "auto"}) {
      for (const int ranks_a_node : {0, 1, 2, 3}) {
        SCOPED_TRACE(fmt::format("{} {} {}", codec, reduction, ranks_a_node));
        config = coded(dir, codec);
        apply_settings(config, fmt::format("parallel.reduction={} model.width=64", reduction));
        // Machines with 3 ranks and 1: an upper bound.
        expect_within_plan(config, 4, ranks_a_node == 3 ? HUGE_VAL : 1.2,
                           {.ranks_a_node = ranks_a_node});
      }
    }
  }
}

/// The codecs of each round, from the log.
std::vector<std::string> chosen_in(const TempDir& dir) {
  std::vector<std::string> chosen;
  std::ifstream log(dir / "run/adaprec.jsonl");
  for (std::string line; std::getline(log, line);) {
    chosen.push_back(nlohmann::json::parse(line)["chosen"]);
  }
  return chosen;
}

/// The steps of a chosen trial are steps of the run, whichever it is: with the same codec twice the
/// run is that codec's.
TEST_F(CodedRuns, AdaPrecTrialsChangeNoBit) {
  for (const std::string dtype : {"fp32", "bf16"}) {
    for (const int zero : {0, 1}) {
      SCOPED_TRACE(fmt::format("{} zero {}", dtype, zero));
      config = coded(dir, "maxmin:4");
      apply_settings(config, fmt::format("train.dtype={} parallel.zero={}", dtype, zero));
      config.parallel.value_codec.fallback = zero == 1 ? "maxmin:3" : "fp32";
      apply_settings(config,
                     "parallel.error_feedback=true pruning.method=magnitude pruning.sparsity=0.6 "
                     "pruning.at_step=2 train.steps=24");
      const Outcome want = run(config, 2);
      config.parallel.codec.fallback = "adaprec:8:5:maxmin:4+maxmin:4:128";  // the same
      const Outcome got = run(config, 2);
      EXPECT_EQ(got, want);
      EXPECT_EQ(chosen_in(dir).size(), 2U)
          << "after steps 8 and 16; at the start a trial would pass the pruning";
    }
  }
}

/// A run is that of its chosen codecs, from step to step: where the winner's trial came first, in
/// the middle or last, and where memory is too short to keep its state.
TEST_F(CodedRuns, AdaPrecTrainsWithTheChosenCodecs) {
  std::set<std::string> all;
  int repeats = 0;
  const std::vector<std::vector<std::string>> orders{{"dynamic8", "fp32", "topk:0.02"},
                                                     {"topk:0.02", "dynamic8", "fp32"},
                                                     {"topk:0.02", "fp32", "dynamic8"}};
  for (const auto& order : orders) {
    for (const bool keeps : {true, false}) {
      config = coded(dir, fmt::format("adaprec:8:5:{}", fmt::join(order, "+")));
      if (order == orders.front()) {
        config.parallel.error_feedback = true;
      } else {
        config.train.dtype = "fp16";
        config.train.loss_scale = 0;  // it is part of the state
      }
      apply_settings(config,
                     "train.steps=24 train.micro_batch=6 train.recompute=none train.eval_every=3 "
                     "train.checkpoint_every=0");
      if (!keeps) {
        config.train.memory_budget = "1GB";
        config.train.memory_budget = fmt::format("{}B", fit_of(config, 2).plan.needed());
      }
      std::string notes;
      const Outcome got = run(config, 2, notes);
      repeats += notes.find("not kept") != std::string::npos ? 1 : 0;
      const auto metrics = metrics_without_times(config);
      const std::vector<std::string> chosen = chosen_in(dir);
      ASSERT_EQ(chosen.size(), 3U);
      all.insert(chosen.begin(), chosen.end());

      io::Config plain = config;
      plain.run.out = dir / "other";
      Outcome want;
      std::vector<double> losses;
      for (size_t round = 0; round < chosen.size(); ++round) {
        plain.parallel.codec.fallback = chosen[round];
        want = run(plain, 2,
                   {.resume = round == 0 ? "none" : "auto",
                    .stop_after = static_cast<int64_t>(round + 1) * 8});
        losses.insert(losses.end(), want.losses.begin(), want.losses.end());
      }
      want.losses = losses;
      EXPECT_EQ(got, want) << fmt::format("{} {}", fmt::join(chosen, " "), keeps);
      std::vector<int64_t> evaluated;
      for (const auto& line : metrics) {
        if (line.contains("val_loss")) {
          evaluated.push_back(line["step"]);
        }
      }
      EXPECT_EQ(evaluated, (std::vector<int64_t>{5, 6, 13, 15, 21, 24}))
          << "within a trial: at its end";
    }
  }
  EXPECT_TRUE(all.contains("fp32") || all.contains("dynamic8"));
  EXPECT_GT(repeats, 0);
}

/// A round ends with the steps of its winner, or is not there: stops within trials lose no bit.
TEST_F(CodedRuns, AdaPrecStopsBetweenRounds) {
  config = coded(dir, "maxmin:4");
  apply_settings(config, "train.steps=24 train.checkpoint_every=0");
  const Outcome want = run(config, 2);
  config.parallel.codec.fallback = "adaprec:8:5:maxmin:4+maxmin:4:128";  // the same
  EXPECT_EQ(run_with_breaks(config, 2, {5, 8, 10, 17}), want) << "10: at 13, 17: at 21";
  for (const int after : {1, 4, 6, 9, 12, 14, 17}) {  // polls, one a step: a round has ten
    SCOPED_TRACE(after);
    std::mutex mutex;
    std::map<std::thread::id, int> polls;  // of each rank
    const auto stop = [&] {
      const std::lock_guard lock(mutex);
      return ++polls[std::this_thread::get_id()] > after;
    };
    const Outcome first = run(config, 2, {.resume = "none", .stop_requested = stop});
    Outcome rest = run(config, 2, {.resume = "auto"});
    rest.losses.insert(rest.losses.begin(), first.losses.begin(), first.losses.end());
    EXPECT_EQ(rest, want);
    EXPECT_EQ(chosen_in(dir).size(), 3U);
  }
}

/// "fastest" as a candidate: its codecs of each parameter are those of the checkpoint after a
/// resume.
TEST_F(CodedRuns, AdaPrecMayChooseFastest) {
  config = coded(dir, "adaprec:10:5:fastest+topk:0.01");
  apply_settings(config, "train.steps=20 train.checkpoint_every=5");
  const Outcome whole = run(config, 2);
  const auto state = [&](int step) {
    const auto file = dir / fmt::format("run/checkpoints/step-{:06}.h5", step);
    return train::progress_of(io::CheckpointReader(file)).codec_choice;
  };
  const std::string before = state(15);
  EXPECT_THAT(before, HasSubstr("blocks.0.mlp.expand.weight="));
  EXPECT_EQ(state(20).substr(state(20).find(';')), before.substr(before.find(';')));
  config.train.steps = 10;
  run(config, 2);
  config.train.steps = 20;
  const auto resumed = run(config, 2, {.resume = "auto"});
  EXPECT_EQ(resumed.losses.size(), 10U);
}

/// The sum over ranks of their kept errors, by element of a parameter.
std::vector<double> kept_errors(parallel::Communicator& comm, const sparse::Store& store,
                                const std::string& name) {
  for (const sparse::Parameter& parameter : store.parameters()) {
    if (parameter.spec.name == name) {
      const auto mine = store.part(store.feedback(), parameter).span<float>();
      std::vector<double> sum(mine.begin(), mine.end());
      parallel::all_reduce_small(comm, sum, parallel::Combine::sum);
      return sum;
    }
  }
  return {};
}

TEST_F(CodedRuns, AnotherNumberOfRanksSharesTheErrorFeedback) {
  config = coded(dir, "sign");
  apply_settings(config, "parallel.error_feedback=true train.checkpoint_every=0");
  const std::string name = "blocks.0.mlp.expand.weight";
  std::vector<double> before;
  parallel::run_ranks(3, [&](parallel::Communicator& comm) {
    train::Trainer trainer(config, comm, {.resume = "none", .stop_after = 6});
    trainer.run();
    auto sum = kept_errors(comm, trainer.stage().store(), name);
    if (comm.rank() == 0) {
      before = std::move(sum);
    }
  });
  ASSERT_FALSE(before.empty());
  parallel::run_ranks(2, [&](parallel::Communicator& comm) {
    train::Trainer trainer(config, comm, {.resume = "auto"});
    const auto after = kept_errors(comm, trainer.stage().store(), name);
    double size = 0;
    for (size_t i = 0; i < before.size(); ++i) {
      ASSERT_NEAR(after[i], before[i], 1e-6 + 1e-5 * std::abs(before[i]));
      size = std::max(size, std::abs(before[i]));
    }
    EXPECT_GT(size, 0);
  });
}

/// Surviving elements keep their errors when masks change.
TEST_F(CodedRuns, NewMasksCarryErrorsOver) {
  config = coded(dir, "sign");
  config.parallel.error_feedback = true;
  parallel::run_ranks(2, [&](parallel::Communicator& comm) {
    train::Trainer trainer(config, comm, {.resume = "none", .stop_after = 6});
    trainer.run();
    sparse::Store& store = trainer.stage().store();
    std::vector<sparse::Mask> masks = store.masks();
    std::vector<float> want;
    for (size_t p = 0; p < masks.size(); ++p) {
      const sparse::Parameter& parameter = store.parameters()[p];
      const auto errors = store.part(store.feedback(), parameter).span<float>();
      for (int64_t i = 0; i < parameter.size(); ++i) {
        if (parameter.spec.prunable && i % 3 != 0) {
          masks[p].set(i, false);
        } else {
          want.push_back(errors[static_cast<size_t>(i)]);
        }
      }
    }
    store.set_masks(masks);
    std::vector<float> got;
    for (const sparse::Parameter& parameter : store.parameters()) {
      const auto errors = store.part(store.feedback(), parameter).span<float>();
      got.insert(got.end(), errors.begin(), errors.end());
    }
    EXPECT_EQ(got, want);
    EXPECT_GT(*std::ranges::max_element(got), 0);
  });
}

TEST_F(CodedRuns, NormsBiasesAndSmallParametersAreSentUncompressed) {
  config.parallel.codec.fallback = "maxmin:4";
  config.parallel.codec.patterns = {{"*.norm1.*", "bf16"}, {"head.*", "fp32"}};
  const auto format = [&](const std::string& name, const Shape& shape, int64_t kept) {
    return parallel::text_of(
        *train::gradient_format(config, {.name = name, .shape = shape}, kept, DType::fp32));
  };
  EXPECT_EQ(format("blocks.0.mlp.expand.weight", Shape{128, 32}, 4096), "maxmin:4:128");
  EXPECT_EQ(format("blocks.0.mlp.expand.weight", Shape{128, 32}, 1023), "fp32");
  EXPECT_EQ(format("blocks.0.mlp.expand.bias", Shape{4096}, 4096), "fp32");
  EXPECT_EQ(format("blocks.0.norm1.weight", Shape{32}, 32), "bf16");
  EXPECT_EQ(format("head.weight", Shape{256, 32}, 8192), "fp32");
}

/// The message is the sum of gradient and kept error: a NaN in either, as from broken data or
/// memory.
TEST_F(CodedRuns, ANonFiniteGradientStopsTheRunNamingTheParameter) {
  for (const std::string codec : {"maxmin:4", "sign", "fp8-e4m3", "topk:0.1"}) {
    config = coded(dir, codec);
    config.parallel.error_feedback = true;
    config.parallel.check_state = false;  // it finds the NaN first
    const std::string message = failure_of([&] {
      run_with(config, 2, [](train::Trainer& trainer, parallel::Communicator& comm, int64_t step) {
        sparse::Store& store = trainer.stage().store();
        if (comm.rank() == 1 && step == 4) {
          store.part(store.feedback(), store.find("head.weight")).get<float>()[3] = NAN;
        }
      });
    });
    EXPECT_THAT(message, HasSubstr("at step 5, in head.weight")) << codec;
  }
}

TEST_F(CodedRuns, EncodedActivationsTrainNearlyAsWell) {
  apply_settings(config, "parallel.pipeline=2 train.micro_batch=3");
  const Outcome plain = run_grid(config, 2);
  for (const std::string codec :
       {"bf16", "dynamic8:32", "maxmin:8:32", "fp8-e4m3:32", "linear8:32"}) {
    io::Config with = config;
    with.parallel.activation_codec = codec;
    const Outcome got = run_grid(with, 2);
    EXPECT_NE(got.values, plain.values) << codec;
    EXPECT_NEAR(got.losses.back(), plain.losses.back(), 0.02 * plain.losses.back()) << codec;
  }
}

}  // namespace
}  // namespace espalier::codec_train_test
