#pragma once
// The CPU's kernels as those of a device. Table "cpu-late" stores each call, with its arguments by
// value, and runs it on a wait, on memory that the host cannot touch (tests/simt/device.h). Results
// have the CPU's bits. A run crashes or gives another result if it reads too early, keeps an
// address too long, or passes an address of host memory.
#include "src/kernels/kernels.h"

namespace espalier::testing {

const kernels::Kernels& late_table();

/// During its lifetime devices of that table have `bytes` of memory and report `reported` of it as
/// free.
class LittleMemory {
 public:
  explicit LittleMemory(size_t bytes) : LittleMemory(bytes, bytes) {}
  LittleMemory(size_t bytes, size_t reported);
  ~LittleMemory();
  LittleMemory(const LittleMemory&) = delete;
  LittleMemory& operator=(const LittleMemory&) = delete;
};

}  // namespace espalier::testing
