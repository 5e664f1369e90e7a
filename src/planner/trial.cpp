#include "src/planner/trial.h"

#include <stdlib.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <limits>
#include <optional>

#include "parallel/transport/collectives.h"
#include "pruning/plan.h"
#include "src/core/error.h"
#include "src/train/exchange/agreement.h"
#include "src/train/run/trainer.h"

namespace espalier::planner {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kWarmUp = 3;  ///< steps of a training that are not counted

/// A directory for runs, until the end of this object.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (fs::temp_directory_path() / "espalier-plan-XXXXXX").string();
    check(::mkdtemp(name.data()) != nullptr, "{} cannot be made ({}); set TMPDIR to another folder",
          name, std::strerror(errno));
    path_ = name;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

void train_layout(parallel::Communicator& comm, const io::Config& config,
                  const TrialOptions& options, std::vector<double>& steps) {
  int64_t done = 0;
  double seconds = 0;
  train::Trainer trainer(config, comm,
                         {.resume = "none",
                          .stop_requested =
                              [&] {
                                return comm.rank() == 0 && done >= kWarmUp + options.steps &&
                                       seconds >= options.seconds;
                              },
                          .on_step =
                              [&](const train::StepReport& report) {
                                seconds += report.seconds;
                                if (++done > kWarmUp) {
                                  steps.push_back(report.seconds);
                                }
                              }});
  trainer.run();
}

}  // namespace

io::Config trial_of(io::Config config, int64_t steps) {
  config.run.trace = false;
  config.run.tensorboard = false;
  config.train.steps = steps;
  config.train.eval_every = 0;
  config.train.eval_batches = 1;
  config.train.checkpoint_every = -1;
  config.pruning.dense_from_step.clear();
  if (config.pruning.prunes()) {
    config.pruning.at_step = 0;
    config.pruning.from_step = config.pruning.to_step = -1;
    if (const sparse::IndexShape shape = pruning::shape_of(config.pruning);
        config.pruning.method != "file") {
      config.pruning.method = shape.n > 0        ? "random-nm"
                              : shape.height > 0 ? "random-block"
                                                 : "random";
      config.pruning.scope = "layer";
    }
  }
  return config;
}

std::vector<Tried> try_layouts(parallel::Communicator& comm, std::span<const io::Config> layouts,
                               const TrialOptions& options) {
  std::optional<TemporaryFolder> mine;  // rank 0 writes
  if (comm.rank() == 0) {
    mine.emplace();
  }
  const fs::path folder = train::broadcast_text(comm, mine ? mine->path().string() : "");
  std::vector<std::vector<double>> steps(layouts.size());
  std::vector<Tried> found(layouts.size());
  for (int round = 0; round < options.rounds; ++round) {
    for (size_t i = 0; i < layouts.size(); ++i) {
      if (!found[i].failure.empty()) {
        continue;
      }
      if (options.on_progress) {
        options.on_progress(fmt::format("round {} of {}, layout {} of {}", round + 1,
                                        options.rounds, i + 1, layouts.size()));
      }
      try {
        io::Config trial = trial_of(layouts[i], 1'000'000);  // until it is stopped
        trial.run.out = (folder / "run").string();
        train_layout(comm, trial, options, steps[i]);
      } catch (const train::SharedFailure& failure) {  // of all ranks
        found[i].failure = failure.what();
      }
    }
  }
  std::vector<double> seconds;
  for (size_t i = 0; i < steps.size(); ++i) {
    std::ranges::sort(steps[i]);
    seconds.push_back(found[i].failure.empty() ? steps[i][steps[i].size() / 10]
                                               : std::numeric_limits<double>::infinity());
  }
  parallel::broadcast(comm, 0, std::as_writable_bytes(std::span(seconds)));
  for (size_t i = 0; i < seconds.size(); ++i) {
    found[i].seconds = seconds[i];
  }
  return found;
}

}  // namespace espalier::planner
