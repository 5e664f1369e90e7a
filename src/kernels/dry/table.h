#pragma once
// The "dry" table: the same checks of arguments as every table, no arithmetic, no memory touched.
// Each call adds its cost (operations/cost.h) to dry_count(). It requests no workspace: plans of runs
// use the plan of the table that will run (Kernels::plan).
#include "src/kernels/kernels.h"

namespace espalier::kernels::dry {

/// Adds to dry_count().
void count(const DryCount& cost);

const Kernels& table();

}  // namespace espalier::kernels::dry
