#include "parallel/pipeline/schedule/simulate.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "src/core/error.h"

namespace espalier::parallel {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

double duration(const StageTimes& times, ActionKind kind) {
  switch (kind) {
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

/// Messages on their way between ranks, by what they carry to which stage.
class Links {
 public:
  Links(int ranks, int stages, int micro_batches, const Costs& costs)
      : costs_(costs),
        ranks_(static_cast<size_t>(ranks)),
        micro_batches_(static_cast<size_t>(micro_batches)),
        free_(ranks_ * ranks_, 0.0),
        activation_(static_cast<size_t>(stages) * micro_batches_, kNever),
        gradient_(activation_.size(), kNever) {}

  /// What `action` sends, made at `now`; returns its arrival.
  double send(const Action& action, int from, int to, double now) {
    const bool ahead = action.kind == ActionKind::send_activation;
    double& link = free_[static_cast<size_t>(from) * ranks_ + static_cast<size_t>(to)];
    link = std::max(link, now) + costs_.transfer;
    const double arrival = link + costs_.latency;
    at(ahead ? activation_ : gradient_, action.stage + (ahead ? 1 : -1), action.micro_batch) =
        arrival;
    return arrival;
  }

  /// When what `action` receives arrives; kNever: it is not sent yet.
  double arrival(const Action& action) {
    return at(action.kind == ActionKind::receive_activation ? activation_ : gradient_, action.stage,
              action.micro_batch);
  }

 private:
  double& at(std::vector<double>& of, int stage, int micro_batch) const {
    return of[static_cast<size_t>(stage) * micro_batches_ + static_cast<size_t>(micro_batch)];
  }

  const Costs& costs_;
  size_t ranks_, micro_batches_;
  std::vector<double> free_;                   ///< [from][to] until when the link is occupied
  std::vector<double> activation_, gradient_;  ///< [stage][micro-batch] arrival
};

class Simulator {
 public:
  Simulator(const Schedule& schedule, const Costs& costs)
      : schedule_(schedule),
        costs_(costs),
        links_(schedule.ranks, schedule.stages(), schedule.micro_batches, costs),
        at_(schedule.programs.size(), 0),
        now_(schedule.programs.size(), 0.0),
        timeline_{.ranks = std::vector<std::vector<TimedAction>>(schedule.programs.size())} {
    require(costs.stages.size() == static_cast<size_t>(schedule.stages()), "times of each stage",
            costs.stages.size(), schedule.stages());
  }

  Timeline run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t rank = 0; rank < at_.size(); ++rank) {
        while (at_[rank] < program(rank).size() && advance(rank)) {
          moved = true;
        }
      }
    }
    for (size_t rank = 0; rank < at_.size(); ++rank) {
      if (at_[rank] < program(rank).size()) {
        throw Failure(fmt::format("schedule {} never ends: rank {} waits in {}", schedule_.name,
                                  rank, describe(program(rank)[at_[rank]])));
      }
    }
    return std::move(timeline_);
  }

 private:
  const std::vector<Action>& program(size_t rank) const { return schedule_.programs[rank]; }

  double time_of(const Action& action) const {
    return duration(costs_.stages[static_cast<size_t>(action.stage)], action.kind);
  }

  /// Past the backward of a pair that begins at `first`, with what lies between.
  size_t end_of_pair(size_t rank, size_t first) const {
    size_t i = first + 1;
    while (i < program(rank).size() && !makes_input_gradient(program(rank)[i].kind)) {
      ++i;
    }
    return std::min(i + 1, program(rank).size());
  }

  /// The next action, or a whole pair; false: it waits for a message that is not sent yet.
  bool advance(size_t rank) {
    const size_t begin = at_[rank];
    const bool pair = costs_.fuse_pairs && program(rank)[begin].paired;
    const size_t end = pair ? end_of_pair(rank, begin) : begin + 1;
    double start = now_[rank];
    double total = 0;
    for (size_t i = begin; i < end; ++i) {
      const Action& action = program(rank)[i];
      if (receives(action.kind)) {
        start = std::max(start, links_.arrival(action));
      }
      total += time_of(action);
    }
    if (start == kNever) {
      return false;
    }
    double from = start;
    for (size_t i = begin; i < end; ++i) {
      const Action& action = program(rank)[i];
      if (sends(action.kind)) {
        const int to = action.stage + (action.kind == ActionKind::send_activation ? 1 : -1);
        links_.send(action, static_cast<int>(rank), schedule_.rank_of(to), start + total);
      } else if (computes(action.kind)) {
        timeline_.ranks[rank].push_back({action, from, from + time_of(action)});
        from += time_of(action);
      }
    }
    now_[rank] = start + total;
    at_[rank] = end;
    return true;
  }

