// Planned layouts: their ranks, their step as a trace, how they scale, and measured runs.
#include "src/planner/plans.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "src/planner/checkpoints.h"
#include "src/planner/measured_run.h"
#include "src/planner/step_spans.h"
#include "src/planner/trial.h"
#include "src/train/checkpoint/checkpoint_save.h"
#include "src/train/stage/stage.h"
#include "tests/planner/given.h"
#include "tests/support/failure.h"
#include "tests/support/ranks.h"
#include "tests/support/settings.h"

namespace espalier::planner::plans_test {
namespace {

using nlohmann::json;

Machine cluster() {
  return {
      .name = "cluster",
      .peak = {{"fp32", 1e12}, {"bf16", 2e12}},
      .bandwidth = 1e11,
      .memory = 1e10,
      .levels = {{.name = "node", .ranks = 64, .link = {.latency_s = 3e-6, .bytes_per_s = 1e10}}}};
}

io::Config gpt_of(double sparsity, int64_t stages, const std::string& schedule) {
  io::Config config = gpt(sparsity);
  config.sparse.storage.fallback = sparsity > 0 ? "sparse" : "dense";
  config.parallel.pipeline = stages;
  config.parallel.schedule = schedule;
  return config;
}

struct Gpt : Given {
  explicit Gpt(double sparsity = 0, int64_t stages = 1, const std::string& schedule = "auto")
      : Given(gpt_of(sparsity, stages, schedule)) {}
};

double step_of(const Gpt& gpt, int ranks) {
  return plan_layouts(gpt.run(), cluster(), std::array{ranks}, {}).found.front().step.step;
}

TEST(PlanLayouts, StorageAutoIsTheFastest) {
  for (const double sparsity : {0.1, 0.99}) {
    Gpt gpt(sparsity);
    double fastest = std::numeric_limits<double>::infinity();
    for (const char* storage : {"dense", "expanded", "sparse"}) {
      gpt.config.sparse.storage.fallback = storage;
      fastest = std::min(fastest, step_of(gpt, 1));
    }
    gpt.config.sparse.storage.fallback = "auto";
    EXPECT_EQ(step_of(gpt, 1), fastest) << sparsity;
  }
}

/// 18 samples among 2 replicas: 9 are no power of two.
TEST(PlanLayouts, ASearchTriesAllDivisorsOfTheBatch) {
  Gpt gpt(0.5);
  testing::apply_settings(gpt.config, "train.global_batch=18 train.micro_batch=9");
  const double given = step_of(gpt, 2);
  const Plans plans = plan_layouts(gpt.run(), cluster(), std::array{2}, SearchOptions());
  EXPECT_LE(plans.found.front().step.step, given);
  EXPECT_EQ(plans.found.front().config.train.micro_batch, 9);
}

TEST(PlanLayouts, ARangeLeavesOutWhatIsImpossible) {
  const Gpt gpt(0.5);  // 16 samples
  for (const bool search : {false, true}) {
    const auto options = search ? std::optional(SearchOptions()) : std::nullopt;
    const std::array ranks{1, 2, 11};
    const Plans plans = plan_layouts(gpt.run(), cluster(), ranks, options);
    EXPECT_EQ(plans.found.front().step.ranks, 1);
    EXPECT_EQ(plans.found.back().step.ranks, 2);
    EXPECT_TRUE(std::ranges::any_of(
        plans.refused, [](const Refused& one) { return one.ranks == 11 && !one.reason.empty(); }));
    const auto points = scaling_of(plans, cluster(), gpt.run().tensor, ranks);
    EXPECT_TRUE(points[1].layout);
    EXPECT_FALSE(points[2].layout);
    EXPECT_FALSE(
        failure_of([&] { plan_layouts(gpt.run(), cluster(), std::array{11}, options); }).empty());
  }
}

TEST(StepSpans, FillTheStepWithoutOverlap) {
  for (const auto& [stages, schedule] :
       std::vector<std::pair<int64_t, std::string>>{{1, "auto"}, {2, "1f1b"}, {2, "zb-v"}}) {
    const Gpt gpt(0.5, stages, schedule);
    const StepPrediction step = predict_step(gpt.run(), cluster(), 4);
    double end = 0;
    std::vector<double> busy(static_cast<size_t>(stages), 0.0);
    std::map<std::pair<int, Track>, double> free;
    for (const StepSpan& span : spans_of(step)) {
      EXPECT_GE(span.event.begin, (free[{span.rank, span.event.track}]))
          << schedule << ": " << span.event.name;
      free[{span.rank, span.event.track}] = span.event.end;
      end = std::max(end, span.event.end);
      if (span.event.track == Track::compute) {
        busy[static_cast<size_t>(span.rank)] += span.event.end - span.event.begin;
        EXPECT_EQ(step.plan.layout.schedule.rank_of(span.stage), span.rank);
        EXPECT_LT(span.micro_batch, step.micro_batches);
      }
    }
    EXPECT_NEAR(end, step.step, 1e-12);
    for (size_t rank = 0; rank < busy.size(); ++rank) {
      EXPECT_NEAR(busy[rank], step.timeline.busy(rank), 1e-12);
    }
  }
}

TEST(StepSpans, AreATraceWithAProcessARank) {
  const testing::TempDir dir;
  const Gpt gpt(0, 2, "1f1b");
  const StepPrediction step = predict_step(gpt.run(), cluster(), 4);
  write_step_trace(dir / "plan.json", step);
  const json trace = json::parse(std::ifstream(dir / "plan.json"));
  std::map<int, int> forwards;
  double end = 0;
  for (const json& event : trace.at("traceEvents")) {
    if (event["ph"] != "X") {
      continue;
    }
    end = std::max(end, event["ts"].get<double>() + event["dur"].get<double>());
    const auto rank = event["pid"].get<int>();
    if (event["name"] == "forward") {
      EXPECT_EQ(event["args"], (json{{"stage", rank}, {"micro_batch", forwards[rank]++}}));
    }
  }
  EXPECT_EQ(forwards, (std::map<int, int>{{0, 4}, {1, 4}}));
  EXPECT_NEAR(end, step.step * 1e6, 2e-3);  // the file has nanoseconds
}

TEST(PlannedRanks, HaveTheLayersTimesAndMemoryOfThePlan) {
  for (const std::string schedule : {"auto", "1f1b", "zb-v"}) {
    const Gpt gpt(0.5, 2, schedule);
    const StepPrediction step = predict_step(gpt.run(), cluster(), 4);
    const std::vector<PlannedRank> ranks = planned_ranks(gpt.run(), cluster(), gpt.config, step);
    ASSERT_EQ(ranks.size(), 2U);
    size_t layers = 0;
    size_t most = 0;
    std::map<std::string, double> by_operation;
    for (const PlannedRank& rank : ranks) {
      double seconds = rank.waiting;
      for (const auto& [action, time] : rank.seconds) {
        seconds += time;
      }
      EXPECT_NEAR(seconds, step.timeline.makespan(), 1e-12);
      for (const train::PartShape& part : rank.parts) {
        layers += part.end - part.first;
      }
      most = std::max(most, rank.memory.needed());
      for (const auto& [name, time] : rank.by_operation) {
        by_operation[name] += time;
      }
    }
    ASSERT_EQ(by_operation.size(), step.by_operation.size());
    for (const auto& [name, time] : step.by_operation) {
      EXPECT_NEAR(by_operation[name], time, 1e-9 * time) << name;
    }
    EXPECT_EQ(layers, gpt.layers.size());
    EXPECT_EQ(most, step.plan.fit.plan.needed()) << schedule;
  }
}

/// The file of a run has the predicted size, but for HDF5's own records.
TEST(Checkpoints, HaveTheSizeOfAFile) {
  for (const std::string dtype : {"fp32", "bf16"}) {
    for (const double sparsity : {0.0, 0.9}) {
      SCOPED_TRACE(fmt::format("{} {}", dtype, sparsity));
      Gpt gpt(sparsity);
      gpt.config.model.width = 256;
      gpt.config.train.dtype = dtype;
      gpt.layers = model::make_layers(gpt.config.model, gpt.problem);
      gpt.start = train::initial_masks(gpt.config, model::parameters_of(gpt.layers));
      const StepPrediction step = predict_step(gpt.run(), cluster(), 1);
      const auto ranks = planned_ranks(gpt.run(), cluster(), gpt.config, step);
      const auto found = predict_checkpoints(cluster(), gpt.config, step, ranks);
      ASSERT_TRUE(found);
      const testing::TempDir dir;
      parallel::run_ranks(1, [&](parallel::Communicator& comm) {
        Arena arena;
        Stream stream(arena, 1);
        train::Stage stage(gpt.config, gpt.problem, stream, kernels::by_name("cpu"),
                           {.micro_batch = 2, .masks = gpt.start.masks});
        stage.store().initialise(1);
        train::save(dir / "file.h5", stage.store(), {}, comm);
      });
      const auto size = static_cast<double>(std::filesystem::file_size(dir / "file.h5"));
      EXPECT_NEAR(found->bytes / size, 1, 0.02);
    }
  }
}

TEST(Checkpoints, CostACopyOrTheDisk) {
  Machine machine = cluster();
  Gpt gpt(0.9, 2, "1f1b");
  gpt.config.train.checkpoint_every = 10;
  const StepPrediction step = predict_step(gpt.run(), machine, 4);
  const auto predicted = [&] {
    const auto ranks = planned_ranks(gpt.run(), machine, gpt.config, step);
    return *predict_checkpoints(machine, gpt.config, step, ranks);
  };
  const CheckpointPrediction unknown = predicted();
  EXPECT_FALSE(unknown.write || unknown.start || unknown.per_step);
  machine.disk_write = 1e12;
  machine.disk_read = 2e12;
  const CheckpointPrediction fast = predicted();
  EXPECT_NEAR(*fast.write, fast.bytes / 1e12, 1e-15);
  EXPECT_NEAR(*fast.start, fast.bytes / 2e12, 1e-15);
  EXPECT_NEAR(*fast.per_step, fast.copy / 10, 1e-12) << "the disk writes beside training";
  machine.disk_write = fast.bytes / (40 * step.step);
  EXPECT_NEAR(*predicted().per_step, 3 * step.step, 1e-9) << "the next save waits for the disk";
  gpt.config.train.checkpoint_background = false;
  EXPECT_NEAR(*predicted().per_step, 4 * step.step, 1e-9);
  EXPECT_EQ(predicted().copy, 0);
  gpt.config.train.checkpoint_every = -1;
  const auto ranks = planned_ranks(gpt.run(), machine, gpt.config, step);
  EXPECT_FALSE(predict_checkpoints(machine, gpt.config, step, ranks));
}

TEST(PlannedRanks, OfASearchAreThoseOfItsChoices) {
  const Gpt gpt(0.9);
  const std::array<int, 1> ranks{4};
  for (const auto& [step, config, measured] :
       plan_layouts(gpt.run(), cluster(), ranks, SearchOptions{}).found) {
    size_t most = 0;
    for (const PlannedRank& rank : planned_ranks(gpt.run(), cluster(), config, step)) {
      most = std::max(most, rank.memory.needed());
    }
    EXPECT_EQ(most, step.plan.fit.plan.needed());
  }
}

TEST(StepSpans, OfAnAsynchronousScheduleAreItsSimulation) {
  const Gpt gpt(0, 2, "async");
  const StepPrediction step = predict_step(gpt.run(), cluster(), 2);
  EXPECT_GT(steps_in_timeline(step), 3);
  double end = 0;
  for (const StepSpan& span : spans_of(step)) {
    EXPECT_EQ(span.event.track, Track::compute);
    end = std::max(end, span.event.end);
  }
  EXPECT_EQ(end, length_of_spans(step));
}

TEST(PlannedRanks, ElementsAreThoseOfTheNetwork) {
  const Gpt dense;
  EXPECT_EQ(elements_of(dense.run()).kept, elements_of(dense.run()).all);
  const Gpt sparse(0.9);
  const Elements elements = elements_of(sparse.run());
  EXPECT_EQ(elements.all, elements_of(dense.run()).all);
  EXPECT_LT(elements.kept, elements.all / 2);
}

TEST(Plans, TheBestIsTheFastestThatFits) {
  Machine machine = cluster();
  const std::array<int, 2> ranks{2, 4};
  const Gpt gpt(0.9);
  const Plans plans = plan_layouts(gpt.run(), machine, ranks, SearchOptions{});
  const size_t best = best_of(plans.found, machine, {});
  for (const auto& [step, config, measured] : plans.found) {
    EXPECT_LE(plans.found[best].step.step, step.step);
  }
  EXPECT_FALSE(plans.refused.empty());  // 5 layers or more on 4 ranks, micro-batches over the share
  for (const ScalingPoint& point : scaling_of(plans, machine, {}, ranks)) {
    ASSERT_TRUE(point.layout);
    EXPECT_EQ(point.layout->step.ranks, point.ranks);
    for (const auto& [step, config, measured] : plans.found) {
      EXPECT_TRUE(step.ranks != point.ranks || point.layout->step.step <= step.step);
    }
  }
  machine.memory = 1;
  const size_t fastest = best_of(plans.found, machine, {});
  EXPECT_EQ(fastest, best);
  EXPECT_FALSE(fits(plans.found[fastest].step, machine, {}));
  EXPECT_THAT(scaling_of(plans, machine, {}, ranks)[0].refused, HasSubstr("a rank needs"));
}

TEST(Plans, ADenseRunScalesAsItself) {
  const std::array<int, 3> ranks{1, 2, 4};
  const Gpt gpt;
  const Machine machine = cluster();
  const Plans plans = plan_layouts(gpt.run(), machine, ranks, {});
  const auto own = scaling_of(plans, machine, {}, ranks);
  const auto dense = dense_scaling(gpt.run(), machine, ranks, {});
  const auto of_pruned = dense_scaling(Gpt(0.9).run(), machine, ranks, {});
  for (size_t i = 0; i < ranks.size(); ++i) {
    EXPECT_EQ(own[i].layout->step.step, dense[i].layout->step.step);
    EXPECT_EQ(own[i].layout->step.step, of_pruned[i].layout->step.step);
  }
  const std::array<int, 2> too_many{64, 128};
  const auto refused = dense_scaling(gpt.run(), machine, too_many, {});
  EXPECT_THAT(refused[1].refused, HasSubstr("128 ranks need as many devices"));
}

TEST(Plans, PartsOfGrownMasksHaveTheStepsOfRunsAtTheirDensity) {
  for (const int ranks : {1, 4}) {
    Gpt gpt(0.9);
    EXPECT_TRUE(later_parts(gpt.run(), cluster(),
                            plan_layouts(gpt.run(), cluster(), std::array{ranks}, {}).found.front())
                    .empty());
    gpt.config.train.steps = 100;
    gpt.config.pruning.dense_from_step = "50:0.5,0.8";
    const Plans plans = plan_layouts(gpt.run(), cluster(), std::array{ranks}, {});
    const auto parts = later_parts(gpt.run(), cluster(), plans.found.front());
    ASSERT_EQ(parts.size(), 2U);
    EXPECT_EQ(parts[0].after, 50);
    EXPECT_EQ(parts[0].sparsity, 0.5);
    EXPECT_EQ(parts[0].seconds, step_of(Gpt(0.5), ranks));
    EXPECT_EQ(parts[1].after, 80);
    EXPECT_EQ(parts[1].seconds, step_of(Gpt(0), ranks));
  }
}

/// The files of a run, as far as a comparison reads them.
struct RunFiles {
  RunFiles() {
    std::filesystem::create_directories(root());
    write("config.toml",
          "[model]\nlayers = 4\nheads = 2\nwidth = 64\ncontext = 32\n[data]\ntrain = [\"t\"]\n"
          "[train]\nglobal_batch = 16\n[sparse]\nstorage = \"dense\"\n");
    std::string lines;
    for (int step = 1; step <= 9; ++step) {
      lines +=
          json{{"step", step},         {"step_ms", step * 10.0}, {"compute_ms", step * 8.0},
               {"wait_ms", 0.0},       {"collective_ms", 1.0},   {"update_ms", step < 5 ? 9 : 2},
               {"loss", json(nullptr)}}
              .dump() +
          "\n";
    }
    write("metrics.jsonl", lines);
    write("summary.json", summary().dump());
  }
  static json summary() {
    const json rank{{"all", {{"bytes", 1}, {"peak", 5000}}}};
    const json larger{{"all", {{"bytes", 1}, {"peak", 7000}}}};
    return {{"ranks", 2},
            {"grid", {{"pipeline", 1}, {"data", 2}}},
            {"planned_peak", {{"micro_batch", 4}, {"recompute", "none"}}},
            {"backend", "avx2"},
            {"memory", {{"ranks", {rank, larger}}}},
            {"operation_times",
             {{"steps", 5},
              {"rows",
               {{{"operation", "gemm 32x64x64"}, {"ms_per_step", 3.0}},
                {{"operation", "gemm 32x64x256"}, {"ms_per_step", 4.0}},
                {{"operation", "new one"}, {"ms_per_step", 1.0}}}}}}};
  }
  std::filesystem::path root() const { return dir / "run"; }
  void write(const std::string& name, const std::string& text) const {
    std::ofstream(root() / name) << text;
  }
  MeasuredRun read() const { return read_measured_run(root(), {}); }

