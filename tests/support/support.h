#pragma once
// Helpers for tests of whole runs: a temporary folder, a small text, a tiny configuration, and a
// run whose losses and final parameters can be compared.
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "io/run/metrics.h"
#include "parallel/transport/thread_communicator.h"
#include "src/core/rng.h"
#include "src/train/run/trainer.h"

namespace espalier::testing {

inline nlohmann::json read_json(const std::filesystem::path& path) {
  return nlohmann::json::parse(std::ifstream(path));
}

/// A temporary folder, removed with its contents at the end of the test.
class TempDir {
 public:
  TempDir() {
    std::string pattern = (std::filesystem::temp_directory_path() / "espalier-XXXXXX").string();
    path_ = mkdtemp(pattern.data());
  }
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

/// Text with learnable structure: words of a fixed list in Philox order.
inline void write_text(const std::filesystem::path& path, size_t words, uint64_t seed = 1) {
  const std::vector<std::string> list{"pear ", "apple ",  "quince ", "plum ",
                                      "wall ", "branch ", "pruned ", "by hand.\n"};
  std::ofstream out(path);
  for (size_t i = 0; i < words; ++i) {
    out << list[philox(seed, 0, i)[0] % list.size()];
  }
}

/// A GPT that trains in milliseconds: 2 layers, 2 heads, width 32, context 16, batch 12, bytes.
inline io::Config tiny_config(const TempDir& dir) {
  const auto text = dir / "text.txt";
  if (!std::filesystem::exists(text)) {
    write_text(text, 4000);
  }
  io::Config config;
  config.model.layers = 2;
  config.model.heads = 2;
  config.model.width = 32;
  config.model.context = 16;
  config.data.kind = "chars";
  config.data.train = {text.string()};
  config.train.steps = 12;
  config.train.global_batch = 12;
  config.train.eval_every = 0;
  config.train.eval_batches = 2;
  config.optimizer.warmup_steps = 4;
  config.parallel.bucket_mb = 0.01;  // several buckets
  config.parallel.check_every = 3;
  config.parallel.timeout_s = 60;
  config.run.threads = 1;
  config.run.out = (dir / "run").string();
  return config;
}

/// Results of a run that can be compared bit for bit.
struct Outcome {
  std::vector<double> losses;
  double val_loss = 0;
  std::map<std::string, std::vector<float>> values;  ///< packed master copies
  std::map<std::string, std::vector<float>> moments;
  std::map<std::string, std::vector<int32_t>> positions;
  bool operator==(const Outcome&) const = default;
};

/// Collective when the store is sharded.
inline Outcome outcome_of(train::Trainer& trainer) {
  Outcome outcome;
  sparse::Store& store = trainer.stage().store();
  for (const sparse::Parameter& parameter : store.parameters()) {
    const std::string& name = parameter.spec.name;
    outcome.values[name] = store.master(parameter);
    for (int which = 0; which < store.options().moments; ++which) {
      const std::vector<float> moment = store.moment(parameter, which);
      auto& all = outcome.moments[name];
      all.insert(all.end(), moment.begin(), moment.end());
    }
    outcome.positions[name] = parameter.index.positions();
  }
  return outcome;
}

/// Kernels of whole runs, instead of their config's backend; null: the config's. Programs in
/// tests/device set it.
inline const kernels::Kernels*& kernels_of_runs() {
  static const kernels::Kernels* table = nullptr;
  return table;
}

/// Called while a rank waits for others (ThreadOptions). Tests in tests/device set it.
inline std::function<void()>& while_ranks_wait() {
  static std::function<void()> drive;
  return drive;
}

/// Copies messages between ranks (ThreadOptions). Tests in tests/device set it.
inline std::function<void(void*, const void*, size_t)>& copy_of_ranks() {
  static std::function<void(void*, const void*, size_t)> copy;
  return copy;
}

/// Trains on `ranks` threads; returns the outcome of rank 0. The trainer itself compares the other
/// ranks.
inline Outcome run(const io::Config& config, int ranks = 1, train::TrainerOptions options = {}) {
  if (options.resume.empty()) {
    options.resume = "none";
  }
  Outcome outcome;
  const auto body = [&](parallel::Communicator& comm) {
    train::TrainerOptions mine = options;
    mine.kernels = mine.kernels != nullptr ? mine.kernels : kernels_of_runs();
    std::vector<double> losses;
    mine.on_step = [&](const train::StepReport& report) {
      losses.push_back(report.loss);
      if (comm.rank() == 0 && report.val_loss) {
        outcome.val_loss = *report.val_loss;
      }
    };
    train::Trainer trainer(config, comm, mine);
    trainer.run();
    Outcome last = outcome_of(trainer);
    if (comm.rank() == 0) {
      last.val_loss = outcome.val_loss;
      last.losses = losses;
      outcome = std::move(last);
    }
  };
  parallel::run_ranks(ranks, body, {.while_waiting = while_ranks_wait(), .copy = copy_of_ranks()});
  return outcome;
}

/// Stops after `stop` steps and resumes. The losses are those of all steps.
inline Outcome run_with_a_break(const io::Config& config, int ranks, int64_t stop) {
  const Outcome begun = run(config, ranks, {.stop_after = stop});
  Outcome all = run(config, ranks, {.resume = "auto"});
  all.losses.insert(all.losses.begin(), begun.losses.begin(), begun.losses.end());
  return all;
}

}  // namespace espalier::testing
