#include "parallel/pipeline/schedule/message_driven.h"

#include <algorithm>

#include "parallel/pipeline/schedule/builders.h"

namespace espalier::parallel {
namespace {

/// The messages that have arrived at a rank, oldest first.
struct Arrivals {
  struct Message {
    double arrival = 0;
    int micro_batch = 0;
  };
  std::vector<Message> activations, gradients;  ///< ascending in both members
  size_t next_activation = 0, next_gradient = 0;

  double activation_at() const {
    return next_activation < activations.size() ? activations[next_activation].arrival : kNever;
  }
  double gradient_at() const {
    return next_gradient < gradients.size() ? gradients[next_gradient].arrival : kNever;
  }
};

class ArrivalSimulator {
 public:
  ArrivalSimulator(const MessageDriven& policy, const Costs& costs)
      : policy_(policy),
        costs_(costs),
        schedule_{.name = "message-driven",
                  .ranks = policy.ranks,
                  .chunks = 1,
                  .micro_batches = policy.micro_batches,
                  .programs = std::vector<std::vector<Action>>(static_cast<size_t>(policy.ranks))},
        links_(policy.ranks, policy.ranks, policy.micro_batches, costs),
        arrivals_(static_cast<size_t>(policy.ranks)),
        now_(arrivals_.size(), 0.0),
        timeline_{.ranks = std::vector<std::vector<TimedAction>>(arrivals_.size())} {
    require(policy.in_flight >= 1, "at least one micro-batch under way", policy.in_flight);
    for (int i = 0; i < std::min(policy.in_flight, policy.micro_batches); ++i) {
      arrivals_[0].activations.push_back({0, i});
    }
  }

  std::pair<Schedule, Timeline> run() {
    // In the order of their start times: a message of an action arrives after the start of all
    // earlier actions.
    for (size_t rank = next(); begin_of(rank) < kNever; rank = next()) {
      act(rank);
    }
    return {complete(std::move(schedule_)), std::move(timeline_)};
  }

 private:
  double begin_of(size_t rank) const {
    const Arrivals& arrived = arrivals_[rank];
    return std::max(now_[rank], std::min(arrived.activation_at(), arrived.gradient_at()));
  }

  size_t next() const {
    size_t first = 0;
    for (size_t rank = 1; rank < arrivals_.size(); ++rank) {
      if (begin_of(rank) < begin_of(first)) {
        first = rank;
      }
    }
    return first;
  }

  void act(size_t rank) {
    Arrivals& arrived = arrivals_[rank];
    const double begin = begin_of(rank);
    if (arrived.gradient_at() <= begin) {
      run_backward(rank, arrived.gradients[arrived.next_gradient++].micro_batch, begin);
      return;
    }
    const int micro_batch = arrived.activations[arrived.next_activation++].micro_batch;
    const double end = compute(rank, ActionKind::forward, micro_batch, begin);
    if (rank + 1 == arrivals_.size()) {
      run_backward(rank, micro_batch, end);
    } else {
      const double arrival =
          links_.send({ActionKind::send_activation, static_cast<int>(rank), micro_batch},
                      static_cast<int>(rank), static_cast<int>(rank) + 1, end);
      arrivals_[rank + 1].activations.push_back({arrival, micro_batch});
    }
  }

  void run_backward(size_t rank, int micro_batch, double begin) {
    const double end = compute(rank, ActionKind::backward, micro_batch, begin);
    if (rank > 0) {
      const double arrival =
          links_.send({ActionKind::send_gradient, static_cast<int>(rank), micro_batch},
                      static_cast<int>(rank), static_cast<int>(rank) - 1, end);
      arrivals_[rank - 1].gradients.push_back({arrival, micro_batch});
    } else if (auto& injected = arrivals_[0].activations;
               injected.size() < static_cast<size_t>(policy_.micro_batches)) {
      injected.push_back({end, static_cast<int>(injected.size())});
    }
  }

  double compute(size_t rank, ActionKind kind, int micro_batch, double begin) {
    const Action action{kind, static_cast<int>(rank), micro_batch};
    const double end = begin + costs_.of(action);
    schedule_.programs[rank].push_back(action);
    timeline_.ranks[rank].push_back({action, begin, end});
    now_[rank] = end;
    return end;
  }

  MessageDriven policy_;
  const Costs& costs_;
  Schedule schedule_;
  Links links_;
  std::vector<Arrivals> arrivals_;
  std::vector<double> now_;  ///< [ranks] end of the last action
  Timeline timeline_;
};

}  // namespace

std::pair<Schedule, Timeline> simulate(const MessageDriven& policy, const Costs& costs) {
  require(costs.stages.size() == static_cast<size_t>(policy.ranks), "times of each stage",
          costs.stages.size(), policy.ranks);
  return ArrivalSimulator(policy, costs).run();
}

int best_in_flight(int ranks, int micro_batches, const Costs& costs) {
  std::vector<double> makespans;
  for (int limit = std::min(ranks, micro_batches); limit <= micro_batches; ++limit) {
    const MessageDriven policy{.ranks = ranks, .micro_batches = micro_batches, .in_flight = limit};
    makespans.push_back(simulate(policy, costs).second.makespan());
  }
  const double best = *std::ranges::min_element(makespans);
  const auto found =
      std::ranges::find_if(makespans, [best](double makespan) { return makespan <= 1.01 * best; });
  return std::min(ranks, micro_batches) + static_cast<int>(found - makespans.begin());
}

extern const ScheduleEntry kMessageDriven{
    .name = "message-driven",
    .help = "whatever has arrived, backward first; measured times limit what is in flight",
};

}  // namespace espalier::parallel