  testing::TempDir dir;
};

TEST(MeasuredRun, HasTheLayoutAndMediansOfTheSecondHalf) {
  const RunFiles files;
  const MeasuredRun run = files.read();
  EXPECT_EQ(run.name, "run");
  EXPECT_EQ(run.ranks, 2);
  EXPECT_EQ(run.config.train.micro_batch, 4);
  EXPECT_EQ(run.config.run.backend, "cpu");
  EXPECT_EQ(run.steps, 5U);
  EXPECT_DOUBLE_EQ(run.step, 0.07);
  EXPECT_DOUBLE_EQ(*run.compute, 0.056);
  EXPECT_DOUBLE_EQ(*run.update, 0.002);
  EXPECT_EQ(*run.memory, 7000);
  EXPECT_DOUBLE_EQ(run.operations.at("gemm"), 0.007);
  EXPECT_DOUBLE_EQ(run.operations.at("new one"), 0.001);

  const Gpt gpt;
  const StepPrediction step = predict_step(gpt.run(), cluster(), run.ranks);
  const PlannedRank first = planned_ranks(gpt.run(), cluster(), gpt.config, step).front();
  const std::vector<Compared> rows = compare(step, first, {}, run);
  std::map<std::string, Compared> named;
  std::map<std::string, Compared> operations;
  for (const Compared& row : rows) {
    (row.operation ? operations : named)[row.name] = row;
  }
  EXPECT_EQ(rows[0].name, "step");
  EXPECT_EQ(named["step"].predicted, step.step);
  EXPECT_EQ(named["memory peak"].predicted,
            static_cast<double>(train::sum_of(step.plan.fit.plan.peak)));
  EXPECT_EQ(*operations["gemm"].measured, run.operations.at("gemm"));
  EXPECT_EQ(operations["new one"].predicted, 0);
  EXPECT_NEAR(*operations["other"].measured, 0.056 + 0.002 - 0.008, 1e-12);
  for (const auto& [name, seconds] : step.by_operation) {
    EXPECT_EQ(operations[name].predicted, seconds) << name;
  }
}

TEST(MeasuredRun, OnADeviceHasNoParts) {
  const RunFiles files;
  json summary = RunFiles::summary();
  summary["backend"] = "cuda";
  files.write("summary.json", summary.dump());
  const MeasuredRun run = files.read();
  EXPECT_EQ(run.config.run.backend, "cuda");
  EXPECT_FALSE(run.compute || run.waiting || run.reduction || run.update);
}

TEST(MeasuredRun, StagesAreThoseOfTheRun) {
  const RunFiles files;
  json summary = RunFiles::summary();
  summary["grid"]["pipeline"] = 2;
  summary["pipeline"] = {{"ends", {2, 6}}};
  files.write("summary.json", summary.dump());
  const io::Config config = files.read().config;
  EXPECT_EQ(config.parallel.pipeline, 2);
  EXPECT_EQ(config.parallel.partition, (std::vector<int64_t>{2, 4}));
  EXPECT_EQ(config.parallel.schedule, "1f1b") << "of \"auto\" in files of earlier versions";
  for (const char* damaged : {"{}", "null", "{\"ends\": [4, 2]}", "{\"ends\": [2, \"6\"]}",
                              "{\"ends\": []}", "{\"ends\": [0, 6]}"}) {
    summary["pipeline"] = json::parse(damaged);
    files.write("summary.json", summary.dump());
    EXPECT_THAT(failure_of([&] { files.read(); }),
                HasSubstr("no ascending numbers \"pipeline.ends\""))
        << damaged;
  }
}

/// Lines of steps `first` to `last` that take `ms`, of a launch over so many ranks.
std::string lines_of_launch(int first, int last, double ms, int ranks) {
  std::string text;
  for (int step = first; step <= last; ++step) {
    json line{{"step", step}, {"step_ms", ms}, {"wait_ms", ranks}, {"sparsity", 0.9}};
    if (step == first) {
      line["layout"] = {{"ranks", ranks}, {"stages", 1}};
    }
    text += line.dump() + "\n";
  }
  return text;
}

TEST(MeasuredRun, MediansAreOfTheLayoutOfTheSummary) {
  const RunFiles files;
  // Most steps are of another layout.
  files.write("metrics.jsonl", lines_of_launch(1, 20, 50, 4) + lines_of_launch(21, 24, 7, 2));
  const MeasuredRun run = files.read();
  EXPECT_EQ(run.steps, 2U);
  EXPECT_DOUBLE_EQ(run.step, 0.007);
  EXPECT_DOUBLE_EQ(*run.waiting, 0.002);
  // Equal launches are one.
  files.write("metrics.jsonl", lines_of_launch(1, 10, 5, 2) + lines_of_launch(11, 12, 7, 2));
  EXPECT_EQ(files.read().steps, 6U);
  // Steps after the end that summary.json describes.
  json summary = RunFiles::summary();
  summary["steps"] = 10;
  files.write("summary.json", summary.dump());
  files.write("metrics.jsonl", lines_of_launch(1, 10, 7, 2) + lines_of_launch(11, 40, 50, 4));
  EXPECT_DOUBLE_EQ(files.read().step, 0.007);
  // It describes none of the steps.
  files.write("metrics.jsonl", lines_of_launch(1, 5, 7, 2) + lines_of_launch(6, 10, 50, 4));
  EXPECT_THAT(failure_of([&] { files.read(); }), HasSubstr("is of an earlier launch, of 2 ranks"));
}

TEST(MeasuredRun, NamesWhatIsMissing) {
  const auto message_without = [](const std::string& file) {
    const RunFiles files;
    std::filesystem::remove(files.root() / file);
    return failure_of([&] { files.read(); });
  };
  EXPECT_THAT(message_without("config.toml"), HasSubstr("without config.toml: give a config file"));
  EXPECT_THAT(message_without("summary.json"),
              HasSubstr("summary.json is missing: the run has not ended"));
  EXPECT_THAT(message_without("metrics.jsonl"), HasSubstr("metrics.jsonl"));
  const auto message_with = [](const std::string& file, const std::string& text) {
    const RunFiles files;
    files.write(file, text);
    return failure_of([&] { files.read(); });
  };
  EXPECT_THAT(message_with("summary.json", "[1]"), HasSubstr("is no JSON object"));
  EXPECT_THAT(message_with("summary.json", "{\"grid\": 3}"), HasSubstr("has no number \"ranks\""));
  EXPECT_THAT(message_with("metrics.jsonl", ""), HasSubstr("has no step_ms"));
  for (const char* value : {"null", "3", "\"x\"", "[]", "{\"ranks\": [3, {\"all\": 2}]}",
                            "{\"rows\": [1, {\"operation\": 2}]}"}) {
    const RunFiles files;
    json summary = RunFiles::summary();
    for (const char* key : {"memory", "operation_times", "manifest", "pipeline", "backend"}) {
      summary[key] = json::parse(value);
    }
    files.write("summary.json", summary.dump());
    EXPECT_FALSE(files.read().memory) << value;
  }
}

TEST(Trial, MeasuresLayoutsOnAllRanks) {
  const testing::TempDir dir;
  testing::write_text(dir / "text.txt", 4000);
  Gpt gpt(0.9);
  gpt.config.data.train = {(dir / "text.txt").string()};
  gpt.config.run.out = (dir / "run").string();
  std::vector<io::Config> layouts(3, gpt.config);
  layouts[1].parallel.pipeline = 2;
  layouts[2].pruning.method = "magnitude";  // once all steps of a gradual pruning are over
  layouts[2].pruning.at_step = -1;
  layouts[2].pruning.from_step = 100;
  layouts[2].pruning.to_step = 200;
  layouts[2].parallel.zero = 1;
  layouts.push_back(gpt.config);
  layouts[3].parallel.pipeline = 3;  // not of two ranks
  std::array<std::vector<Tried>, 2> found;
  std::vector<std::string> progress;
  parallel::run_ranks(2, [&](parallel::Communicator& comm) {
    found.at(static_cast<size_t>(comm.rank())) =
        try_layouts(comm, layouts,
                    {.rounds = 2, .seconds = 0, .steps = 4, .on_progress = [&](const auto& text) {
                       if (comm.rank() == 0) {
                         progress.push_back(text);
                       }
                     }});
  });
  ASSERT_EQ(found[0].size(), 4U);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(found[0][i].seconds, found[1][i].seconds);
    EXPECT_EQ(std::isfinite(found[0][i].seconds), i < 3) << i;
    EXPECT_GT(found[0][i].seconds, 0) << i;
    EXPECT_EQ(found[0][i].failure.empty(), i < 3) << i;
  }
  EXPECT_THAT(found[0][3].failure, HasSubstr("does not divide"));
  EXPECT_EQ(progress.size(), 7U);
  EXPECT_EQ(progress.back(), "round 2 of 2, layout 3 of 4");
  EXPECT_FALSE(std::filesystem::exists(dir / "run"));
}

}  // namespace
}  // namespace espalier::planner::plans_test
