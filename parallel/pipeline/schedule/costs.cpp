#include "parallel/pipeline/schedule/costs.h"

#include <algorithm>

namespace espalier::parallel {

double Costs::of(const Action& action) const {
  const StageTimes& times = stages[static_cast<size_t>(action.stage)];
  switch (action.kind) {
    case ActionKind::forward:
      return times.forward;
    case ActionKind::backward:
      return times.backward();
    case ActionKind::backward_input:
      return times.backward_input;
    case ActionKind::backward_weight:
      return times.backward_weight;
    default:
      return 0;
  }
}

Links::Links(int ranks, int stages, int micro_batches, const Costs& costs)
    : costs_(costs),
      ranks_(static_cast<size_t>(ranks)),
      micro_batches_(static_cast<size_t>(micro_batches)),
      free_(ranks_ * ranks_, 0.0),
      activation_(static_cast<size_t>(stages) * micro_batches_, kNever),
      gradient_(activation_.size(), kNever) {}

double Links::send(const Action& action, int from, int to, double now) {
  const bool ahead = action.kind == ActionKind::send_activation;
  double& link = free_[static_cast<size_t>(from) * ranks_ + static_cast<size_t>(to)];
  link = std::max(link, now) + costs_.transfer;
  const double arrival = link + costs_.latency;
  at(ahead ? activation_ : gradient_, action.stage + (ahead ? 1 : -1), action.micro_batch) =
      arrival;
  return arrival;
}

double Links::arrival(const Action& action) {
  return at(action.kind == ActionKind::receive_activation ? activation_ : gradient_, action.stage,
            action.micro_batch);
}

double& Links::at(std::vector<double>& of, int stage, int micro_batch) const {
  return of[static_cast<size_t>(stage) * micro_batches_ + static_cast<size_t>(micro_batch)];
}

}  // namespace espalier::parallel
