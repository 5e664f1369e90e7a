#pragma once
// Codecs of WireForm::whole: each defines its two functions in its own file.
#include "src/kernels/cpu/simd/loops.h"
#include "src/kernels/rules/wire/codecs.h"

namespace espalier::kernels::ESPALIER_ISA {

template <class Codec>
void encode_whole(Stream& stream, const EncodeArgs& args);
template <class Codec>
void decode_whole(Stream& stream, const DecodeArgs& args);
#define ESPALIER_WIRE_WHOLE(code, Codec)                                   \
  template <>                                                              \
  void encode_whole<wire::Codec>(Stream & stream, const EncodeArgs& args); \
  template <>                                                              \
  void decode_whole<wire::Codec>(Stream & stream, const DecodeArgs& args);
ESPALIER_WIRE_CODECS(ESPALIER_WIRE_WHOLE)
#undef ESPALIER_WIRE_WHOLE

/// Calls body(first value, values, first byte) for each bucket of a message of n values.
template <class Body>
void for_buckets(int threads, const WireFormat& format, int64_t n, const Body& body) {
  const WireLayout layout = wire_layout(format, n);
  for_blocks(threads, layout.buckets, n, [&](int64_t number) {
    const int64_t first = number * layout.bucket;
    body(first, least(layout.bucket, n - first), number * layout.carried);
  });
}

}  // namespace espalier::kernels::ESPALIER_ISA
