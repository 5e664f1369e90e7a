#pragma once
// Are the ranks still equal? Compares named 64-bit digests (of parameters, masks, configs).
// One combined digest a rank (16 bytes to each peer) when all agree; the full lists only when not.
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "parallel/transport/communicator.h"

namespace espalier::parallel {

/// Collective. Throws Failure on every rank, naming the first entry that differs and the ranks that
/// differ from the majority.
void compare_digests(Communicator& comm, std::span<const std::string> names,
                     std::span<const uint64_t> digests);

/// Collective. The first entry of which not all ranks have the same digest, and the ranks that
/// differ from the majority; `entry` = -1: all agree. Ranks have the same number of entries.
struct DigestDifference {
  int64_t entry = -1;
  std::vector<int> ranks;
};
DigestDifference first_difference(Communicator& comm, std::span<const uint64_t> digests);

}  // namespace espalier::parallel
