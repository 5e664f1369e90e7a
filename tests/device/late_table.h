#pragma once
// The CPU's kernels as those of a device: table "cpu-late" keeps each call, with its arguments by value,
// until somebody waits, and then runs it on memory that the host cannot touch (tests/simt/device.h).
// Results have the CPU's bits, so a run that reads too early, keeps an address for too long or lends one
// of its own is a crash or another result.
#include "src/kernels/kernels.h"

namespace espalier::testing {

const kernels::Kernels& late_table();

}  // namespace espalier::testing