  const Schedule& schedule_;
  const Costs& costs_;
  Links links_;
  std::vector<size_t> at_;   ///< [ranks] next action
  std::vector<double> now_;  ///< [ranks] end of the last one
  Timeline timeline_;
};

/// One rank of the message-driven policy: what has arrived, oldest first.
struct Inbox {
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
        inbox_(static_cast<size_t>(policy.ranks)),
        now_(inbox_.size(), 0.0),
        timeline_{.ranks = std::vector<std::vector<TimedAction>>(inbox_.size())} {
    require(policy.in_flight >= 1, "at least one micro-batch under way", policy.in_flight);
    for (int i = 0; i < std::min(policy.in_flight, policy.micro_batches); ++i) {
      inbox_[0].activations.push_back({0, i});
    }
  }

  std::pair<Schedule, Timeline> run() {
    // In the order of their beginnings: what an action sends arrives after all that began before
    // it.
    for (size_t rank = next(); begin_of(rank) < kNever; rank = next()) {
      act(rank);
    }
    return {complete(std::move(schedule_)), std::move(timeline_)};
  }

 private:
  double begin_of(size_t rank) const {
    const Inbox& inbox = inbox_[rank];
    return std::max(now_[rank], std::min(inbox.activation_at(), inbox.gradient_at()));
  }

  size_t next() const {
    size_t first = 0;
    for (size_t rank = 1; rank < inbox_.size(); ++rank) {
      if (begin_of(rank) < begin_of(first)) {
        first = rank;
      }
    }
    return first;
  }

  void act(size_t rank) {
    Inbox& inbox = inbox_[rank];
    const double begin = begin_of(rank);
    const bool backward = policy_.order == MessageDriven::Order::backward_first
                              ? inbox.gradient_at() <= begin
                              : inbox.gradient_at() < inbox.activation_at();
    if (backward) {
      run_backward(rank, inbox.gradients[inbox.next_gradient++].micro_batch, begin);
      return;
    }
    const int micro_batch = inbox.activations[inbox.next_activation++].micro_batch;
    const double end = compute(rank, ActionKind::forward, micro_batch, begin);
    if (rank + 1 == inbox_.size()) {
      run_backward(rank, micro_batch, end);
    } else {
      const double arrival =
          links_.send({ActionKind::send_activation, static_cast<int>(rank), micro_batch},
                      static_cast<int>(rank), static_cast<int>(rank) + 1, end);
      inbox_[rank + 1].activations.push_back({arrival, micro_batch});
    }
  }

  void run_backward(size_t rank, int micro_batch, double begin) {
    const double end = compute(rank, ActionKind::backward, micro_batch, begin);
    if (rank > 0) {
      const double arrival =
          links_.send({ActionKind::send_gradient, static_cast<int>(rank), micro_batch},
                      static_cast<int>(rank), static_cast<int>(rank) - 1, end);
      inbox_[rank - 1].gradients.push_back({arrival, micro_batch});
    } else if (auto& injected = inbox_[0].activations;
               injected.size() < static_cast<size_t>(policy_.micro_batches)) {
      injected.push_back({end, static_cast<int>(injected.size())});
    }
  }

  double compute(size_t rank, ActionKind kind, int micro_batch, double begin) {
    const Action action{kind, static_cast<int>(rank), micro_batch};
    const double end = begin + duration(costs_.stages[rank], kind);
    schedule_.programs[rank].push_back(action);
    timeline_.ranks[rank].push_back({action, begin, end});
    now_[rank] = end;
    return end;
  }

  MessageDriven policy_;
  const Costs& costs_;
  Schedule schedule_;
  Links links_;
  std::vector<Inbox> inbox_;
  std::vector<double> now_;  ///< [ranks] end of the last action
  Timeline timeline_;
};

}  // namespace

double Timeline::makespan() const {
  double end = 0;
  for (const auto& actions : ranks) {
    end = std::max(end, actions.empty() ? 0 : actions.back().end);
  }
  return end;
}

double Timeline::busy(size_t rank) const {
  return std::transform_reduce(ranks[rank].begin(), ranks[rank].end(), 0.0, std::plus<>(),
                               [](const TimedAction& a) { return a.end - a.begin; });
}

double Timeline::bubble(size_t rank) const {
  const auto& actions = ranks[rank];
  return actions.empty() ? 0 : actions.back().end - actions.front().begin - busy(rank);
}

double Timeline::most_idle() const {
  double most = 0;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    most = std::max(most, idle(rank));
  }
  return most;
}

double Timeline::largest_bubble() const {
  double largest = 0;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    largest = std::max(largest, bubble(rank));
  }
  return largest;
}

Timeline simulate(const Schedule& schedule, const Costs& costs) {
  return Simulator(schedule, costs).run();
}

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

}  // namespace espalier::parallel
