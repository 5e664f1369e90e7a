#pragma once
// The "dry" table: checks arguments like every table; no arithmetic, no memory access. Each call
// adds its cost (verify/cost.h) to dry_count(). It requests no workspace: plans of runs use the
// plan of the table that will run (Kernels::plan).
#include "src/kernels/kernels.h"

namespace espalier::kernels::dry {

/// Adds `cost` to dry_count().
void count(const DryCount& cost);

const Kernels& table();

}  // namespace espalier::kernels::dry
