#pragma once
// Files that killed jobs leave in shared memory: Open MPI's (up to 4 MiB a rank) and those of
// StartWatch. Runs that are restarted for weeks would fill the memory with them.
#include <chrono>
#include <filesystem>

namespace espalier::parallel {

/// Removes the files in `folder` that have the name of such a file, of this user and machine, if
/// they were made at least `age` ago and no process maps them. Ignores errors. Returns how many.
/// Cost: one reading of /proc/*/maps if there are old files.
int remove_leftover_segments(const std::filesystem::path& folder = "/dev/shm",
                             std::chrono::seconds age = std::chrono::minutes(1));

}  // namespace espalier::parallel
