#include "parallel/pipeline/schedule/passes.h"

#include <algorithm>

#include "parallel/pipeline/schedule/builders.h"

namespace espalier::parallel {

Schedule forward_only(const Schedule& like, int micro_batches) {
  const Schedule empty = placed_as(like, "evaluation", micro_batches);
  return complete(empty, [&](int rank) {
    Program program;
    for (int group = 0; group < micro_batches; group += like.ranks) {
      for (int chunk = 0; chunk < like.chunks; ++chunk) {
        for (int i = group; i < std::min(group + like.ranks, micro_batches); ++i) {
          program.add(ActionKind::forward, empty.stage_of(rank, chunk), i);
        }
      }
    }
    return program.take();
  });
}

Schedule one_micro_batch(const Schedule& like) {
  const Schedule empty = placed_as(like, "one micro-batch", 1);
  return complete(empty, [&](int rank) {
    Program program;
    for (int stage = 0; stage < empty.stages(); ++stage) {
      if (empty.rank_of(stage) == rank) {
        program.next(ActionKind::forward, stage);
      }
    }
    for (int stage = empty.stages() - 1; stage >= 0; --stage) {
      if (empty.rank_of(stage) == rank) {
        program.next(ActionKind::backward, stage);
      }
    }
    return program.take();
  });
}

}  // namespace espalier::parallel
