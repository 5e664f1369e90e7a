#pragma once
// The 256 values of 8-bit codes: bitsandbytes' "dynamic map" (Dettmers and others, ICLR 2022, after
// the dynamic tree type of Dettmers, ICLR 2016).
//
// Decade j = 0..6 holds n = 2^j values on each side of zero (n = 2^(j+1) without sign): the centres
// of n equal parts of (0.1, 1), times 10^(j-6). With 0 and +1 that is 2 (1 + 2 + … + 64) + 2 = 256
// values with sign, (2 + 4 + … + 128) + 2 without. -1 is not in the map. The relative error is at
// most 0.7 % near 1 (0.35 % without sign) and doubles with every decade.
//
// Kernels compute the values within 1e-6 relative (cpu/optimizer/dynamic_code.h); they do not look
// them up.
#include <array>

#include "src/kernels/kernels.h"

namespace espalier::kernels {

/// value = map[code], ascending.
const std::array<float, 256>& dynamic_map(DynamicMap map);

}  // namespace espalier::kernels
