#pragma once
// Loops over the values of one bucket: numbers to codes, one in each byte, and back.
#include "src/kernels/cpu/wire/bucket.h"

namespace espalier::kernels::ESPALIER_ISA {

/// Codes of x [n]. With `words`, one for each value, rounded at random.
void encode_values(const WireFormat& format, const BucketEncoder& bucket, const float* x, int64_t n,
                   const uint32_t* words, uint8_t* codes);

/// y [n] = the values of codes, one in each byte (decode.cpp).
void decode_values(const WireFormat& format, const BucketDecoder& bucket, const uint8_t* codes,
                   int64_t n, float* y);

}  // namespace espalier::kernels::ESPALIER_ISA
