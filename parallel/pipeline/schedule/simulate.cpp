#include "parallel/pipeline/schedule/simulate.h"

#include <algorithm>
#include <numeric>

#include "src/core/error.h"

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

namespace {

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

  /// Index after the backward of a pair that begins at `first`, including the actions between.
  size_t end_of_pair(size_t rank, size_t first) const {
    size_t i = first + 1;
    while (i < program(rank).size() && !makes_input_gradient(program(rank)[i].kind)) {
      ++i;
    }
    return std::min(i + 1, program(rank).size());
  }

  /// Runs the next action, or a whole pair; false: it waits for a message that is not sent yet.
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
      total += costs_.of(action);
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
        timeline_.ranks[rank].push_back({action, from, from + costs_.of(action)});
        from += costs_.of(action);
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

double Timeline::idle_share() const {
  double idle = 0;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    idle += this->idle(rank);
  }
  const double all = makespan() * static_cast<double>(ranks.size());
  return all > 0 ? idle / all : 0;
}

double Timeline::bubble(size_t rank) const {
  const auto& actions = ranks[rank];
  return actions.empty() ? 0 : actions.back().end - actions.front().begin - busy(rank);
}

Timeline simulate(const Schedule& schedule, const Costs& costs) {
  return Simulator(schedule, costs).run();
}

}  // namespace espalier::parallel
