#include "tests/support/support.h"

#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <mutex>

#include "io/files/folders.h"
#include "src/core/rng.h"

namespace espalier::testing {

nlohmann::json read_json(const std::filesystem::path& path) {
  return nlohmann::json::parse(std::ifstream(path));
}

std::vector<nlohmann::json> metrics_without_times(const io::Config& config) {
  std::vector<nlohmann::json> lines;
  std::ifstream file(std::filesystem::path(config.run.out) / "metrics.jsonl");
  for (std::string text; std::getline(file, text);) {
    nlohmann::json line = nlohmann::json::parse(text);
    for (const char* key : {"step_ms", "tokens_per_s", "images_per_s", "compute_ms", "wait_ms",
                            "collective_ms", "update_ms", "layout"}) {
      line.erase(key);
    }
    lines.push_back(std::move(line));
  }
  return lines;
}

TempDir::TempDir() {
  std::string pattern = (std::filesystem::temp_directory_path() / "espalier-XXXXXX").string();
  path_ = mkdtemp(pattern.data());
}

TempDir::~TempDir() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::vector<std::string> names_in(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  for (const std::filesystem::path& entry : io::entries_of(folder)) {
    names.push_back(entry.filename().string());
  }
  return names;
}

void write_text(const std::filesystem::path& path, size_t words, uint64_t seed) {
  const std::vector<std::string> list{"pear ", "apple ",  "quince ", "plum ",
                                      "wall ", "branch ", "pruned ", "by hand.\n"};
  std::ofstream out(path);
  for (size_t i = 0; i < words; ++i) {
    out << list[philox(seed, 0, i)[0] % list.size()];
  }
}

io::Config tiny_config(const TempDir& dir) {
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
  config.optimizer.lr = 1e-3;
  config.optimizer.warmup_steps = 4;
  config.sparse.storage.fallback = "dense";  // "auto" is a choice by time
  config.parallel.bucket_mb = 0.01;          // several buckets
  config.parallel.check_every = 3;
  config.parallel.timeout_s = 60;
  config.run.threads = 1;
  config.run.out = (dir / "run").string();
  return config;
}

double largest_difference(const Outcome& a, const Outcome& b) {
  double largest = 0;
  for (const auto& [name, values] : a.values) {
    const auto& others = b.values.at(name);
    EXPECT_EQ(values.size(), others.size()) << name;
    for (size_t i = 0; i < std::min(values.size(), others.size()); ++i) {
      largest = std::max(largest, std::abs(static_cast<double>(values[i] - others[i])));
    }
  }
  return largest;
}

Outcome outcome_of(train::Trainer& trainer) {
  Outcome outcome;
  sparse::Store& store = trainer.stage().store();
  for (const sparse::Parameter& parameter : store.parameters()) {
    const std::string& name = parameter.spec.name;
    outcome.weights[name] = store.values(parameter);
    if (parameter.spec.borrowed) {
      continue;
    }
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

const kernels::Kernels*& kernels_of_runs() {
  static const kernels::Kernels* table = nullptr;
  return table;
}

std::function<void()>& while_ranks_wait() {
  static std::function<void()> drive;
  return drive;
}

std::function<void(void*, const void*, size_t)>& copy_of_ranks() {
  static std::function<void(void*, const void*, size_t)> copy;
  return copy;
}

Outcome run(const io::Config& config, int ranks, train::TrainerOptions options) {
  if (options.resume.empty()) {
    options.resume = "none";
  }
  Outcome outcome;
  std::mutex notes;  // every rank makes notes, each in its thread
  const auto body = [&](parallel::Communicator& comm) {
    train::TrainerOptions mine = options;
    if (options.on_note) {
      mine.on_note = [&](const std::string& note) {
        const std::scoped_lock lock(notes);
        options.on_note(note);
      };
    }
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

Outcome run(const io::Config& config, int ranks, std::string& notes,
            train::TrainerOptions options) {
  options.on_note = [&](const std::string& note) { notes += note + '\n'; };
  return run(config, ranks, std::move(options));
}

void run_with(const io::Config& config, int ranks, const AfterStep& after_step,
              train::TrainerOptions options) {
  parallel::run_ranks(ranks, [&](parallel::Communicator& comm) {
    train::Trainer* running = nullptr;
    train::TrainerOptions mine = options;
    mine.on_step = [&](const train::StepReport& report) {
      after_step(*running, comm, report.step);
    };
    train::Trainer trainer(config, comm, std::move(mine));
    running = &trainer;
    trainer.run();
  });
}

void expect_within_plan(const io::Config& config, int ranks, double most,
                        const parallel::ThreadOptions& options) {
  const auto train = [&](parallel::Communicator& comm) {
    train::Trainer trainer(config, comm, {.resume = "none"});
    trainer.run();
    const auto planned = static_cast<double>(train::sum_of(trainer.fit().plan.peak));
    const auto held = static_cast<double>(trainer.arena().total().peak);
    // A caller's trace is of its own thread.
    SCOPED_TRACE(fmt::format("{} {}, rank {}", config.parallel.codec.fallback,
                             config.parallel.reduction, comm.rank()));
    EXPECT_GE(planned, held);
    EXPECT_LE(planned, most * held);
  };
  parallel::run_ranks(ranks, train, options);
}

train::Fit fit_of(const io::Config& config, int ranks, const std::string& resume) {
  train::Fit fit;
  parallel::run_ranks(ranks, [&](parallel::Communicator& comm) {
    const train::Trainer trainer(config, comm, {.resume = resume});
    if (comm.rank() == 0) {
      fit = trainer.fit();
    }
  });
  return fit;
}

Outcome run_with_breaks(const std::vector<int64_t>& stops,
                        const std::function<Outcome(const train::TrainerOptions& options)>& train) {
  std::vector<double> losses;
  std::string resume = "none";
  for (const int64_t stop : stops) {
    const Outcome part = train({.resume = resume, .stop_after = stop});
    losses.insert(losses.end(), part.losses.begin(), part.losses.end());
    resume = "auto";
  }
  Outcome last = train({.resume = resume});
  last.losses.insert(last.losses.begin(), losses.begin(), losses.end());
  return last;
}

Outcome run_with_breaks(const io::Config& config, int ranks, const std::vector<int64_t>& stops) {
  return run_with_breaks(
      stops, [&](const train::TrainerOptions& options) { return run(config, ranks, options); });
}

}  // namespace espalier::testing
