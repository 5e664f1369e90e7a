#pragma once
// The CPU's kernels as those of a device: table "cpu-late" keeps each call, with its arguments by
// value, until somebody waits, and then runs it on memory that the host cannot touch
// (tests/simt/device.h). Results have the CPU's bits, so a run that reads too early, keeps an
// address for too long or lends one of its own is a crash or another result.
#include "src/kernels/kernels.h"

namespace espalier::testing {

const kernels::Kernels& late_table();

/// While there is one, devices of that table have so little memory, and say that `told` of it is
/// free.
class LittleMemory {
 public:
  explicit LittleMemory(size_t bytes) : LittleMemory(bytes, bytes) {}
  LittleMemory(size_t bytes, size_t told);
  ~LittleMemory();
  LittleMemory(const LittleMemory&) = delete;
  LittleMemory& operator=(const LittleMemory&) = delete;
};

}  // namespace espalier::testing
