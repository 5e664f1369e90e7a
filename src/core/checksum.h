#pragma once
// Checksums that find changed bits: of messages (parallel/transport/communicator.h) and of state at
// rest (src/train/exchange/state_check.h).
#include <cstddef>
#include <cstdint>
#include <span>

namespace espalier {

/// XXH3 (64 bits) of the bytes: the same number on every machine. Some 45 GB/s in a cache with
/// AVX2, 28 without.
uint64_t checksum(std::span<const std::byte> bytes, uint64_t seed = 0);

}  // namespace espalier
