#pragma once
// out[i] = round(((x[0][i] + x[1][i]) + x[2][i]) + …): always in this order and in fp32, so the
// bits are the same on every rank and for every vector width. x[r], out: [n], contiguous, all fp32
// (no rounding), all bf16 or all fp16 (one rounding, to nearest even). `out` may be one of the
// inputs. Memory-bound.
#include <span>

#include "src/core/tensor.h"

namespace espalier::parallel {

void sum_in_order(std::span<const Tensor> x, const Tensor& out);

}  // namespace espalier::parallel
