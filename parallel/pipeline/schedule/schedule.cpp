#include "parallel/pipeline/schedule/schedule.h"

#include <array>

#include "src/core/error.h"

namespace espalier::parallel {
namespace {

constexpr std::array<std::string_view, kActionKinds> kActionNames{
    "forward",
    "backward",
    "backward of the input",
    "backward of the weights",
    "sending the activation",
    "receiving the activation",
    "sending the gradient",
    "receiving the gradient",
    "all-reduce",
    "update",
};

/// What must have come before a compute action, from another rank.
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
  const int every = schedule.synchronous ? schedule.micro_batches : schedule.every;
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

std::string_view name_of(ActionKind kind) { return kActionNames[static_cast<size_t>(kind)]; }

std::string describe(const Action& action) {
  return fmt::format("{} of micro-batch {} at stage {}", name_of(action.kind), action.micro_batch,
                     action.stage);
}

Schedule complete(Schedule schedule) {
  for (std::vector<Action>& program : schedule.programs) {
    program = complete(schedule, program);
  }
  return schedule;
}

}  // namespace espalier::parallel
