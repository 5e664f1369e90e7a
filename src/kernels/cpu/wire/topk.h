#pragma once
// Buckets of which the largest values travel, each with its place.
#include "src/kernels/kernels.h"

namespace espalier::kernels::ESPALIER_ISA {

void encode_topk(Stream& stream, const EncodeArgs& args);
void decode_topk(Stream& stream, const DecodeArgs& args);

}  // namespace espalier::kernels::ESPALIER_ISA
