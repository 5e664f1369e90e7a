// Interleaved 1F1B: rank k owns stages k, p + k, 2p + k, …. Each group of p micro-batches passes
// chunk 0, then chunk 1, …; backwards pass the chunks in reverse. Warm-up 2 (p - 1 - k) + (v - 1) p
// forwards. Source: Narayanan et al., SC 2021, section 2.2; the order is that of Megatron-LM.
#include <algorithm>

#include "parallel/pipeline/schedule/builders.h"

namespace espalier::parallel {
namespace {

struct Visit {
  int chunk = 0, micro_batch = 0;
};

std::vector<Visit> visits(const ScheduleShape& shape, bool reverse) {
  std::vector<Visit> order;
  for (int group = 0; group < shape.micro_batches; group += shape.ranks) {
    for (int i = 0; i < shape.chunks; ++i) {
      for (int at = group; at < group + shape.ranks; ++at) {
        order.push_back({reverse ? shape.chunks - 1 - i : i, at});
      }
    }
  }
  return order;
}

Schedule interleaved(const ScheduleShape& shape) {
  const int ranks = shape.ranks;
  const int micro_batches = shape.micro_batches;
  const int chunks = shape.chunks;
  check(micro_batches % ranks == 0,
        "schedule interleaved needs a multiple of {0} micro-batches, one per stage, not {1}; use "
        "{2} or {3} micro-batches, or another schedule",
        ranks, micro_batches, std::max(micro_batches / ranks * ranks, ranks),
        (micro_batches / ranks + 1) * ranks);
  const Schedule schedule{.name = "interleaved",
                          .ranks = ranks,
                          .chunks = chunks,
                          .micro_batches = micro_batches,
                          .programs = {}};
  const std::vector<Visit> forwards = visits(shape, false);
  const std::vector<Visit> backwards = visits(shape, true);
  return complete(schedule, [&](int rank) {
    Program program;
    auto add = [&](ActionKind kind, const Visit& visit) {
      program.add(kind, schedule.stage_of(rank, visit.chunk), visit.micro_batch);
    };
    const size_t warm = std::min(static_cast<size_t>(2 * (ranks - 1 - rank) + (chunks - 1) * ranks),
                                 forwards.size());
    for (size_t i = 0; i < warm; ++i) {
      add(ActionKind::forward, forwards[i]);
    }
    for (size_t i = 0; i < backwards.size(); ++i) {
      if (warm + i < forwards.size()) {
        add(ActionKind::forward, forwards[warm + i]);
      }
      add(ActionKind::backward, backwards[i]);
    }
    return program.take();
  });
}

}  // namespace

extern const ScheduleEntry kInterleaved{
    .name = "interleaved",
    .help = "1f1b over several stages a rank; takes multiples of p micro-batches",
    .build = interleaved,
    .chunks = 0,
};

}  // namespace espalier::parallel
