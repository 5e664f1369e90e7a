#pragma once
// The code that keeps the largest values of each bucket.
#include "src/kernels/cuda/wire/bucket.h"

namespace espalier::kernels::ESPALIER_GPU {

void encode_topk(Stream& stream, const Message& message);
void decode_topk(Stream& stream, const Message& message, bool accumulate);

}  // namespace espalier::kernels::ESPALIER_GPU
