#pragma once
// Checks a schedule by running it with tokens instead of tensors, and counts the memory it needs.
// Cost: the number of actions.
//
// `check_schedule` throws Failure that names rank and action unless
//   - each rank only acts for stages that it owns, on micro-batches 0 … m - 1,
//   - every stage computes every micro-batch's forward, input gradient and weight gradient exactly
//     once, each after its inputs (activation, gradient of the output, the kept forward),
//   - every message that is sent is received, in the order of sending; on each channel this is the
//     order of the micro-batches,
//   - all ranks finish with at most `buffers` messages in flight on a channel (one direction
//     between two stages): a sender waits for a free buffer,
//   - `reduce` and `step` come once for each stage, after its last gradient (synchronous), or
//     after each backward (not synchronous).
#include "parallel/pipeline/schedule/schedule.h"

namespace espalier::parallel {

/// Costs of a schedule that do not depend on times.
struct ScheduleFacts {
  /// [ranks] Largest number of forwards, each of one micro-batch through one chunk, whose input
  /// gradient is still pending.
  std::vector<int> activations;
  /// [ranks] Largest number of actions `backward_input` whose weight gradient is still pending.
  std::vector<int> weight_parts;
  /// [ranks] Largest number of both together: tapes that a rank needs.
  std::vector<int> tapes;
  std::vector<int> stage_activations;   ///< [stages] as `activations`, for each stage alone
  std::vector<int> stage_weight_parts;  ///< [stages]
  /// [stages] Most updates of a stage between a forward and the update with its gradient.
  std::vector<int> delay;
  std::vector<int> messages;  ///< [ranks] sent in a step
};

ScheduleFacts check_schedule(const Schedule& schedule, int buffers);

/// The least number of buffers a channel needs.
int needed_buffers(const Schedule& schedule);

}  // namespace espalier::parallel
