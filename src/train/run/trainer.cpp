#include "src/train/run/trainer.h"

#include <algorithm>
#include <utility>

namespace espalier::train {
namespace {

std::function<void(const std::string&)> note_of(const TrainerOptions& options) {
  return options.on_note ? options.on_note : [](const std::string&) {};
}

}  // namespace

Trainer::Trainer(const io::Config& config, parallel::Communicator& comm, TrainerOptions options)
    : stop_after_(options.stop_after),
      run_(set_up(config, comm,
                  {.resume = options.resume, .init = options.init, .kernels = options.kernels},
                  note_of(options))),
      reporter_(run_, std::move(options.git)),
      steps_(run_, reporter_,
             {.stop_requested = std::move(options.stop_requested),
              .on_step = std::move(options.on_step)}) {
  reporter_.note_news();
}

RunResult Trainer::run() {
  const int64_t steps = run_.config().train.steps;
  steps_.run_to(stop_after_ > 0 ? std::min(stop_after_, steps) : steps);
  const bool finished = run_.step >= steps;
  reporter_.finish(finished);
  return {.steps = run_.step, .finished = finished};
}

}  // namespace espalier::train
