#pragma once
// The CPUs that a process may use.
#include <vector>

namespace espalier {

/// The CPUs on which the calling thread may run (its affinity mask), ascending; hardware threads
/// count as CPUs. Smaller than the machine where the launcher binds ranks, and in cpusets (Slurm,
/// containers). A container's quota of CPU time does not count: cpu_quota in
/// src/train/memory/host_memory.h. Never empty.
std::vector<int> usable_cpus();

/// The number of usable_cpus().
int usable_cpu_count();

}  // namespace espalier
