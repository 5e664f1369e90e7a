#pragma once
// Random settings of small trainings.
#include "io/config/config.h"
#include "tests/support/support.h"

namespace espalier::simulation {

/// Choices that a run makes by its clock, on which its bits depend.
enum class TimedChoice : uint8_t {
  none,
  kept,       ///< made at the start; a checkpoint of the first steps keeps them
  in_rounds,  ///< made again and again: two runs may differ
};

/// A drawn run.
struct Case {
  io::Config config;
  int ranks = 1;
  int ranks_a_node = 0;
  bool shares_disk = true;  ///< else only rank 0's machine sees the run directory
  TimedChoice timed = TimedChoice::none;
};
/// A pure function of `number`; the run's data and results are in `dir`. The settings may be
/// refused.
Case draw_case(uint64_t number, const testing::TempDir& dir);

}  // namespace espalier::simulation
