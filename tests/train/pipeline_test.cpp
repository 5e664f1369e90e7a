// Training over a pipeline equals training without one: losses, values, moments and masks, to the
// bit, for every schedule; checkpoints go from any grid to any other.
#include "parallel/pipeline/schedule/registry.h"
#include "pruning/registry.h"
#include "tests/support/failure.h"
#include "tests/support/grid.h"
#include "tests/support/method_kinds.h"
#include "tests/support/settings.h"

namespace espalier::pipeline_test {
namespace {

using namespace testing;

io::Config config_for(const TempDir& dir) {
  io::Config config = tiny_config(dir);
  apply_settings(config, "model.layers=4 train.micro_batch=1");
  config.optimizer.clip = 0.5;  // clips: the norm is that of all stages
  return config;
}

io::Config over(io::Config config, const std::string& schedule, int64_t stages) {
  config.parallel.pipeline = stages;
  config.parallel.schedule = schedule;
  return config;
}

struct Pipeline : RunTest {
  Pipeline() { config = config_for(dir); }
};

TEST_F(Pipeline, EveryScheduleEqualsTheSerialRun) {
  const Outcome serial = run_grid(config, 1);
  for (const parallel::ScheduleEntry* entry : parallel::schedules()) {
    const std::string schedule(entry->name);
    for (const int stages : entry->synchronous ? std::vector{2, 3} : std::vector<int>()) {
      SCOPED_TRACE(fmt::format("{} {}", schedule, stages));
      expect_equal(run_grid(over(config, schedule, stages), stages), serial);
    }
  }
  expect_equal(run_grid(over(config, "auto", 2), 2), serial);
}

TEST_F(Pipeline, InEveryPrecisionStorageAndRecompute) {
  std::vector<std::string> ways;
  for (const std::string dtype : {"fp32", "bf16", "fp16"}) {
    for (const std::string storage : {"dense", "sparse optimizer.state_bits=8"}) {
      for (const std::string recompute : {"none", "full"}) {
        ways.push_back("train.dtype=" + dtype + " sparse.storage=" + storage +
                       " train.recompute=" + recompute);
      }
    }
  }
  for (const std::string family : {"llama", "qwen3", "neox", "gemma3"}) {
    ways.push_back("family:" + family);
    ways.push_back("family:" + family +
                   " train.dtype=bf16 train.recompute=full sparse.storage=sparse");
  }
  for (const std::string& way : ways) {
    SCOPED_TRACE(way);
    config = config_for(dir);
    apply_settings(config, "model.dropout=0.1 pruning.method=magnitude pruning.at_step=4 " + way);
    const Outcome serial = run_grid(config, 1);
    expect_equal(run_grid(over(config, "1f1b", 2), 2), serial);
    expect_equal(run_grid(over(config, "zb-v", 2), 2), serial);
  }
}

/// Stages x replicas against as many replicas without stages.
TEST_F(Pipeline, GridEqualsReplicas) {
  for (const int64_t zero : {0, 1}) {
    config = config_for(dir);
    config.parallel.zero = zero;
    const Outcome replicas = run_grid(config, 2);
    expect_equal(run_grid(over(config, "1f1b", 2), 4), replicas);
    expect_equal(run_grid(over(config, "interleaved", 3), 6), replicas);
  }
}

TEST_F(Pipeline, OrderOfRanksChangesNoBit) {
  for (const std::string reduction : {"sra", "hierarchical"}) {
    config = over(config_for(dir), "1f1b", 2);
    apply_settings(config, "pruning.method=magnitude pruning.at_step=3");
    config.parallel.zero = reduction == "sra" ? 1 : 0;
    config.parallel.reduction = reduction;
    apply_settings(config, "parallel.codec=maxmin:4 parallel.rounding=stochastic");
    config.parallel.error_feedback = reduction == "sra";
    const Outcome whole = run_grid(config, 6);
    config.parallel.rank_order = "stages_first";
    expect_equal(run_grid(config, 6), whole);
    // Each rank reads its parameters from a checkpoint of the other order.
    run_grid(config, 6, {.stop_after = 6});
    config.parallel.rank_order = "replicas_first";
    Outcome resumed = run_grid(config, 6, {.resume = "auto"});
    EXPECT_EQ(resumed.losses.size(), 6U);
    resumed.losses = whole.losses;
    expect_equal(resumed, whole);
  }
}

TEST_F(Pipeline, PruningSeesAllStages) {
  for (const pruning::Method* entry : pruning::methods()) {
    const std::string method(entry->name);
    for (const bool early : entry->run == nullptr || testing::waits(*entry)
                                ? std::vector<bool>()
                                : std::vector{true, false}) {
      if (early && testing::learns(*entry)) {
        continue;  // has nothing to learn from
      }
      config = config_for(dir);
      config.pruning.method = method;
      apply_settings(config, "pruning.sparsity=0.8 pruning.block=4");
      config.pruning.at_step = early ? 0 : 3;
      config.pruning.exclude = {"blocks.0.attention.qkv.weight"};  // of one stage alone
      if (testing::moves(pruning::method_of(config.pruning))) {
        config.pruning.to_step = 10;
      }
      config.pruning.every = 2;
      SCOPED_TRACE(fmt::format("{} {}", method, early));
      const Outcome serial = run_grid(config, 1);
      expect_equal(run_grid(over(config, "1f1b", 2), 2), serial);
      expect_equal(run_grid(over(config, "interleaved", 2), 2), serial);
      config.parallel.partition = {1, 5};  // a stage that has nothing to prune
      expect_equal(run_grid(over(config, "1f1b", 2), 2), serial);
    }
  }
}

/// The head's share is summed over micro-batches separately from the embedding's: other bits.
TEST_F(Pipeline, TiedEmbeddings) {
  config.model.tie_embeddings = true;
  const Outcome serial = run_grid(config, 1);
  for (const int64_t zero : {0, 1}) {
    config.parallel.zero = zero;
    for (const int ranks : {2, 4}) {
      const Outcome parts = run_grid(over(config, "1f1b", 2), ranks);
      EXPECT_THAT(parts.losses, AreNear(serial.losses, 1e-5));
    }
  }
}

/// Sums that depend on an element's place in the flat array, which is another one in each stage:
/// run_grid compares both stages' copies of the tied parameter, and a resumed run has one for both.
TEST_F(Pipeline, TiedEmbeddingsStayTheSameOnBothStages) {
  const std::string coded =
      "train.dtype=bf16 parallel.codec=maxmin:4 parallel.rounding=stochastic ";
  for (const auto& [ranks, settings] :
       {RanksWay{4, coded + "parallel.error_feedback=true"}, RanksWay{4, coded + "parallel.zero=1"},
        RanksWay{6, "parallel.reduction=ring"}}) {
    SCOPED_TRACE(settings);
    config = over(config_for(dir), "1f1b", 2);
    apply_settings(config, "model.tie_embeddings=true train.global_batch=12");
    apply_settings(config, settings);
    const Outcome whole = run_grid(config, ranks);
    config.run.out += "-in-parts";
    run_grid(config, ranks, {.stop_after = 6});
    Outcome resumed = run_grid(config, ranks, {.resume = "auto"});
    resumed.losses = whole.losses;
    expect_equal(resumed, whole);
  }
}

TEST_F(Pipeline, ResumesOnAnyGrid) {
  apply_settings(config, "pruning.method=magnitude pruning.at_step=3");
  const Outcome whole = run_grid(config, 1);
  struct Grid {
    int ranks;
    int64_t stages;
    std::string schedule;
  };
  const std::vector<Grid> grids{
      {2, 2, "1f1b"}, {3, 3, "interleaved"}, {1, 1, "auto"}, {2, 2, "zb-v"}};
  for (size_t i = 0; i + 1 < grids.size(); ++i) {
    io::Config first = over(config, grids[i].schedule, grids[i].stages);
    run_grid(first, grids[i].ranks, {.stop_after = 6});
    const Grid& next = grids[i + 1];
    Outcome resumed =
        run_grid(over(config, next.schedule, next.stages), next.ranks, {.resume = "auto"});
    EXPECT_EQ(resumed.losses.size(), 6U);
    resumed.losses = whole.losses;
    expect_equal(resumed, whole);
  }
}

TEST_F(Pipeline, KeepsItsStagesWhenItGoesOn) {
  config.parallel.partition = {5, 1};
  run_grid(over(config, "1f1b", 2), 2, {.stop_after = 6});
  config.parallel.partition = {};  // timed
  const auto partition_of = [&](const std::string& schedule) {
    std::vector<int64_t> partition;
    parallel::run_ranks(2, [&](parallel::Communicator& comm) {
      const train::Trainer trainer(over(config, schedule, 2), comm, {.resume = "auto"});
      if (comm.rank() == 0) {
        partition = trainer.layout().partition();
      }
    });
    return partition;
  };
  EXPECT_THAT(partition_of("1f1b"), ::testing::ElementsAre(5, 1));
  EXPECT_THAT(partition_of("interleaved"), ::testing::SizeIs(4));
  EXPECT_THAT(partition_of("gpipe"), ::testing::Not(::testing::ElementsAre(5, 1)));
}

/// Of those that "auto" may take, whatever the times of its layers and links are now.
TEST_F(Pipeline, KeepsItsScheduleWhenItGoesOn) {
  std::string notes;
  const auto resumed = [&] {
    std::pair<std::string, std::vector<int64_t>> found;
    parallel::run_ranks(2, [&](parallel::Communicator& comm) {
      train::TrainerOptions options{.resume = "auto"};
      if (comm.rank() == 0) {
        options.on_note = [&](const std::string& note) { notes += note + '\n'; };
      }
      const train::Trainer trainer(over(config, "auto", 2), comm, options);
      if (comm.rank() == 0) {
        found = {trainer.layout().schedule.name, trainer.layout().partition()};
      }
    });
    return found;
  };
  using Partition = std::vector<int64_t>;
  for (const auto& [schedule, partition] : {std::pair<std::string, Partition>{"1f1b", {5, 1}},
                                            {"zb-h1", {5, 1}},
                                            {"zb-v", {1, 3, 1, 1}}}) {
    config.parallel.partition = partition;
    run_grid(over(config, schedule, 2), 2, {.stop_after = 6});
    config.parallel.partition = {};
    EXPECT_EQ(resumed(), std::pair(schedule, partition));
  }
  EXPECT_THAT(notes, ::testing::Not(HasSubstr("settings differ")));
  run_grid(over(config, "gpipe", 2), 2, {.stop_after = 6});
  EXPECT_NE(resumed().first, "gpipe");
  run_grid(over(config, "auto", 2), 2, {.stop_after = 6});
  const io::CheckpointReader file(dir / "run/checkpoints/step-000006.h5");
  const std::string chosen = train::progress_of(file).config.parallel.schedule;
  EXPECT_NE(chosen, "auto");
  EXPECT_EQ(resumed().first, chosen);
}

TEST_F(Pipeline, SettingsThatDoNotFitNameTheFix) {
  const auto error_of = [](const io::Config& made, int ranks) {
    return failure_of([&] { run_grid(made, ranks); });
  };
  EXPECT_THAT(error_of(over(config, "1f1b", 2), 3), HasSubstr("multiple of 2 ranks"));
  EXPECT_THAT(error_of(over(config, "interleaved", 4), 4), HasSubstr("only 6 layers"));
  config.train.micro_batch = 4;
  EXPECT_THAT(error_of(over(config, "interleaved", 2), 2), HasSubstr("multiple of 2"));
  config.train.micro_batch = 1;
  config.parallel.partition = {3, 2};
  EXPECT_THAT(error_of(over(config, "1f1b", 2), 2), HasSubstr("the network has 6"));
  config.parallel.partition = {2, 2, 2};
  EXPECT_THAT(error_of(over(config, "1f1b", 2), 2), HasSubstr("lists 3 stages"));
}

/// Rank 0 of 1f1b sends one activation per micro-batch: B T C numbers; nothing else counts.
void expect_bytes(const std::string& codec, int64_t width) {
  const TempDir dir;
  io::Config config = over(config_for(dir), "1f1b", 2);
  apply_settings(config, fmt::format("train.micro_batch=3 parallel.activation_codec={}", codec));
  std::vector<int64_t> sent;
  parallel::run_ranks(2, [&](parallel::Communicator& comm) {
    train::Trainer trainer(config, comm,
                           {.resume = "none", .on_step = [&](const train::StepReport& report) {
                              if (comm.rank() == 0) {
                                sent.push_back(report.p2p_bytes);
                              }
                            }});
    trainer.run();
  });
  const int64_t micro_batches = config.train.global_batch / 3;
  const int64_t message = 3 * config.model.context * config.model.width * width;
  ASSERT_EQ(sent.size(), static_cast<size_t>(config.train.steps));
  for (const int64_t bytes : sent) {
    EXPECT_EQ(bytes, micro_batches * message);
  }
}

TEST_F(Pipeline, SendsTheBytesOfTheFormula) {
  expect_bytes("fp32", 4);
  expect_bytes("bf16", 2);
}

TEST_F(Pipeline, ActivationsInBf16AreClose) {
  const Outcome serial = run_grid(config, 1);
  config.parallel.activation_codec = "bf16";
  const Outcome narrow = run_grid(over(config, "1f1b", 2), 2);
  ASSERT_EQ(narrow.losses.size(), serial.losses.size());
  EXPECT_NE(narrow.losses, serial.losses);
  EXPECT_THAT(narrow.losses, AreNear(serial.losses, 2e-2));
}

/// SAMO's argument: the smaller state of a pruned model needs fewer stages. An asynchronous
/// schedule takes the fewest (others the fastest, by measured times: Budget.ChoosesTheStages…).
TEST_F(Pipeline, AutomaticStagesAreAsFewAsFitTheBudget) {
  apply_settings(config,
                 "model.width=128 model.layers=8 parallel.pipeline=0 parallel.bucket_mb=0.01 "
                 "parallel.schedule=async");
  const auto stages_of = [&](const io::Config& one, std::string& notes) {
    int stages = 0;
    parallel::run_ranks(4, [&](parallel::Communicator& comm) {
      train::TrainerOptions options{.resume = "none"};
      if (comm.rank() == 0) {
        options.on_note = [&](const std::string& text) { notes += text + "\n"; };
      }
      const train::Trainer trainer(one, comm, options);
      if (comm.rank() == 0) {
        stages = trainer.layout().grid.pipeline;
      }
    });
    return stages;
  };
  std::string notes;
  EXPECT_EQ(stages_of(config, notes), 1) << "without a budget all fits";
  // Between the needs of the dense model in one stage and in four; the program itself takes 64 MiB.
  config.train.memory_budget = "85 MiB";
  const int dense = stages_of(config, notes);
  EXPECT_GT(dense, 1);
  apply_settings(config, "pruning.method=random pruning.at_step=0 sparse.storage=sparse");
  notes.clear();
  EXPECT_LT(stages_of(config, notes), dense);
  EXPECT_THAT(notes, HasSubstr("unpruned it would take "));
}

/// The plan of the rank with the largest memory bounds all ranks, buffers of messages included.
TEST_F(Pipeline, NoRankNeedsMoreThanWasPlanned) {
  for (const std::string schedule :
       {"1f1b", "gpipe", "interleaved", "zb-h1", "zb-v", "message-driven"}) {
    for (const bool tied : {false, true}) {
      config = over(config_for(dir), schedule, 2);
      apply_settings(config, fmt::format("model.tie_embeddings={} train.steps=3", tied));
      SCOPED_TRACE(fmt::format("{} tied {}", schedule, tied));
      expect_within_plan(config, 4);
    }
  }
}

/// The first stage holds the most micro-batches: only it must recompute.
TEST_F(Pipeline, StagesRecomputeNoMoreThanTheyMust) {
  config = over(config_for(dir), "1f1b", 3);
  apply_settings(config, "model.width=64 model.context=64 train.micro_batch=2 train.steps=3");
  config.parallel.partition = {3, 2, 1};
  const auto needed = [&](const std::string& recompute) {
    io::Config one = config;
    one.train.recompute = recompute;
    return fit_of(one, 3).plan.needed();
  };
  const size_t none = needed("none");
  const size_t selective = needed("selective");
  ASSERT_LT(selective, none);
  const Outcome whole = run_grid(config, 3);
  config.train.recompute = "auto";
  config.train.memory_budget = fmt::format("{} B", (none + selective) / 2);
  const std::vector<model::Recompute> chosen = fit_of(config, 3).by_rank;
  ASSERT_EQ(chosen.size(), 3U);
  EXPECT_EQ(chosen.front(), model::Recompute::selective);
  EXPECT_EQ(chosen.back(), model::Recompute::none);
  expect_equal(run_grid(config, 3), whole);
}

}  // namespace
}  // namespace espalier::pipeline_test
