#include "src/communication_cost/communication_model.h"

#include <algorithm>
#include <cmath>
#include <string_view>

#include "src/core/error.h"

namespace espalier::cost {
namespace {

void check_time(double ms, std::string_view what) {
  check(std::isfinite(ms) && ms >= 0, "{} = {} ms is no time: give a number >= 0", what, ms);
}

/// Both models take the time of one GPU and the part of it in fully connected layers.
void check_parts(double total_ms, double fc_ms) {
  check_time(total_ms, "time of a whole pass");
  check_time(fc_ms, "time of the fully connected layers");
  check(total_ms > 0, "the time of a whole pass is 0: give what one GPU needs for a batch");
  check(fc_ms <= total_ms,
        "the fully connected layers take {} ms of a whole pass of {} ms: a part is longer than the "
        "whole",
        fc_ms, total_ms);
}

Prediction finish(double gpus, double total_ms, double busy_ms, double exposed) {
  const double step = busy_ms + exposed;
  check(step > 0, "a step takes no time: give the times of its parts");
  return {.step_ms = step, .exposed_ms = exposed, .speedup = gpus * total_ms / step};
}

}  // namespace

double exposed_ms(std::span<const Transfer> transfers) {
  double sum = 0;
  for (const Transfer& transfer : transfers) {
    check_time(transfer.sync_ms, "a transfer");
    check_time(transfer.under_ms, "the work a transfer hides under");
    check(transfer.count >= 0, "a transfer happens {} times", transfer.count);
    sum += transfer.count * std::max(0.0, transfer.sync_ms - transfer.under_ms);
  }
  return sum;
}

Prediction predict(const NodeTimes& times) {
  check(times.gpus >= 1, "{} GPUs: at least 1 is needed", times.gpus);
  check(times.sub_batches >= 1, "{} sub-batches: at least 1 is needed", times.sub_batches);
  check_parts(times.total_ms, times.fc_ms);
  check_time(times.parallel_fc_ms, "time of a sub-batch in the fully connected layers");
  return finish(times.gpus, times.total_ms,
                times.total_ms - times.fc_ms + times.sub_batches * times.parallel_fc_ms,
                exposed_ms(times.conv) + exposed_ms(times.fc));
}

Prediction predict(const ClusterTimes& times) {
  check(times.nodes >= 1, "{} nodes: at least 1 is needed", times.nodes);
  check(times.gpus_per_node >= 1, "{} GPUs a node: at least 1 is needed", times.gpus_per_node);
  check(times.sub_batch >= 1 && times.sub_batch <= times.batch,
        "a sub-batch of {} samples is no part of a batch of {}", times.sub_batch, times.batch);
  check_parts(times.total_ms, times.fc_ms);
  check_time(times.pass_ms, "time of a sub-batch in the fully connected layers");
  check_time(times.sync_ms, "the transfer of a sub-batch");
  check_time(times.under_ms, "the work a transfer hides under");
  const int64_t passes = (times.batch - 1) / times.sub_batch + 1;
  const double others = times.nodes - 1;
  const double exposed =
      others == 0 ? 0 : std::max(times.sync_ms, others * (times.sync_ms - times.under_ms));
  return finish(static_cast<double>(times.nodes) * times.gpus_per_node, times.total_ms,
                times.total_ms - times.fc_ms + static_cast<double>(passes) * times.pass_ms,
                exposed);
}

}  // namespace espalier::cost
