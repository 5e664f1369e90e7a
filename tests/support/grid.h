#pragma once
// Runs over pipelines and replicas; their parameters are compared with those of other grids.
#include <gtest/gtest.h>

#include "tests/support/support.h"

namespace espalier::testing {

/// All stages' parameters; losses are those of rank 0.
Outcome run_grid(const io::Config& config, int ranks, const train::TrainerOptions& options = {});

void expect_equal(const Outcome& got, const Outcome& want);

/// Checks that resuming changes no bit: trains without a break, then in a second folder with a
/// break after each of the steps `stops`. Returns the run without a break.
Outcome expect_resume_is_no_break(io::Config config, int ranks, const std::vector<int64_t>& stops);

}  // namespace espalier::testing
