#pragma once
// out[i] = ((x[0][i] + x[1][i]) + x[2][i]) + …: always in this order, so the bits are the same
// whoever computes it and with whatever vector width. `out` may be one of the inputs. Bound by
// memory.
#include <cstdint>
#include <span>

namespace espalier::parallel {

void sum_in_order(std::span<const float* const> x, float* out, int64_t count);

}  // namespace espalier::parallel
