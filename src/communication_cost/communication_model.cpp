#include "src/communication_cost/communication_model.h"

#include <algorithm>
#include <cmath>
#include <string_view>

#include "src/core/error.h"

namespace espalier::cost {
namespace {

void check_time(double ms, std::string_view what) {
  check(std::isfinite(ms) && ms >= 0, "{} = {} ms is not a duration; set a number of at least 0",
        what, ms);
}

/// Both models take the time of one GPU and the part of it in fully connected layers.
void check_parts(double total_ms, double fc_ms) {
  check_time(total_ms, "time of a whole pass");
  check_time(fc_ms, "time of the fully connected layers");
  check(total_ms > 0, "--compute-ms is 0; set the time of a batch on one GPU");
  check(fc_ms <= total_ms,
        "--fc-ms = {} exceeds --compute-ms = {}, which includes it; set a smaller --fc-ms", fc_ms,
        total_ms);
}

Prediction finish(double gpus, double total_ms, double busy_ms, double exposed) {
  const double step = busy_ms + exposed;
  check(step > 0, "the predicted step takes 0 ms; set the times of its parts");
  return {.step_ms = step, .exposed_ms = exposed, .speedup = gpus * total_ms / step};
}

}  // namespace

double exposed_ms(std::span<const Transfer> transfers) {
  double sum = 0;
  for (const Transfer& transfer : transfers) {
    check_time(transfer.sync_ms, "a transfer");
    check_time(transfer.under_ms, "the work a transfer hides under");
    check(transfer.count >= 0, "a transfer has count {}; set 0 or more (SYNC:UNDER:COUNT)",
          transfer.count);
    sum += transfer.count * std::max(0.0, transfer.sync_ms - transfer.under_ms);
  }
  return sum;
}

Prediction predict(const NodeTimes& times) {
  check(times.gpus >= 1, "{} GPUs are too few; set at least 1", times.gpus);
  check(times.sub_batches >= 1, "{} sub-batches are too few; set at least 1", times.sub_batches);
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
        "a sub-batch of {} samples does not fit a batch of {}; set 1 up to the batch",
        times.sub_batch, times.batch);
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
