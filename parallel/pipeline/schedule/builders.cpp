#include "parallel/pipeline/schedule/builders.h"

#include <algorithm>

namespace espalier::parallel {
namespace {

/// Adds the receive of a compute action's input, if another rank sends it.
void receive_before(const Schedule& schedule, const Action& action, std::vector<Action>& program) {
  const int stage = action.stage;
  if (action.kind == ActionKind::forward && stage > 0 && schedule.crosses(stage - 1)) {
    program.push_back({ActionKind::receive_activation, stage, action.micro_batch});
  }
  if (makes_input_gradient(action.kind) && schedule.crosses(stage)) {
    program.push_back({ActionKind::receive_gradient, stage, action.micro_batch});
  }
}

void send_after(const Schedule& schedule, const Action& action, std::vector<Action>& program) {
  const int stage = action.stage;
  if (action.kind == ActionKind::forward && schedule.crosses(stage)) {
    program.push_back({ActionKind::send_activation, stage, action.micro_batch});
  }
  if (makes_input_gradient(action.kind) && stage > 0 && schedule.crosses(stage - 1)) {
    program.push_back({ActionKind::send_gradient, stage, action.micro_batch});
  }
}

std::vector<Action> complete(const Schedule& schedule, const std::vector<Action>& compute) {
  std::vector<int> missing(static_cast<size_t>(schedule.stages()), schedule.micro_batches);
  const int every =
      schedule.synchronous ? schedule.micro_batches : schedule.micro_batches_per_update;
  std::vector<Action> program;
  std::vector<Action> steps;
  for (const Action& action : compute) {
    receive_before(schedule, action, program);
    program.push_back(action);
    send_after(schedule, action, program);
    if (!makes_weight_gradient(action.kind)) {
      continue;
    }
    if (--missing[static_cast<size_t>(action.stage)] % every == 0) {
      program.push_back({ActionKind::reduce, action.stage, action.micro_batch});
      std::vector<Action>& after = schedule.synchronous ? steps : program;
      after.push_back({ActionKind::step, action.stage, action.micro_batch});
    }
  }
  program.insert(program.end(), steps.begin(), steps.end());
  return program;
}

}  // namespace

void VProgram::backward_weight() {
  const Action action = waiting_.front();
  waiting_.pop_front();
  program_.add(action.kind, action.stage, action.micro_batch);
}

void VProgram::backward_weight(int chunk) {
  const auto found = std::ranges::find(waiting_, stage_[chunk], &Action::stage);
  program_.add(found->kind, found->stage, found->micro_batch);
  waiting_.erase(found);
}

bool VProgram::weight_due(int chunk) const {
  return std::ranges::find(waiting_, stage_[chunk], &Action::stage) != waiting_.end();
}

std::vector<Action> forwards_first(int stage, int micro_batches, int warm, int deferred) {
  Program program;
  program.next(ActionKind::forward, stage, warm);
  for (int i = 0; i < micro_batches; ++i) {
    if (warm + i < micro_batches) {
      program.next(ActionKind::forward, stage);
    }
    program.next(deferred < 0 ? ActionKind::backward : ActionKind::backward_input, stage);
    if (deferred >= 0 && i >= deferred) {
      program.next(ActionKind::backward_weight, stage);
    }
  }
  program.next(ActionKind::backward_weight, stage, std::min(deferred, micro_batches));
  return program.take();
}

Schedule one_stage_a_rank(std::string_view name, const ScheduleShape& shape) {
  return {.name = std::string(name),
          .ranks = shape.ranks,
          .chunks = 1,
          .micro_batches = shape.micro_batches,
          .programs = {}};
}

Schedule v_shaped(std::string_view name, const ScheduleShape& shape) {
  Schedule schedule = one_stage_a_rank(name, shape);
  schedule.chunks = 2;
  schedule.placement = Placement::v_shape;
  return schedule;
}

Schedule placed_as(const Schedule& like, std::string_view name, int micro_batches) {
  return {.name = std::string(name),
          .ranks = like.ranks,
          .chunks = like.chunks,
          .micro_batches = micro_batches,
          .placement = like.placement,
          .programs = {}};
}

int warm_up(const Schedule& schedule, int rank) {
  return std::min(schedule.ranks - 1 - rank, schedule.micro_batches);
}

Schedule complete(Schedule schedule) {
  for (std::vector<Action>& program : schedule.programs) {
    program = complete(schedule, program);
  }
  return schedule;
}

}  // namespace espalier::parallel
