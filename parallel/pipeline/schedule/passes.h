#pragma once
// Single passes through the stages of a schedule.
#include "parallel/pipeline/schedule/schedule.h"

namespace espalier::parallel {

/// Forwards only, for evaluation, through the stages of `like`: groups of p micro-batches pass a
/// rank's chunks one after the other.
Schedule forward_only(const Schedule& like, int micro_batches);

/// One micro-batch forward and back through the stages of `like`.
Schedule one_micro_batch(const Schedule& like);

}  // namespace espalier::parallel
