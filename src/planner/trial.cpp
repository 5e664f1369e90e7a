#include "src/planner/trial.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>

#include "parallel/transport/collectives.h"
#include "src/train/exchange/agreement.h"
#include "src/train/run/trainer.h"

namespace espalier::planner {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kWarmUp = 3;  ///< steps of a training that are not counted

/// A directory of rank 0 for runs, until the end of this object.
class RunFolder {
 public:
  explicit RunFolder(parallel::Communicator& comm) : is_first_(comm.rank() == 0) {
    if (is_first_) {
      path_ = fs::temp_directory_path() / fmt::format("espalier-plan-{}", ::getpid());
      fs::create_directories(path_);
    }
    path_ = train::broadcast_text(comm, path_.string());
  }
  ~RunFolder() {
    std::error_code ignored;
    if (is_first_) {
      fs::remove_all(path_, ignored);
    }
  }
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;
  const fs::path& path() const { return path_; }

 private:
  bool is_first_;
  fs::path path_;
};

/// The layout's run as its steps are once it is pruned, until it is stopped.
io::Config trial_of(io::Config config, const fs::path& folder) {
  config.run.out = (folder / "run").string();
  config.run.trace = false;
  config.run.tensorboard = false;
  config.train.steps = 1'000'000;
  config.train.eval_every = 0;
  config.train.eval_batches = 1;
  config.train.checkpoint_every = -1;
  if (config.pruning.prunes()) {
    config.pruning.at_step = 0;
    config.pruning.from_step = config.pruning.to_step = -1;
    constexpr std::array kStructured{"nm", "block", "file"};
    if (std::ranges::find(kStructured, config.pruning.method) == kStructured.end()) {
      config.pruning.method = "random";
      config.pruning.scope = "layer";
    }
  }
  return config;
}

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

std::vector<double> try_layouts(parallel::Communicator& comm, std::span<const io::Config> layouts,
                                const TrialOptions& options) {
  const RunFolder folder(comm);
  std::vector<std::vector<double>> steps(layouts.size());
  for (int round = 0; round < options.rounds; ++round) {
    for (size_t i = 0; i < layouts.size(); ++i) {
      if (options.on_progress) {
        options.on_progress(fmt::format("round {} of {}, layout {} of {}", round + 1,
                                        options.rounds, i + 1, layouts.size()));
      }
      train_layout(comm, trial_of(layouts[i], folder.path()), options, steps[i]);
    }
  }
  std::vector<double> found;
  for (std::vector<double>& times : steps) {
    std::ranges::sort(times);
    found.push_back(times[times.size() / 10]);
  }
  parallel::broadcast(comm, 0, std::as_writable_bytes(std::span(found)));
  return found;
}

}  // namespace espalier::planner
