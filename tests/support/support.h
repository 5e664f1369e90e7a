#pragma once
// Helpers for tests of whole runs: a temporary folder, a small text, a tiny configuration, and a
// run whose losses and final parameters can be compared.
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "io/run/metrics.h"
#include "parallel/transport/thread_communicator.h"
#include "src/train/run/trainer.h"
#include "tests/support/matchers.h"

namespace espalier::testing {

nlohmann::json read_json(const std::filesystem::path& path);
/// Values of metrics.jsonl of a run, step by step in order, without times.
std::vector<nlohmann::json> metrics_without_times(const io::Config& config);

/// A temporary folder, removed with its contents at the end of the test.
class TempDir {
 public:
  TempDir();
  ~TempDir();
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }
  operator const std::filesystem::path&() const { return path_; }  // NOLINT: it is one

 private:
  std::filesystem::path path_;
};

/// Names of a folder's entries, in order.
std::vector<std::string> names_in(const std::filesystem::path& folder);

/// Text with learnable structure: words of a fixed list in Philox order.
void write_text(const std::filesystem::path& path, size_t words, uint64_t seed = 1);

/// A GPT that trains in milliseconds: 2 layers, 2 heads, width 32, context 16, batch 12, bytes.
io::Config tiny_config(const TempDir& dir);

/// A test of runs in its own folder.
class RunTest : public ::testing::Test {
 protected:
  TempDir dir;
  io::Config config = tiny_config(dir);
};
template <class Value>
class RunTestWithParam : public RunTest, public ::testing::WithParamInterface<Value> {};

/// Results of a run that can be compared bit for bit.
struct Outcome {
  std::vector<double> losses;
  double val_loss = 0;
  std::map<std::string, std::vector<float>> weights;  ///< packed values that kernels read
  // Without borrowed parameters:
  std::map<std::string, std::vector<float>> values;  ///< packed master copies
  std::map<std::string, std::vector<float>> moments;
  std::map<std::string, std::vector<int32_t>> positions;
  bool operator==(const Outcome&) const = default;
};

/// Of two values at the same place.
double largest_difference(const Outcome& a, const Outcome& b);

/// Collective when the store is sharded.
Outcome outcome_of(train::Trainer& trainer);

/// Kernels of whole runs, instead of their config's backend; null: the config's. Programs in
/// tests/device set it.
const kernels::Kernels*& kernels_of_runs();

/// Called while a rank waits for others (ThreadOptions). Tests in tests/device set it.
std::function<void()>& while_ranks_wait();

/// Copies messages between ranks (ThreadOptions). Tests in tests/device set it.
std::function<void(void*, const void*, size_t)>& copy_of_ranks();

/// Trains on `ranks` threads; returns the outcome of rank 0. The trainer itself compares the other
/// ranks.
Outcome run(const io::Config& config, int ranks = 1, train::TrainerOptions options = {});
/// The same; adds the notes of all ranks, a line each.
Outcome run(const io::Config& config, int ranks, std::string& notes,
            train::TrainerOptions options = {});

/// Trains without an outcome; `after_step` is called on each rank. The default options replace an
/// earlier run.
using AfterStep = std::function<void(train::Trainer&, parallel::Communicator&, int64_t step)>;
void run_with(const io::Config& config, int ranks, const AfterStep& after_step,
              train::TrainerOptions options = {.resume = "none"});

/// Trains; checks that each rank holds no more than was planned, and at least 1 / `most` of it.
void expect_within_plan(const io::Config& config, int ranks, double most = HUGE_VAL,
                        const parallel::ThreadOptions& options = {});

/// The memory that rank 0 plans, without a step.
train::Fit fit_of(const io::Config& config, int ranks = 1, const std::string& resume = "none");

/// Stops after each of these steps and resumes. The losses are those of all steps. `train`: a run.
Outcome run_with_breaks(const std::vector<int64_t>& stops,
                        const std::function<Outcome(const train::TrainerOptions& options)>& train);
Outcome run_with_breaks(const io::Config& config, int ranks, const std::vector<int64_t>& stops);

}  // namespace espalier::testing
