// The planner: steps against what they are sums of, and searches.
#include <array>
#include <numeric>

#include "parallel/pipeline/schedule/registry.h"
#include "parallel/wire/codec.h"
#include "src/planner/calibration.h"
#include "src/planner/plans.h"
#include "src/train/memory/budget.h"
#include "src/train/stage/layer_times.h"
#include "tests/planner/given.h"
#include "tests/support/failure.h"
#include "tests/support/ranks.h"
#include "tests/support/settings.h"

namespace espalier::planner::planner_test {
namespace {

using kernels::OperationRow;

TEST(Operations, CountTheFlopsOfARun) {
  for (const double sparsity : {0.0, 0.9}) {
    const Given given(gpt(sparsity));
    const auto layers = count_operations(given.config, given.problem, given.start.kept, 2,
                                         model::Recompute::none, true);
    ASSERT_EQ(layers.size(), 6U);
    double flops = 0;
    int64_t kept = 0;
    for (const LayerOperations& layer : layers) {
      for (const auto* part : {&layer.forward, &layer.backward_input, &layer.backward_weight}) {
        for (const OperationRow& row : *part) {
          flops += static_cast<double>(row.calls) * row.cost.flops;
        }
      }
      kept += layer.kept;
    }
    EXPECT_EQ(kept, std::reduce(given.start.kept.begin(), given.start.kept.end()));
    double dense = 0;
    for (const auto& cost : train::measure_pass(given.config, given.problem, {.micro_batch = 2})) {
      dense += cost.flops;
    }
    if (sparsity == 0) {
      EXPECT_NEAR(flops / dense, 1, 0.02);  // deferred operands are copied
    } else {
      EXPECT_LT(flops, 0.6 * dense);
    }
  }
}

TEST(Step, IsTheSumOfItsParts) {
  const Machine machine = machine_of(kMachine);
  const Given given(gpt());
  const StepPrediction one = predict_step(given.run(), machine, 1);
  const double operations =
      std::accumulate(one.by_operation.begin(), one.by_operation.end(), 0.0,
                      [](double sum, const auto& each) { return sum + each.second; });
  EXPECT_NEAR(one.step, operations, 1e-9);
  EXPECT_NEAR(one.step, one.compute + one.update, 1e-12);
  EXPECT_EQ(one.micro_batches, 8);
  EXPECT_EQ(one.waiting, 0);
  EXPECT_EQ(one.reduction, 0);

  const StepPrediction replicas = predict_step(given.run(), machine, 4);
  EXPECT_EQ(replicas.micro_batches, 2);
  EXPECT_NEAR(replicas.compute, one.compute / 4, 1e-9);
  EXPECT_GT(replicas.reduction, 0);
  EXPECT_NEAR(replicas.bytes_reduced, 2.0 * 3 / 4 * 4 * 232'448, 0.1 * 232'448 * 4);
}

/// Nearly all arithmetic of such a network is in convolutions.
TEST(Step, OfConvolutionsTakesTheTimeOfTheirProducts) {
  const Machine machine = machine_of(kMachine);
  io::Config config;
  config.model.kind = "vision";
  config.model.image = {16, 16, 3};
  config.model.network = {"3 x conv 64 3", "mean"};
  config.train.global_batch = config.train.micro_batch = 32;
  config.data.kind = "images";
  for (const double sparsity : {0.0, 0.5}) {
    config.pruning.method = sparsity > 0 ? "random" : "none";
    testing::apply_settings(
        config,
        fmt::format("pruning.at_step=0 pruning.sparsity={} sparse.storage=sparse", sparsity));
    const Given given(config,
                      {.classes = 10, .features = 768, .rows = 1, .input_dtype = DType::fp32});
    const StepPrediction step = predict_step(given.run(), machine, 1);
    const double share = sparsity > 0 ? machine.sparse_share : machine.product_share;
    EXPECT_GT(step.compute, 0.8 * step.flops / (1e12 * share)) << sparsity;
  }
}

TEST(Step, OfAPipelineIsItsSimulation) {
  const Machine machine = machine_of(kMachine);
  Given given(gpt());
  testing::apply_settings(given.config, "parallel.pipeline=2 parallel.schedule=1f1b");
  const StepPrediction found = predict_step(given.run(), machine, 2);
  EXPECT_NEAR(found.step, found.timeline.makespan() + found.update, 1e-12);
  EXPECT_GT(found.waiting, 0);
  const StepPrediction one = predict_step(Given(gpt()).run(), machine, 1);
  EXPECT_GT(found.step, one.step / 2);
  EXPECT_LT(found.step, one.step);
}

/// As Megatron-LM divides layers: everything but norms, for exchanges of activations.
TEST(Step, TensorSplitsDivideLayersAndExchangeActivations) {
  const Machine machine = machine_of(kMachine);
  const Given given(gpt());
  const auto predict = [&](TensorSplit split, int devices) {
    PlannedRun run = given.run();
    run.tensor = split;
    return predict_step(run, machine, devices);
  };
  const StepPrediction whole = predict({}, 1);
  const StepPrediction split = predict({.ways = 4}, 4);
  const StepPrediction sequence = predict({.ways = 4, .sequence = true}, 4);
  EXPECT_EQ(split.micro_batches, whole.micro_batches);
  double norms = 0;
  for (const auto& [name, seconds] : whole.by_operation) {
    norms += name.starts_with("norm") ? seconds : 0;
  }
  ASSERT_GT(norms, 0);
  // 4 blocks with 4 all-reduces, one of the embedding, one of the head; 6 hops, a quarter each.
  const io::Config& config = given.config;
  const auto bytes =
      static_cast<double>(4 * config.model.context * config.model.width * split.micro_batch);
  const double exchanges = 18 * 6 * (3e-6 + bytes / 4 / 1e10);
  const auto passes = static_cast<double>(whole.micro_batches);
  EXPECT_NEAR(sequence.step, whole.step / 4 + passes * exchanges, 1e-9);
  EXPECT_NEAR(split.step, (whole.step - norms) / 4 + norms + passes * exchanges, 1e-9);

  const StepPrediction replicas = predict({.ways = 4}, 8);
  EXPECT_NEAR(replicas.bytes_reduced, predict({}, 2).bytes_reduced / 4, 64);
  EXPECT_THAT(failure_of([&] { predict({.ways = 4}, 6); }), HasSubstr("groups of 4"));
}

TEST(Exchange, IsDividedByZeroCodecsAndLevels) {
  Machine machine = machine_of(kMachine);
  machine.bandwidth = 1e15;  // sums and codecs take no time
  for (Level& level : machine.levels) {
    level.link.latency_s = 0;
  }
  machine.overhead_s = 0;
  io::Config config = gpt();
  testing::apply_settings(config, "train.dtype=bf16 parallel.bucket_mb=1");
  constexpr int64_t kKept = 1 << 20;
  const auto times = [&](int replicas) {
    if (replicas == 1) {
      return train::replica_times(config, {.kept = kKept, .update_s = 0.5}, {});
    }
    return train::replica_times(
        config,
        {.kept = kKept,
         .replicas = replicas,
         .gradient = DType::bf16,
         .before_s = 1,
         .update_s = 0.5},
        rates_between(
            config, machine,
            Links(machine, {.data = replicas}, 1).of_replicas(0, config.parallel.reduction)));
  };
  const auto near = [](double a, double b) { EXPECT_NEAR(a, b, 1e-5 * b); };
  // Within a node: 2 (p-1)/p of 2 bytes a value at 1e10 bytes/s.
  near(times(4).bytes, 1.5 * 2 * kKept);
  near(times(4).reduction, 1.5 * 2 * kKept / 1e10);
  near(times(4).update, 0.5);
  EXPECT_EQ(times(1).reduction, 0);
  // Over 16 nodes at 1e9 bytes/s: all of it, or a quarter.
  near(times(64).reduction, 2 * 63.0 / 64 * 2 * kKept / 1e9);
  config.parallel.reduction = "hierarchical";
  near(times(64).reduction, 2 * 2 * kKept * (0.75 / 1e10 + 15.0 / 16 / 4 / 1e9));
  // ZeRO-1: half of the reduction, a share of the update, and the gather of values.
  testing::apply_settings(config, "parallel.reduction=sra parallel.zero=1");
  near(times(4).bytes, 1.5 * 2 * kKept);
  near(times(4).reduction, 0.75 * 2 * kKept / 1e10);
  near(times(4).update, 0.5 / 4 + 0.75 * 2 * kKept / 1e10);
  // 4 bits and two fp32 numbers for each bucket of 512 instead of 16 bits.
  testing::apply_settings(config, "parallel.zero=0 parallel.codec=maxmin:4:512");
  near(times(4).bytes, 1.5 * kKept * (0.5 + 8.0 / 512));
}

/// 4 devices a node, which share its port of 1e9 bytes/s; 6 or 12 nodes.
TEST(Links, OfASharedPortAreDividedAmongItsSenders) {
  Machine machine = machine_of(kMachine);
  machine.levels.back().shared = true;
  const auto port = [&](const parallel::Grid& grid, int ways = 1) {
    return [&machine, grid, ways](int stage, std::string_view reduction) {
      return Links(machine, grid, ways).of_replicas(stage, reduction).bytes_per_s;
    };
  };
  const auto messages = [&](const parallel::Grid& grid, int from, bool cycle = false) {
    Links::Messages all;
    for (int stage = 0; stage + 1 < grid.pipeline; ++stage) {
      all.emplace_back(stage, stage + 1);
    }
    if (cycle) {
      all.emplace_back(grid.pipeline - 1, 0);
    }
    const int to = (from + 1) % grid.pipeline;
    return Links(machine, grid, 1, all).between_stages(from, to).bytes_per_s;
  };
  const auto seconds = [](double inner, double outer) { return inner / 1e10 + outer / 1e9; };

  // A node has four replicas of one stage: one ring, but four messages to the next stage.
  const parallel::Grid replicas{.pipeline = 2, .data = 12};
  EXPECT_EQ(port(replicas)(0, "ring"), 1e9);
  EXPECT_EQ(port(replicas)(1, "sra"), 1e9 / 4);
  EXPECT_DOUBLE_EQ(port(replicas)(1, "hierarchical"), 11.0 / 12 / seconds(0.75, 2.0 / 3 / 4 * 4));
  EXPECT_EQ(messages(replicas, 0), 1e9 / 4);

  // A node has two replicas of both stages: two rings, and no message leaves it.
  const parallel::Grid stages{
      .pipeline = 2, .data = 12, .order = parallel::RankOrder::stages_first};
  EXPECT_EQ(port(stages)(0, "ring"), 1e9 / 2);
  EXPECT_EQ(port(stages)(0, "sra"), 1e9 / 4);
  EXPECT_DOUBLE_EQ(port(stages)(1, "hierarchical"), 11.0 / 12 / seconds(0.5, 5.0 / 6 / 2 * 4));
  EXPECT_EQ(messages(stages, 0), 1e10);

  // Eight stages over two nodes: one message leaves the first, and each node has four rings.
  const parallel::Grid deep{.pipeline = 8, .data = 3, .order = parallel::RankOrder::stages_first};
  EXPECT_EQ(messages(deep, 0), 1e10);
  EXPECT_EQ(messages(deep, 3), 1e9);
  EXPECT_EQ(port(deep)(0, "ring"), 1e9 / 4);

  // Two replicas of six stages: of the second node the last stage of the first replica, whose
  // schedule is a cycle, and stage 1 of the second one send.
  const parallel::Grid cycle{.pipeline = 6, .data = 2, .order = parallel::RankOrder::stages_first};
  EXPECT_EQ(messages(cycle, 1), 1e9);
  EXPECT_EQ(messages(cycle, 1, true), 1e9 / 2);
  EXPECT_EQ(messages(cycle, 5, true), 1e9 / 2);
  EXPECT_EQ(port(deep)(0, "hierarchical"), 1e9 / 4) << "one replica a node";

  // Two devices divide each layer: two rings, one for each part.
  EXPECT_EQ(port({.data = 12}, 2)(0, "ring"), 1e9 / 2);
  // Inside one node nothing is shared.
  EXPECT_EQ(port({.pipeline = 2, .data = 2})(0, "sra"), 1e10);
}

TEST(Step, OrderOfRanksDecidesWhatLeavesANode) {
  Machine machine = machine_of(kMachine);  // 4 devices a node
  machine.levels.front().link.bytes_per_s = 1e12;
  machine.levels.back().link.bytes_per_s = 1e6;  // it takes all time
  machine.levels.back().shared = true;
  Given given(gpt());
  testing::apply_settings(given.config, "parallel.pipeline=4 parallel.schedule=1f1b");
  const auto predict = [&](const std::string& order) {
    given.config.parallel.rank_order = order;
    return predict_step(given.run(), machine, 16);
  };
  const StepPrediction replicas = predict("replicas_first");
  const StepPrediction stages = predict("stages_first");
  EXPECT_GT(replicas.waiting, 10 * stages.waiting) << "messages leave the node";
  EXPECT_GT(stages.reduction, 10 * replicas.reduction) << "gradients do";
}

TEST(Exchange, TakesTheTimesOfMeasuredCodecs) {
  Machine machine = machine_of(kMachine);
  io::Config config = gpt();
  config.parallel.codec.fallback = "maxmin:4";
  const auto reduction = [&] {
    return train::replica_times(config, {.kept = 1 << 20, .replicas = 2, .before_s = 1},
                                rates_between(config, machine, machine.levels.front().link))
        .reduction;
  };
  const double fast = reduction();
  const kernels::WireFormat format = parallel::format_of(parallel::parse_codec("maxmin:4"));
  for (const char* verb : {"encode", "decode"}) {
    OperationRow row = codec_operation(verb, format, 1 << 20, DType::fp32);
    EXPECT_EQ(row.name, std::string(verb) + " maxmin:4");
    row.seconds = 0.1;
    machine.measured["fp32 " + row.name] = {row};
  }
  // A value is encoded once and decoded 3/2 times.
  EXPECT_NEAR(reduction(), 0.25, 0.01);
  EXPECT_LT(fast, 0.01);
}

TEST(Step, OfAnAsynchronousScheduleHasNoBubble) {
  Machine machine = machine_of(kMachine);
  io::Config config = gpt();
  testing::apply_settings(config, "parallel.pipeline=4 parallel.schedule=1f1b");
  config.train.micro_batch = 4;  // 4 micro-batches in 4 stages: much waiting
  const Given given(config);
  const StepPrediction common = predict_step(given.run(), machine, 4);
  config.parallel.schedule = "async";
  const Given free(config);
  const StepPrediction alone = predict_step(free.run(), machine, 4);
  EXPECT_LT(alone.step, 0.8 * common.step);
  EXPECT_GE(alone.step, 0.999 * (alone.compute + alone.update));
  EXPECT_NEAR(alone.compute, common.compute, 0.02 * common.compute);
  config.train.micro_batch = 16;  // a drain takes longer than one step of one micro-batch
  const Given drained(config);
  const StepPrediction one = predict_step(drained.run(), machine, 4);
  EXPECT_GT(one.step, 1.02 * (one.compute + one.update)) << "its share of a drain";
  EXPECT_LT(one.step, 1.03 * (one.compute + one.update));
}

TEST(Step, ActivationCodecsShortenMessages) {
  Machine machine = machine_of(kMachine);
  machine.levels.front().link = {.latency_s = 0, .bytes_per_s = 1e5};  // messages take all time
  io::Config config = gpt();
  testing::apply_settings(config, "parallel.pipeline=2 parallel.schedule=1f1b");
  const Given exact(config);
  config.parallel.activation_codec = "maxmin:8";
  const Given coded(config);
  const double share =
      predict_step(coded.run(), machine, 2).step / predict_step(exact.run(), machine, 2).step;
  EXPECT_NEAR(share, 0.25, 0.03);
}

double bytes_of(const StepPrediction& step) {
  return static_cast<double>(step.plan.fit.plan.needed());
}

/// 25,600 x 102,400 elements exceed int32, so runs refuse these matrices.
TEST(Step, CountsATrillionParameters) {
  const Machine machine = machine_of(replaced(kMachine, "memory = 1e10", "memory = 1e13"));
  for (const double sparsity : {0.0, 0.9}) {
    io::Config config = gpt(sparsity);
    testing::apply_settings(
        config, "model.layers=128 model.heads=160 model.width=25600 sparse.storage=auto");
    const Given given(config);
    const StepPrediction found = predict_step(given.run(), machine, 1);
    const double parameters = 12.0 * 128 * 25600 * 25600;
    const double tokens = 16 * 32;
    EXPECT_NEAR(found.flops, 6 * parameters * tokens * (1 - sparsity),
                (sparsity > 0 ? 0.2 : 0.01) * found.flops);
    EXPECT_GT(bytes_of(found), 12 * parameters * (1 - sparsity));
  }
}

TEST(Step, SaysWhatIsImpossible) {
  const Machine machine = machine_of(kMachine);
  Given given(gpt());
  EXPECT_THAT(failure_of([&] { predict_step(given.run(), machine, 65); }),
              HasSubstr("65 ranks need as many devices, and machine \"test\" has 64"));
  given.config.train.dtype = "fp16";
  EXPECT_THAT(failure_of([&] { predict_step(given.run(), machine, 1); }),
              HasSubstr("add device.peak.fp16"));
}

/// Every layout that a search over `ranks` ranks may try, one after the other.
std::vector<StepPrediction> all_layouts(const Given& given, const Machine& machine, int ranks) {
  std::vector<StepPrediction> all;
  io::Config config = given.config;
  const PlannedRun run = given.run();
  StepPredictor predictor(run, machine, ranks);
  const auto try_config = [&] {
    try {
      all.push_back(predictor.predict(config));
    } catch (const Failure&) {  // e.g. too few micro-batches for a schedule
    }
  };
  for (const int64_t stages : {1, 2, 4}) {
    for (const parallel::ScheduleEntry* schedule : parallel::schedules()) {
      if (!schedule->synchronous || schedule->by_arrival() ||
          (stages == 1 && !all.empty() &&
           schedule->name != parallel::schedule_entry("auto").name)) {
        continue;
      }
      for (const int64_t chunks : {2, 4}) {
        for (const int64_t micro_batch : {1, 2, 4, 8}) {
          for (const int64_t zero : {0, 1}) {
            for (const char* reduction : {"sra", "ring", "hierarchical"}) {
              for (const char* storage : {"dense", "expanded", "sparse"}) {
                for (const char* order : {"replicas_first", "stages_first"}) {
                  testing::apply_settings(
                      config,
                      fmt::format(
                          "parallel.pipeline={} parallel.schedule={} parallel.virtual_stages={} "
                          "train.micro_batch={} parallel.zero={} parallel.reduction={} "
                          "sparse.storage={} parallel.rank_order={}",
                          stages, schedule->name, chunks, micro_batch, zero, reduction, storage,
                          order));
                  if ((schedule->chunks == 0 || chunks == 2) && (zero == 0 || stages < ranks)) {
                    try_config();
                  }
                }
              }
            }
          }
        }
      }
    }
  }
  return all;
}

TEST(Search, FindsWhatAnExhaustiveSearchFinds) {
  Machine machine = machine_of(kMachine);
  machine.levels.front().ranks = 2;  // reductions over two levels
  machine.levels.back().shared = true;
  Given given(gpt(0.9));
  testing::apply_settings(
      given.config,
      "train.global_batch=8 train.micro_batch=0 train.recompute=none sparse.storage=auto");
  const std::vector<StepPrediction> everything = all_layouts(given, machine, 4);
  std::vector<StepPrediction> all = everything;
  std::ranges::sort(all, {}, bytes_of);
  machine.memory = bytes_of(all[all.size() / 3]);
  std::erase_if(all, [&](const StepPrediction& one) { return bytes_of(one) > machine.memory; });
  std::ranges::sort(all, {}, &StepPrediction::step);

  const SearchResult found =
      search_layouts(given.run(), machine, 4, {.divided_by_messages = false});
  ASSERT_EQ(found.best.size(), 10U);
  EXPECT_GT(found.slower, 100U) << "the bound leaves layouts out";
  size_t counted = found.best.size() + found.slower;
  for (const auto& [reason, layouts] : found.refused) {
    counted += layouts;
  }
  EXPECT_EQ(counted, found.tried);
  EXPECT_TRUE(std::ranges::any_of(found.refused, [](const auto& reason) {
    return reason.first.starts_with("a rank needs more than");
  })) << "the memory does, too";
  for (size_t i = 1; i < found.best.size(); ++i) {
    EXPECT_LE(found.best[i - 1].prediction.step, found.best[i].prediction.step);
  }
  EXPECT_DOUBLE_EQ(found.best.front().prediction.step, all.front().step);
  for (const Candidate& one : found.best) {
    EXPECT_TRUE(one.prediction.plan.layout.grid.data > 1 || one.config.parallel.zero == 0);
  }
  for (const auto& [stages, best] : found.by_stages) {
    const auto fastest = std::ranges::find_if(all, [stages = stages](const StepPrediction& one) {
      return one.plan.layout.grid.pipeline == stages;
    });
    ASSERT_NE(fastest, all.end());
    EXPECT_DOUBLE_EQ(best.prediction.step, fastest->step) << stages << " stages";
  }
  double smallest = bytes_of(everything.front());
  for (const StepPrediction& one : everything) {
    smallest = std::min(smallest, bytes_of(one));
  }
  machine.memory = 0.5 * smallest;
  EXPECT_THAT(failure_of([&] { search_layouts(given.run(), machine, 4); }),
              HasSubstr("The smallest needs " + train::size_text(static_cast<size_t>(smallest))));
  machine.memory = 1e6;
  EXPECT_THAT(failure_of([&] { search_layouts(given.run(), machine, 4); }),
              HasSubstr("layouts over 4 ranks is possible"));
  const std::string failure = failure_of([&] { search_layouts(given.run(), machine, 4); });
  EXPECT_THAT(failure, HasSubstr(". The smallest needs "));
  EXPECT_THAT(failure, HasSubstr("To fit, with what a rank would then need: "));
}

TEST(Search, NamesABudgetBelowTheDevice) {
  const Machine machine = machine_of(kMachine);
  Given given(gpt());
  given.config.train.memory_budget = "1MB";
  const std::string failure = failure_of([&] { search_layouts(given.run(), machine, 1); });
  EXPECT_THAT(failure, HasSubstr("raise or remove train.memory_budget = \"1MB\", a device has"));
}

/// A network for images, in 16 micro-batches of 16 by 1F1B if one rank has all.
Given vision(const std::vector<std::string>& network) {
  io::Config config;
  testing::apply_settings(config, "model.kind=vision data.kind=images");
  config.model.image = {16, 16, 3};
  config.model.network = network;
  config.train.global_batch = 256;
  testing::apply_settings(config, "train.micro_batch=16 parallel.schedule=1f1b");
  return Given(config, {.classes = 10, .features = 768, .rows = 1, .input_dtype = DType::fp32});
}

/// Convolutions compute long, and the gradients of fully connected layers are large.
TEST(Search, DividesReductionsAmongStagesOverSlowLinks) {
  Machine machine = machine_of(kMachine);
  machine.levels.back().link.bytes_per_s = machine.levels.front().link.bytes_per_s = 1e6;
  const Given given = vision({"conv 32 3", "conv 32 3", "conv 32 3", "conv 32 3", "max 4",
                              "linear 512", "linear 512", "linear 512"});
  const PlannedRun run = given.run();
  const Candidate found = search_layouts(run, machine, 4).by_stages.at(2);

  StepPredictor predictor(run, machine, 4);
  const auto layers = static_cast<int64_t>(given.layers.size());
  double best = found.prediction.step;
  for (int64_t first = 1; first < layers; ++first) {
    io::Config one = found.config;
    one.parallel.partition = {first, layers - first};
    best = std::min(best, predictor.predict(one).step);
  }
  EXPECT_LE(found.prediction.step, 1.001 * best);
  io::Config balanced = found.config;
  balanced.parallel.partition.clear();
  EXPECT_GT(predictor.predict(balanced).step, 1.3 * best);
}

/// The activations of the first layers are large, and a division by times sends them.
TEST(Search, MovesBoundariesToWhereMessagesAreSmall) {
  Machine machine = machine_of(kMachine);
  machine.levels.back().link.bytes_per_s = machine.levels.front().link.bytes_per_s = 1e7;
  const Given given = vision({"conv 32 3", "conv 32 3", "max 2", "conv 16 3", "conv 16 3", "max 2",
                              "conv 8 3", "linear 256", "linear 256"});
  const PlannedRun run = given.run();
  const auto steps_of = [&](bool moves) {
    return search_layouts(run, machine, 3, {.divided_by_messages = moves})
        .by_stages.at(3)
        .prediction.step;
  };
  StepPredictor predictor(run, machine, 3);
  const auto layers = static_cast<int64_t>(given.layers.size());
  double best = steps_of(false);
  io::Config one = search_layouts(run, machine, 3).by_stages.at(3).config;
  for (int64_t first = 1; first < layers - 1; ++first) {
    for (int64_t second = 1; first + second < layers; ++second) {
      one.parallel.partition = {first, second, layers - first - second};
      best = std::min(best, predictor.predict(one).step);
    }
  }
  EXPECT_LE(steps_of(true), 1.01 * best);
  EXPECT_GT(steps_of(false), 1.05 * best);
}

TEST(Search, KeepsAScheduleThatTheConfigNames) {
  const Machine machine = machine_of(kMachine);
  io::Config config = gpt(0.9);
  config.parallel.schedule = "gpipe";
  const Given given(config);
  for (const auto& [stages, found] : search_layouts(given.run(), machine, 4).by_stages) {
    EXPECT_EQ(found.config.parallel.pipeline, stages);
    EXPECT_TRUE(stages == 1 || found.config.parallel.schedule == "gpipe");
  }
  config.parallel.schedule = "async";
  const Given free(config);
  EXPECT_THAT(failure_of([&] { search_layouts(free.run(), machine, 4); }),
              HasSubstr("a common step"));
}

TEST(PlannedLayouts, TakeTheStagesThatARunWouldTake) {
  Machine machine = machine_of(kMachine);
  for (const double bandwidth : {1e6, 1e12}) {  // of sums of gradients: slow, free
    machine.levels.back().link.bytes_per_s = machine.levels.front().link.bytes_per_s = bandwidth;
    Given given(gpt());
    testing::apply_settings(given.config,
                            "train.global_batch=8 train.micro_batch=1 parallel.schedule=1f1b");
    int64_t expected = 1;
    double shortest = 0;
    for (const int64_t stages : {1, 2, 4}) {
      given.config.parallel.pipeline = stages;
      const double step = predict_step(given.run(), machine, 4).step;
      if (shortest == 0 || step < 0.95 * shortest) {
        shortest = step;
        expected = stages;
      }
    }
    given.config.parallel.pipeline = 0;
    const Plans plans = plan_layouts(given.run(), machine, std::array{4}, {});
    ASSERT_EQ(plans.found.size(), 1U);
    EXPECT_EQ(plans.found.front().step.plan.layout.grid.pipeline, expected) << bandwidth;
    EXPECT_DOUBLE_EQ(plans.found.front().step.step, shortest);
    EXPECT_EQ(expected > 1, bandwidth == 1e6);
  }
}

TEST(PlannedLayouts, HaveTheConfigsOwnLayoutBesideASearch) {
  Machine machine = machine_of(kMachine);
  Given given(gpt());
  given.config.parallel.pipeline = 2;
  const double step = predict_step(given.run(), machine, 4).step;
  const Plans plans = plan_layouts(given.run(), machine, std::array{4}, SearchOptions{});
  ASSERT_EQ(plans.own.size(), 1U);
  ASSERT_TRUE(plans.own.front().layout);
  EXPECT_DOUBLE_EQ(plans.own.front().layout->step.step, step);
  EXPECT_LE(plans.found.front().step.step, step);

  machine.memory = 1e6;
  const Plans large = plan_layouts(given.run(), machine, std::array{4}, {});
  EXPECT_FALSE(fits(large.found.front().step, machine, {}));
  const std::string text = shortage(given.run(), machine, large.found.front());
  EXPECT_THAT(
      text,
      HasSubstr("a device of \"test\" has 1.0 MiB. To fit, with what a rank would then need: "));
}

TEST(PlannedLayouts, NameAFasterStorage) {
  Machine machine = machine_of(kMachine);
  machine.sparse_share = 1e-3;
  Given given(gpt(0.9));
  given.config.sparse.storage.fallback = "sparse";
  const Plans slow = plan_layouts(given.run(), machine, std::array{1}, {});
  const auto faster = faster_storage(given.run(), machine, slow.found.front());
  ASSERT_TRUE(faster);
  EXPECT_NE(faster->storage, "sparse");
  EXPECT_LT(faster->share, 0.5);
  given.config.sparse.storage.fallback = "auto";
  EXPECT_THAT(storages_of(given.run()), ::testing::ElementsAre("dense", "expanded", "sparse"));
  const Plans fast = plan_layouts(given.run(), machine, std::array{1}, {});
  EXPECT_LT(fast.found.front().step.step, slow.found.front().step.step);
  EXPECT_FALSE(faster_storage(given.run(), machine, fast.found.front()));
}

TEST(Search, TriesCodecsOnlyIfAsked) {
  Machine machine = machine_of(kMachine);
  machine.levels.back().link.bytes_per_s = machine.levels.front().link.bytes_per_s = 1e6;
  Given given(gpt(0.9));
  const SearchResult exact = search_layouts(given.run(), machine, 4);
  const SearchResult coded = search_layouts(given.run(), machine, 4, {.codecs = true});
  EXPECT_EQ(exact.best.front().config.parallel.codec.fallback, "fp32");
  EXPECT_EQ(coded.best.front().config.parallel.codec.fallback, "maxmin:4");
  EXPECT_LT(coded.best.front().prediction.step, exact.best.front().prediction.step);
}

TEST(Search, LeastMemoryIsBelowThePlan) {
  const Machine machine = machine_of(kMachine);
  for (const char* storage : {"dense", "expanded", "sparse"}) {
    for (const char* recompute : {"none", "selective", "full"}) {
      for (const char* schedule : {"1f1b", "zb-v", "gpipe"}) {
        for (const int64_t zero : {0, 1}) {
          Given given(gpt(0.9));
          given.config.train.recompute = recompute;
          given.config.parallel.pipeline = 2;
          given.config.parallel.schedule = schedule;
          given.config.parallel.zero = zero;
          given.config.sparse.storage.fallback = storage;
          const PlannedRun run = given.run();
          StepPredictor predictor(run, machine, 4);
          const StepPrediction step = predictor.predict(given.config);
          const bool deferred = step.plan.layout.parts(0).front().deferred > 0;
          const double least = predictor.least_memory(
              given.config, step.plan.layout,
              predictor.network(given.config, step.plan.fit.choice, deferred));
          const std::string what = fmt::format("{} {} {} {}", storage, recompute, schedule, zero);
          EXPECT_LE(least, bytes_of(step)) << what;
          EXPECT_GT(least, 0.3 * (bytes_of(step) - static_cast<double>(train::kProgram))) << what;
        }
      }
    }
  }
}

TEST(Calibration, MeasuresWhatRunsUse) {
  parallel::run_ranks(2, [](parallel::Communicator& comm) {
    const Machine machine = calibrate(comm, {.quick = true, .rounds = 2, .on_progress = {}});
    if (comm.rank() == 0) {
      for (const char* operation :
           {"fp32 gemm", "fp32 spmm", "fp32 sddmm", "fp32 attention", "fp32 norm_backward",
            "fp32 update", "fp32 scatter", "fp32 gather", "fp32 convolution_weight",
            "fp32 sparse_convolution", "fp32 sparse_convolution_input", "fp32 encode maxmin:4",
            "bf16 decode maxmin:4"}) {
        EXPECT_TRUE(machine.measured.contains(operation)) << operation;
      }
      EXPECT_GT(machine.levels.front().link.bytes_per_s, 1e6);
      EXPECT_EQ(machine.levels.front().ranks, 2);
      const std::string text = text_of(machine);
      EXPECT_EQ(text_of(machine_of(text)), text);
    }
  });
}

}  // namespace
}  // namespace espalier::planner::planner_test
