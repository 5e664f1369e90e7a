#include "src/train/run/trainer.h"

#include <algorithm>

#include "src/train/run/steps.h"

namespace espalier::train {

Trainer::Trainer(const io::Config& config, parallel::Communicator& comm, TrainerOptions options)
    : options_(std::move(options)),
      run_(set_up(config, comm, options_)),
      reporter_(run_, options_) {
  reporter_.note_choices();
}

RunResult Trainer::run() {
  const int64_t steps = run_.config().train.steps;
  const bool stopped =
      run_steps(run_, reporter_, options_,
                options_.stop_after > 0 ? std::min(options_.stop_after, steps) : steps);
  const bool finished = run_.step >= steps;
  reporter_.finish(finished);
  return {.steps = run_.step, .finished = finished, .stopped = stopped && !finished};
}

}  // namespace espalier::train
