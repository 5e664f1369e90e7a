#include "parallel/pipeline/schedule/check.h"

#include <algorithm>
#include <deque>
#include <utility>

#include "src/core/error.h"

namespace espalier::parallel {
namespace {

/// State of a micro-batch at a stage.
struct Work {
  bool activation = false, gradient = false;            ///< have arrived
  bool forward = false, input = false, weight = false;  ///< are done
  int steps_at_forward = 0;
};

class Checker {
 public:
  Checker(const Schedule& schedule, int buffers)
      : schedule_(schedule),
        buffers_(buffers),
        at_(schedule.programs.size(), 0),
        held_(schedule.programs.size()),
        stages_(static_cast<size_t>(schedule.stages())),
        activations_(stages_.size()),
        gradients_(stages_.size()) {
    const auto ranks = schedule.programs.size();
    check(ranks == static_cast<size_t>(schedule.ranks), "{} ranks have {} programs", schedule.ranks,
          ranks);
    check(schedule.synchronous || schedule.micro_batches % schedule.micro_batches_per_update == 0,
          "schedule {}: updates of {} micro-batches do not divide {}", schedule.name,
          schedule.micro_batches_per_update, schedule.micro_batches);
    for (StageState& stage : stages_) {
      stage.work.resize(static_cast<size_t>(schedule.micro_batches));
    }
    facts_ = {.activations = std::vector<int>(ranks),
              .weight_parts = std::vector<int>(ranks),
              .tapes = std::vector<int>(ranks),
              .stage_activations = std::vector<int>(stages_.size()),
              .stage_weight_parts = std::vector<int>(stages_.size()),
              .delay = std::vector<int>(stages_.size()),
              .messages = std::vector<int>(ranks)};
  }

