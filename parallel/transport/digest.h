#pragma once
// Checks that ranks hold equal state: compares named 64-bit digests (of parameters, masks,
// configs). Cost: one combined digest a rank (16 bytes to each peer) if all agree; else also the
// full lists.
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "parallel/transport/communicator.h"

namespace espalier::parallel {

/// Collective. If digests differ, throws a retryable Failure on every rank; it names the first
/// entry that differs and the ranks that differ from the majority.
void compare_digests(Communicator& comm, std::span<const std::string> names,
                     std::span<const uint64_t> digests);

/// Collective. Finds the first entry whose digest differs between ranks, and the ranks that differ
/// from the majority; `entry` = -1: all agree. All ranks pass the same number of entries.
struct DigestDifference {
  int64_t entry = -1;
  std::vector<int> ranks;
};
DigestDifference first_difference(Communicator& comm, std::span<const uint64_t> digests);

}  // namespace espalier::parallel
