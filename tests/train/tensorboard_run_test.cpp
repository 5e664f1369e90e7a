// The event files of whole runs (run.tensorboard): numbers of metrics.jsonl, histograms of weights,
// on any ranks, through resumes and failures.
#include <cerrno>
#include <numeric>
#include <set>

#include "io/checkpoint/checkpoint.h"
#include "io/files/file_system.h"
#include "tests/support/event_files.h"
#include "tests/support/failure.h"
#include "tests/support/settings.h"
#include "tests/support/support.h"

namespace espalier::testing::tensorboard_run_test {
namespace {

namespace fs = std::filesystem;

/// Evaluations at steps 5, 10 and 12; pruned after step 4.
io::Config config_for(const TempDir& dir) {
  io::Config config = tiny_config(dir);
  prune_sparse(config);
  apply_settings(config, "train.eval_every=5 run.tensorboard=true");
  return config;
}

fs::path events_of(const io::Config& config) { return fs::path(config.run.out) / "tensorboard"; }

/// What TensorBoard shows, without what depends on time, ranks or memory.
std::map<int64_t, Event> comparable_events(const io::Config& config) {
  std::map<int64_t, Event> events = shown_events(events_of(config));
  for (auto& [step, event] : events) {
    std::erase_if(event.scalars, [](const auto& scalar) {
      return scalar.first.starts_with("speed/") || scalar.first.starts_with("communication/") ||
             scalar.first.starts_with("memory/");
    });
  }
  return events;
}

void expect_equal(const std::map<int64_t, Event>& got, const std::map<int64_t, Event>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (const auto& [step, event] : want) {
    ASSERT_TRUE(got.contains(step)) << step;
    EXPECT_EQ(got.at(step).scalars, event.scalars) << step;
    EXPECT_TRUE(got.at(step).histograms == event.histograms) << step;
  }
}

struct TensorBoardRun : RunTest {
  TensorBoardRun() { config = config_for(dir); }
};

TEST_F(TensorBoardRun, HasTheNumbersOfMetrics) {
  const std::map<std::string, std::string> tags{
      {"loss", "train/loss"},
      {"lr", "train/learning_rate"},
      {"grad_norm", "train/gradient_norm"},
      {"loss_scale", "train/loss_scale"},
      {"val_loss", "validation/loss"},
      {"tokens_per_s", "speed/tokens_per_s"},
      {"step_ms", "speed/step_ms"},
      {"compute_ms", "speed/compute_ms"},
      {"wait_ms", "speed/wait_ms"},
      {"collective_ms", "speed/collective_ms"},
      {"update_ms", "speed/update_ms"},
      {"comm_bytes_sent", "communication/bytes_sent"},
      {"allreduce_bytes", "communication/allreduce_bytes"},
      {"p2p_bytes", "communication/p2p_bytes"},
      {"sparsity", "masks/sparsity"}};
  apply_settings(config, "train.dtype=fp16 train.loss_scale=1024");
  run(config, 2);
  EXPECT_EQ(names_in(events_of(config)).size(), 1U) << "one rank writes";
  const auto events = shown_events(events_of(config));
  const auto lines = io::read_metrics(fs::path(config.run.out) / "metrics.jsonl");
  ASSERT_EQ(events.size(), 12U);
  ASSERT_EQ(lines.size(), 12U);
  std::set<std::string> seen;
  for (const nlohmann::json& line : lines) {
    const Event& event = events.at(line["step"].get<int64_t>());
    size_t others = 0;
    for (const auto& [tag, value] : event.scalars) {
      others += tag.starts_with("density/") || tag.starts_with("memory/") ? 1 : 0;
    }
    EXPECT_EQ(event.scalars.size() - others, line.size() - (line.contains("layout") ? 2 : 1));
    EXPECT_EQ(others > 0, line.contains("val_loss"));
    EXPECT_EQ(event.histograms.empty(), !line.contains("val_loss"));
    for (const auto& [key, value] : line.items()) {
      if (key != "step" && key != "layout") {
        seen.insert(key);
        EXPECT_EQ(event.scalars.at(tags.at(key)), value.get<float>()) << key;
      }
    }
  }
  EXPECT_EQ(seen.size(), tags.size());
}

TEST_F(TensorBoardRun, HasHistogramsOfKeptWeightsAndDensities) {
  for (const char* dtype : {"fp32", "bf16"}) {
    config = config_for(dir);
    config.train.dtype = dtype;
    const Outcome outcome = run(config, 2);
    const auto events = shown_events(events_of(config));
    const Event& last = events.at(12);
    EXPECT_GT(last.scalars.at("memory/peak_bytes"), 100'000);
    ASSERT_EQ(last.histograms.size(), outcome.weights.size());
    size_t pruned = 0;
    for (const auto& [name, weights] : outcome.weights) {
      SCOPED_TRACE(name);
      const EventHistogram& histogram = last.histograms.at("weights/" + name);
      EXPECT_EQ(histogram.num, static_cast<double>(weights.size()));
      EXPECT_EQ(histogram.min, *std::ranges::min_element(weights));
      EXPECT_EQ(histogram.max, *std::ranges::max_element(weights));
      EXPECT_EQ(histogram.sum, std::accumulate(weights.begin(), weights.end(), 0.0));
      EXPECT_EQ(std::accumulate(histogram.counts.begin(), histogram.counts.end(), 0.0),
                histogram.num);
      if (const auto density = last.scalars.find("density/" + name);
          density != last.scalars.end()) {
        ++pruned;
        const double all = events.at(5).histograms.at("weights/" + name).num;
        EXPECT_LT(density->second, 0.6);
        EXPECT_EQ(histogram.num, all) << "pruned before step 5";
        EXPECT_NEAR(1 / density->second, std::round(1 / density->second * all) / all, 1e-3);
      }
    }
    EXPECT_EQ(pruned, 8U) << "four matrices of each of two blocks";
  }
}

/// Pipelines and ZeRO change no bit, so that the events are equal.
TEST_F(TensorBoardRun, IsTheSameWithStagesAndShards) {
  io::Config whole = config_for(dir);
  whole.train.micro_batch = 3;
  io::Config stages = whole;
  in_two_stages(stages, "1f1b");
  io::Config sharded = whole;
  sharded.parallel.zero = 1;
  const auto events_on = [](const io::Config& made, int ranks) {
    run(made, ranks);
    EXPECT_EQ(names_in(events_of(made)).size(), 1U);
    return comparable_events(made);
  };
  expect_equal(events_on(stages, 2), events_on(whole, 1));
  const auto replicas = events_on(whole, 2);
  expect_equal(events_on(stages, 4), replicas);
  expect_equal(events_on(sharded, 2), replicas);
}

TEST_F(TensorBoardRun, AParameterOfTwoStagesIsShownOnce) {
  apply_settings(config, "model.tie_embeddings=true train.micro_batch=3");
  const auto counts_on = [&](int ranks) {
    run(config, ranks);
    const auto events = shown_events(events_of(config));
    std::map<std::string, double> counts;
    for (const auto& [tag, histogram] : events.at(12).histograms) {
      counts[tag] = histogram.num;
    }
    return counts;
  };
  const auto one = counts_on(1);
  in_two_stages(config, "1f1b");
  EXPECT_EQ(counts_on(2), one);
}

TEST_F(TensorBoardRun, AResumedRunHasTheWholeSequence) {
  apply_settings(config, "train.checkpoint_every=2 train.keep_checkpoints=9");
  const Outcome whole = run(config, 2);
  const auto want = comparable_events(config);
  const auto metrics = metrics_without_times(config);
  EXPECT_EQ(run_with_breaks(config, 2, {3, 7}), whole);
  EXPECT_EQ(names_in(events_of(config)).size(), 3U) << "one of each attempt";
  expect_equal(comparable_events(config), want);
  // Steps after the checkpoint that is resumed are gone until they are repeated.
  const auto resume = [&](int64_t from, int64_t stop) {
    const fs::path file = fs::path(config.run.out) / "checkpoints" / io::checkpoint_name(from);
    run(config, 2, {.resume = file.string(), .stop_after = stop});
  };
  resume(4, 6);
  auto part = want;
  part.erase(part.upper_bound(6), part.end());
  expect_equal(comparable_events(config), part);
  resume(6, 0);
  expect_equal(comparable_events(config), want);
  EXPECT_EQ(metrics_without_times(config), metrics);
  run(config, 2);
  EXPECT_EQ(names_in(events_of(config)).size(), 1U) << "a run that starts over removes them";
  expect_equal(comparable_events(config), want);
}

TEST_F(TensorBoardRun, ChangesNoBitAndIsOffByDefault) {
  EXPECT_FALSE(io::Config().run.tensorboard);
  const Outcome with = run(config, 2);
  const auto metrics = metrics_without_times(config);
  fs::remove_all(config.run.out);
  config.run.tensorboard = false;
  EXPECT_EQ(run(config, 2), with);
  EXPECT_EQ(metrics_without_times(config), metrics);
  EXPECT_FALSE(fs::exists(events_of(config)));
}

/// Writes to event files fail from one on.
class FullDisk : public io::FileSystem {
 public:
  explicit FullDisk(int64_t most) : left_(most) {}

  int open(const fs::path& path, int flags) override {
    const int file = FileSystem::open(path, flags);
    if (path.filename().string().starts_with("events.")) {
      events_ = file;
    }
    return file;
  }
  ssize_t write(int file, const void* data, size_t bytes, uint64_t offset) override {
    if (file == events_ && left_-- <= 0) {
      errno = ENOSPC;
      return -1;
    }
    return FileSystem::write(file, data, bytes, offset);
  }

 private:
  int events_ = -1;
  int64_t left_;
};

TEST_F(TensorBoardRun, AFullDiskEndsTheRunAndAResumeCompletesIt) {
  config.train.checkpoint_every = 2;
  run(config);
  const auto want = comparable_events(config);
  for (const int64_t most : {0, 1, 4, 6, 7}) {
    FullDisk disk(most);
    const io::FileSystemScope scope(disk);
    EXPECT_THAT(
        failure_of([&] { run(config); }),
        AllOf(HasSubstr("tensorboard/events.out.tfevents."),
              HasSubstr("cannot be written: No space left on device"), HasSubstr("--resume auto")))
        << most;
  }
  run(config, 1, {.resume = "auto"});
  expect_equal(comparable_events(config), want);
}

TEST_F(TensorBoardRun, ItsFilesAreNoInputs) {
  run(config);
  config.data.train = {event_files_in(events_of(config)).at(0).string()};
  EXPECT_THAT(failure_of([&] { run(config); }), HasSubstr("is a file of the run directory"));
}

}  // namespace
}  // namespace espalier::testing::tensorboard_run_test
