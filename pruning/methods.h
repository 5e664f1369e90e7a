#pragma once
// The methods behind the table in pruning.cpp, which has checked settings, candidates and values.
#include <bit>
#include <cstdint>

#include "pruning/pruning.h"

namespace espalier::pruning {

Result prune_magnitude(std::span<const Candidate> candidates, const Settings& settings);
Result prune_random(std::span<const Candidate> candidates, const Settings& settings);
Result prune_nm(std::span<const Candidate> candidates, const Settings& settings);
Result prune_block(std::span<const Candidate> candidates, const Settings& settings);

/// Throws Bug for a candidate that does not fit together, Failure for a NaN among its values.
void check_candidate(const Candidate& candidate, bool needs_values);

/// |value| as a key: larger magnitude, larger key (NaN would be above infinity; none gets here).
inline uint32_t magnitude_key(float value) { return std::bit_cast<uint32_t>(value) & 0x7fffffffU; }

}  // namespace espalier::pruning
