#pragma once
// The first half of encoding: what buckets carry.
#include "src/kernels/cuda/wire/bucket.h"

namespace espalier::kernels::ESPALIER_GPU {

/// Writes what every bucket of the message carries; not of fp32, bf16, fp16, topk.
void measure_buckets(Stream& stream, const Message& message);

}  // namespace espalier::kernels::ESPALIER_GPU
