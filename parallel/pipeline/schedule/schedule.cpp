#include "parallel/pipeline/schedule/schedule.h"

#include <algorithm>
#include <array>

#include "parallel/pipeline/schedule/builders.h"

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

}  // namespace

std::string_view name_of(ActionKind kind) { return kActionNames[static_cast<size_t>(kind)]; }

std::string describe(const Action& action) {
  return fmt::format("{} of micro-batch {} at stage {}", name_of(action.kind), action.micro_batch,
                     action.stage);
}

/// Groups of p micro-batches pass a rank's chunks one after the other.
Schedule forward_only(const Schedule& like, int micro_batches) {
  Schedule schedule{.name = "evaluation",
                    .ranks = like.ranks,
                    .chunks = like.chunks,
                    .micro_batches = micro_batches,
                    .placement = like.placement,
                    .programs = {}};
  for (int rank = 0; rank < like.ranks; ++rank) {
    Program program;
    for (int group = 0; group < micro_batches; group += like.ranks) {
      for (int chunk = 0; chunk < like.chunks; ++chunk) {
        for (int i = group; i < std::min(group + like.ranks, micro_batches); ++i) {
          program.add(ActionKind::forward, schedule.stage_of(rank, chunk), i);
        }
      }
    }
    schedule.programs.push_back(program.take());
  }
  return complete(std::move(schedule));
}

Schedule one_micro_batch(const Schedule& like) {
  Schedule schedule{.name = "one micro-batch",
                    .ranks = like.ranks,
                    .chunks = like.chunks,
                    .micro_batches = 1,
                    .placement = like.placement,
                    .programs = {}};
  for (int rank = 0; rank < like.ranks; ++rank) {
    Program program;
    for (int stage = 0; stage < schedule.stages(); ++stage) {
      if (schedule.rank_of(stage) == rank) {
        program.next(ActionKind::forward, stage);
      }
    }
    for (int stage = schedule.stages() - 1; stage >= 0; --stage) {
      if (schedule.rank_of(stage) == rank) {
        program.next(ActionKind::backward, stage);
      }
    }
    schedule.programs.push_back(program.take());
  }
  return complete(std::move(schedule));
}

}  // namespace espalier::parallel
