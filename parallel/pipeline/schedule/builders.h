#pragma once
// The schedules by name, each a pure function of its sizes. Costs in forward times F, backward
// B = Bi + W (input and weights) of one stage and one micro-batch; docs/schedules.md has the table.
//
//   gpipe          all forwards, then all backwards               Huang et al., NeurIPS 2019
//   1f1b           one forward, one backward                      Narayanan et al., SOSP 2019 (flushed)
//   interleaved    1f1b over v chunks a rank                      Narayanan et al., SC 2021
//   zb-h1, zb-h2   1f1b with the weights' part put off into idle time; h2 holds twice the activations
//   zb-v           two chunks a rank, there and back              all three: Qi et al., ICLR 2024
//   dualpipe-v     likewise, forwards beside backwards            DeepSeek-V3, 2024
//   async          1f1b that never drains; each stage steps by itself   Narayanan et al., SOSP 2019
//   message-driven whatever has arrived, backward first           Singh & Bhatele, IPDPS 2022; its order
//                  depends on times, see simulate.h
//
// Builders throw Failure with the fix for sizes that a schedule cannot use.
#include <span>

#include "parallel/pipeline/schedule/schedule.h"

namespace espalier::parallel {

struct ScheduleShape {
  int ranks = 1;          ///< p
  int micro_batches = 1;  ///< m
  int chunks = 1;         ///< v, for interleaved; the others have their own
  int every = 1;          ///< micro-batches of an update, of async
};

Schedule gpipe(const ScheduleShape& shape);
Schedule one_forward_one_backward(const ScheduleShape& shape);
Schedule interleaved(const ScheduleShape& shape);

enum class ZeroBubble : uint8_t { h1, h2 };
Schedule zero_bubble(const ScheduleShape& shape, ZeroBubble variant);
Schedule zero_bubble_v(const ScheduleShape& shape);
Schedule dualpipe_v(const ScheduleShape& shape);

/// Steps after each `every` backwards; the micro-batches are those between two drains of the
/// pipeline. Of one rank with several chunks: what as many ranks would do, one action at a time in
/// an order that they could have, so every stage sees the same weights and delays (a delay
/// injector).
Schedule asynchronous(const ScheduleShape& shape);

/// Forwards alone, for evaluation: through the stages of `like`, as many micro-batches as wanted.
Schedule forward_only(const Schedule& like, int micro_batches);

/// One micro-batch forward and back through the stages of `like`.
Schedule one_micro_batch(const Schedule& like);

/// Names that `make_schedule` knows, for help and errors.
std::span<const std::string_view> schedule_names();
/// Chunks a rank that a schedule has; `virtual_stages` where it leaves the choice.
int chunks_of(std::string_view name, int virtual_stages);
/// By name; "zero-bubble" is zb-h1. Not "message-driven".
Schedule make_schedule(std::string_view name, const ScheduleShape& shape);

}  // namespace espalier::parallel
