#pragma once
// A pipeline schedule is a value: for each rank, the list of its actions in one step. Contents of
// the folder:
//
//   registry.h        the schedules by name, each a pure function of its sizes
//   check.h           verifies a schedule: messages match, no deadlock, every micro-batch once;
//                     counts memory
//   simulate.h        times a schedule: makespan, idle share, a timeline
//   message_driven.h  the schedule whose order depends on arrival times
//   draw.h            pictures of a timeline, as text and SVG
//   passes.h          single passes through the stages of a schedule
//   builders.h        building blocks of the schedules
//
// The network is cut into S = ranks × chunks stages of contiguous layers, numbered in forward
// order; a rank owns `chunks` of them (p. 2 of Narayanan et al., SC 2021, calls them model chunks).
// If stages s and s + 1 lie on different ranks, the activation is sent forward and its gradient is
// sent back; on one rank both stay in memory.
//
// An action names its stage and its micro-batch:
//
//   forward          x -> y, keeps what backward needs
//   backward         dy -> dx and the gradients of the weights
//   backward_input   dy -> dx only ("B" of the zero-bubble papers)
//   backward_weight  the weight gradients of an earlier backward_input ("W")
//   send_…           starts a message, does not wait
//   receive_…        waits until a message has arrived
//   reduce           the stage's gradient is complete: its all-reduce over replicas may start
//   step             the optimizer updates the stage
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace espalier::parallel {

enum class ActionKind : uint8_t {
  forward,
  backward,
  backward_input,
  backward_weight,
  send_activation,
  receive_activation,
  send_gradient,
  receive_gradient,
  reduce,
  step,
};
inline constexpr int kActionKinds = 10;
std::string_view name_of(ActionKind kind);

constexpr bool computes(ActionKind kind) { return kind <= ActionKind::backward_weight; }
constexpr bool sends(ActionKind kind) {
  return kind == ActionKind::send_activation || kind == ActionKind::send_gradient;
}
constexpr bool receives(ActionKind kind) {
  return kind == ActionKind::receive_activation || kind == ActionKind::receive_gradient;
}
/// Makes the gradient of the stage's input.
constexpr bool makes_input_gradient(ActionKind kind) {
  return kind == ActionKind::backward || kind == ActionKind::backward_input;
}
/// Adds to the gradients of the weights.
constexpr bool makes_weight_gradient(ActionKind kind) {
  return kind == ActionKind::backward || kind == ActionKind::backward_weight;
}

struct Action {
  ActionKind kind = ActionKind::forward;
  int stage = 0;
  int micro_batch = 0;  ///< of `reduce` and `step`: the last one whose gradient is complete
  bool paired = false;  ///< a forward that may overlap the backward after it (DualPipe's "F&B")
  bool operator==(const Action&) const = default;
};

/// "forward of micro-batch 3 at stage 1"
std::string describe(const Action& action);

/// Assignment of stages to ranks.
enum class Placement : uint8_t {
  loop,     ///< stage s on rank s mod p: 0 1 2 0 1 2
  v_shape,  ///< down and back up: 0 1 2 2 1 0; two chunks
};

struct Schedule {
  std::string name;
  int ranks = 1;  ///< p, of one replica
  int chunks = 1;
  int micro_batches = 1;  ///< m, of one step
  Placement placement = Placement::loop;
  /// One update of all stages at the end. Otherwise each stage steps separately, as its gradients
  /// complete.
  bool synchronous = true;
  int micro_batches_per_update = 1;           ///< not synchronous: micro-batches of an update
  std::vector<std::vector<Action>> programs;  ///< [ranks]

  int stages() const { return ranks * chunks; }
  int rank_of(int stage) const {
    return placement == Placement::v_shape && stage >= ranks ? 2 * ranks - 1 - stage
                                                             : stage % ranks;
  }
  int stage_of(int rank, int chunk) const {
    return placement == Placement::v_shape && chunk == 1 ? 2 * ranks - 1 - rank
                                                         : chunk * ranks + rank;
  }
  /// Whether stage `stage` and the one after it are on different ranks.
  bool crosses(int stage) const {
    return stage + 1 < stages() && rank_of(stage) != rank_of(stage + 1);
  }
  bool operator==(const Schedule&) const = default;
};

}  // namespace espalier::parallel
