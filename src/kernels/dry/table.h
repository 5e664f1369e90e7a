#pragma once
// The "dry" table: the same checks of shapes as a CPU table, no arithmetic, no memory touched. Each
// call adds to dry_count() the flops of its formula (an exponential counts as 20, a square root or
// a division as one) and the bytes that must cross the memory bus when every operand is read or
// written once.
#include "src/kernels/kernels.h"

namespace espalier::kernels::dry {

const Kernels& table();

}  // namespace espalier::kernels::dry
