#pragma once
// The list of wire codecs. To add one: a struct with its rules in a file of this folder, its
// include and its line here, a row in tests/support/codec_samples.h (CONTRIBUTING.md lists the
// tests of its values).
//
// A struct has
//   kEntry            its facts (wire_codec.h)
// and with WireForm::codes
//   kFind             statistics of a bucket's values that the codec needs
//   carry(format, found, n, tables) → Carried      the words of a bucket's header
//   Encoder(format, carried, tables), code<kRandom>(x, word)      encodes one value
//   Decoder(format, carried, values), value(code)                 decodes one value
// Both backends build their loops from these. With WireForm::whole each backend encodes and decodes
// a bucket in its own file (cpu/wire/NAME.cpp, cuda/wire/NAME.cu).
#include "src/kernels/rules/wire/eden.h"
#include "src/kernels/rules/wire/fp8.h"
#include "src/kernels/rules/wire/linear8.h"
#include "src/kernels/rules/wire/magnitudes.h"
#include "src/kernels/rules/wire/maxmin.h"
#include "src/kernels/rules/wire/percentiles.h"
#include "src/kernels/rules/wire/plain.h"
#include "src/kernels/rules/wire/sign.h"
#include "src/kernels/rules/wire/topk.h"

/// CODEC(enumerator, struct)
#define ESPALIER_WIRE_CODECS(CODEC) \
  CODEC(fp32, Fp32)                 \
  CODEC(bf16, Bf16)                 \
  CODEC(fp16, Fp16)                 \
  CODEC(fp8_e5m2, Fp8E5M2)          \
  CODEC(fp8_e4m3, Fp8E4M3)          \
  CODEC(dynamic8, Dynamic8)         \
  CODEC(dynamic8_bnb, Dynamic8Bnb)  \
  CODEC(static8, Static8)           \
  CODEC(mantissa8, Mantissa8)       \
  CODEC(linear8, Linear8)           \
  CODEC(maxmin, Maxmin)             \
  CODEC(table, Percentiles)         \
  CODEC(sign, Sign)                 \
  CODEC(topk, Topk)                 \
  CODEC(eden, Eden)

namespace espalier::kernels {

#define ESPALIER_WIRE_CODE(code, Codec) code,
enum class WireCode : uint8_t { ESPALIER_WIRE_CODECS(ESPALIER_WIRE_CODE) };
#undef ESPALIER_WIRE_CODE

/// Calls body(Codec{}) with the struct of this code.
template <class Body>
[[gnu::always_inline]] inline void with_codec(WireCode code, const Body& body) {
  switch (code) {
#define ESPALIER_WIRE_CASE(enumerator, Codec) \
  case WireCode::enumerator:                  \
    return body(wire::Codec{});
    ESPALIER_WIRE_CODECS(ESPALIER_WIRE_CASE)
#undef ESPALIER_WIRE_CASE
  }
}

}  // namespace espalier::kernels