  /// Empty if the schedule finishes, else the actions that the ranks wait for.
  std::string run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t rank = 0; rank < at_.size(); ++rank) {
        while (at_[rank] < program(rank).size() && perform(rank, program(rank)[at_[rank]])) {
          ++at_[rank];
          moved = true;
        }
      }
    }
    std::vector<std::string> stuck;
    for (size_t rank = 0; rank < at_.size(); ++rank) {
      if (at_[rank] < program(rank).size()) {
        stuck.push_back(fmt::format("rank {} in {}", rank, describe(program(rank)[at_[rank]])));
      }
    }
    return fmt::format("{}", fmt::join(stuck, ", "));
  }

  void check_complete() const {
    for (size_t s = 0; s < stages_.size(); ++s) {
      const StageState& stage = stages_[s];
      for (size_t i = 0; i < stage.work.size(); ++i) {
        const Work& work = stage.work[i];
        check(work.forward && work.input && work.weight,
              "schedule {}: stage {} misses the {} of micro-batch {}", schedule_.name, s,
              !work.forward ? "forward" : "backward", i);
      }
      const int steps = schedule_.micro_batches / an_update();
      check(stage.reductions == steps && stage.steps == steps,
            "schedule {}: stage {} has {} all-reduces and {} updates, and should have {}",
            schedule_.name, s, stage.reductions, stage.steps, steps);
      check(activations_[s].empty() && gradients_[s].empty(),
            "schedule {}: a message to stage {} is never received", schedule_.name, s);
    }
  }

  const ScheduleFacts& facts() const { return facts_; }

 private:
  struct Held {
    int activations = 0, weight_parts = 0;
  };
  struct StageState {
    std::vector<Work> work;
    int weight_gradients = 0, reductions = 0, steps = 0;
    Held held;
  };

  const std::vector<Action>& program(size_t rank) const { return schedule_.programs[rank]; }

  void demand_of(size_t rank, const Action& action, bool ok, std::string_view why) const {
    if (!ok) {
      fail("schedule {}, rank {}: {} {}", schedule_.name, rank, describe(action), why);
    }
  }

  /// False: the action has to wait.
  bool perform(size_t rank, const Action& action) {
    const auto demand = [&](bool ok, std::string_view why) { demand_of(rank, action, ok, why); };
    demand(action.stage >= 0 && action.stage < schedule_.stages() &&
               schedule_.rank_of(action.stage) == static_cast<int>(rank),
           "belongs to another rank");
    demand(action.micro_batch >= 0 && action.micro_batch < schedule_.micro_batches,
           "is of a micro-batch that does not exist");
    StageState& stage = stages_[static_cast<size_t>(action.stage)];
    Work& work = stage.work[static_cast<size_t>(action.micro_batch)];
    if (sends(action.kind)) {
      return send(rank, action, work);
    }
    if (receives(action.kind)) {
      return receive(rank, action, work);
    }
    if (computes(action.kind)) {
      compute(rank, action, stage, work);
    } else if (action.kind == ActionKind::reduce) {
      demand(stage.weight_gradients == (stage.reductions + 1) * an_update() && work.weight,
             "does not follow the gradient it sums");
      ++stage.reductions;
    } else {
      demand(stage.reductions == stage.steps + 1, "does not follow its all-reduce");
      int& delay = facts_.delay[static_cast<size_t>(action.stage)];
      for (int i = stage.steps * an_update(); i < (stage.steps + 1) * an_update(); ++i) {
        delay = std::max(delay, stage.steps - stage.work[static_cast<size_t>(i)].steps_at_forward);
      }
      ++stage.steps;
    }
    return true;
  }

  void compute(size_t rank, const Action& action, StageState& stage, Work& work) {
    const auto demand = [&](bool ok, std::string_view why) { demand_of(rank, action, ok, why); };
    if (action.kind == ActionKind::forward) {
      demand(!work.forward, "happens twice");
      demand(action.stage == 0 || std::exchange(work.activation, false),
             "comes before its activation");
      work.forward = true;
      work.steps_at_forward = stage.steps;
      hold(rank, action, 1, 0);
      pass_locally(action, action.stage + 1, &Work::activation);
    }
    if (makes_input_gradient(action.kind)) {
      demand(work.forward, "comes before the forward");
      demand(!work.input, "happens twice");
      demand(action.stage + 1 == schedule_.stages() || std::exchange(work.gradient, false),
             "comes before its gradient");
      work.input = true;
      hold(rank, action, -1, action.kind == ActionKind::backward_input ? 1 : 0);
      pass_locally(action, action.stage - 1, &Work::gradient);
    }
    if (makes_weight_gradient(action.kind)) {
      demand(work.input && !work.weight, "does not follow a backward of the input");
      hold(rank, action, 0, action.kind == ActionKind::backward_weight ? -1 : 0);
      work.weight = true;
      ++stage.weight_gradients;
    }
  }

  /// Micro-batches of an update.
  int an_update() const {
    return schedule_.synchronous ? schedule_.micro_batches : schedule_.micro_batches_per_update;
  }

  void hold(size_t rank, const Action& action, int activations, int weight_parts) {
    const auto stage = static_cast<size_t>(action.stage);
    for (Held* held : {&held_[rank], &stages_[stage].held}) {
      held->activations += activations;
      held->weight_parts += weight_parts;
    }
    const auto raise = [](int& peak, int now) { peak = std::max(peak, now); };
    raise(facts_.activations[rank], held_[rank].activations);
    raise(facts_.tapes[rank], held_[rank].activations + held_[rank].weight_parts);
    raise(facts_.weight_parts[rank], held_[rank].weight_parts);
    raise(facts_.stage_activations[stage], stages_[stage].held.activations);
    raise(facts_.stage_weight_parts[stage], stages_[stage].held.weight_parts);
  }

  /// Passes a result to a neighbouring stage on the same rank.
  void pass_locally(const Action& action, int to, bool Work::*what) {
    if (to >= 0 && to < schedule_.stages() &&
        schedule_.rank_of(to) == schedule_.rank_of(action.stage)) {
      stages_[static_cast<size_t>(to)].work[static_cast<size_t>(action.micro_batch)].*what = true;
    }
  }

  bool send(size_t rank, const Action& action, const Work& work) {
    const bool ahead = action.kind == ActionKind::send_activation;
    const int to = action.stage + (ahead ? 1 : -1);
    demand_of(rank, action, ahead ? work.forward : work.input, "comes before it is computed");
    demand_of(rank, action, to >= 0 && schedule_.crosses(std::min(action.stage, to)),
              "leads to no other rank");
    std::deque<int>& channel = (ahead ? activations_ : gradients_)[static_cast<size_t>(to)];
    if (channel.size() >= static_cast<size_t>(buffers_)) {
      return false;
    }
    channel.push_back(action.micro_batch);
    ++facts_.messages[rank];
    return true;
  }

  bool receive(size_t rank, const Action& action, Work& work) {
    const bool ahead = action.kind == ActionKind::receive_activation;
    std::deque<int>& channel =
        (ahead ? activations_ : gradients_)[static_cast<size_t>(action.stage)];
    if (channel.empty()) {
      return false;
    }
    if (const int found = channel.front(); found != action.micro_batch) {
      demand_of(rank, action, false, fmt::format("finds that of micro-batch {}", found));
    }
    channel.pop_front();
    bool& here = ahead ? work.activation : work.gradient;
    here = true;
    return true;
  }

  const Schedule& schedule_;
  int buffers_;
  std::vector<size_t> at_;  ///< [ranks] next action
  std::vector<Held> held_;
  std::vector<StageState> stages_;
  std::vector<std::deque<int>> activations_, gradients_;  ///< [stages] in transit to the stage
  ScheduleFacts facts_;
};

}  // namespace

ScheduleFacts check_schedule(const Schedule& schedule, int buffers) {
  Checker checker(schedule, buffers);
  const std::string stuck = checker.run();
  check(stuck.empty(), "schedule {} with {} messages a channel never ends: {}", schedule.name,
        buffers, stuck);
  checker.check_complete();
  return checker.facts();
}

int needed_buffers(const Schedule& schedule) {
  // A schedule that finishes with n buffers also finishes with more.
  const auto finishes = [&](int buffers) {
    return buffers >= schedule.micro_batches || Checker(schedule, buffers).run().empty();
  };
  int most = 1;
  while (!finishes(most)) {
    most *= 2;
  }
  int least = most / 2 + 1;
  most = std::max(1, std::min(most, schedule.micro_batches));
  while (least < most) {
    const int middle = (least + most) / 2;
    if (finishes(middle)) {
      most = middle;
    } else {
      least = middle + 1;
    }
  }
  return most;
}

}  // namespace espalier::parallel
