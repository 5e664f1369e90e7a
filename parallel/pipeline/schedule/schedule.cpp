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

}  // namespace

std::string_view name_of(ActionKind kind) { return kActionNames[static_cast<size_t>(kind)]; }

std::string describe(const Action& action) {
  return fmt::format("{} of micro-batch {} at stage {}", name_of(action.kind), action.micro_batch,
                     action.stage);
}

}  // namespace espalier::parallel
