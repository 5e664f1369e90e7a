#pragma once
// The host memory that a run may use on a machine, and whether the plans of its ranks fit.
//
// Limits, all read when a run starts:
//   Slurm    SLURM_MEM_PER_NODE, SLURM_MEM_PER_CPU x SLURM_CPUS_ON_NODE or
//            SLURM_MEM_PER_GPU x SLURM_GPUS_ON_NODE, in MiB; 0: none
//   cgroup   the smallest limit of this process's group and those above it, plus the swap that it
//            may use: memory.max (version 2) or memory.limit_in_bytes (version 1)
//   machine  memory and swap (/proc/meminfo)
// A limit that cannot be read is none.
#include <filesystem>
#include <limits>
#include <string>

#include "parallel/transport/communicator.h"
#include "src/train/memory/budget.h"

namespace espalier::train {

struct HostLimit {
  size_t bytes = std::numeric_limits<size_t>::max();  ///< of all ranks of the run on this machine
  std::string name{};  ///< "the Slurm job's memory (SLURM_MEM_PER_NODE)"
  std::string fix{};
};

/// The smallest limit. `root`: the folder of proc and sys (tests replace it).
HostLimit host_limit(const std::filesystem::path& root);

/// CPUs' worth of time that the control groups of this process allow: the least cpu.max (version 2)
/// of its group and of those above. Infinity: no quota.
double cpu_quota(const std::filesystem::path& root);

/// Bytes of host memory that a rank needs by its plan.
size_t host_needed(const MemoryPlan& plan, bool on_device);

/// Collective. `mine`: the plan of this rank. Throws Failure on all ranks, with need, limit and
/// fix, if the ranks of one machine together need more than its limit. Returns a note for the user
/// if their copies of checkpoints do not fit, too; else empty.
std::string check_host(const MemoryPlan& mine, bool on_device, parallel::Communicator& comm,
                       const std::filesystem::path& root);

/// Whether `ranks` copies of so many bytes leave half of a machine's free memory; true if the
/// system does not tell. Without train.memory_budget and a limit nothing else limits the copies of
/// checkpoints.
bool has_memory_for_copies(size_t copy, int ranks, const std::filesystem::path& root);

}  // namespace espalier::train
