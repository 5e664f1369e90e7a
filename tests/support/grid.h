#pragma once
// Runs over pipelines and replicas; their parameters are compared with those of other grids.
#include <gtest/gtest.h>

#include "tests/support/support.h"

namespace espalier::testing {

/// All stages' parameters; losses are those of rank 0.
Outcome run_grid(const io::Config& config, int ranks, const train::TrainerOptions& options = {});

void expect_equal(const Outcome& got, const Outcome& want);

/// Checks that resuming changes no bit: trains without a break, then in a second folder to `stop`
/// and on from there. Returns the run without a break. The config saves a checkpoint at `stop`.
Outcome expect_resume_is_no_break(io::Config config, int ranks, int64_t stop);

}  // namespace espalier::testing
