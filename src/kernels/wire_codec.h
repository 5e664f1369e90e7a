#pragma once
// Facts of wire codecs, and the registry. Their rules: rules/wire/codecs.h.
#include "src/core/registry.h"
#include "src/kernels/wire_format.h"

namespace espalier::kernels {

/// The numbers after a codec's name, all optional.
enum class WireNumbers : uint8_t {
  none,    ///< NAME
  bucket,  ///< NAME:BUCKET
  bits,    ///< NAME:BITS:BUCKET
  share,   ///< NAME:SHARE:BUCKET
  rank,    ///< NAME:RANK (codecs of matrices)
};

/// How a message is laid out.
enum class WireForm : uint8_t {
  plain,  ///< values, one after the other; no buckets
  codes,  ///< what buckets carry, then codes of `bits` bits, packed without gaps
  whole,  ///< buckets, each encoded as a whole
};

/// Statistics of a bucket that a codec needs (Measured, rules/wire/arithmetic.h).
enum class Find : uint8_t {
  largest,     ///< the largest magnitude
  range,       ///< the least and the largest value
  magnitudes,  ///< the largest magnitude, and the sum of magnitudes
};

struct WireCodec {
  std::string_view name;
  std::string_view help;
  WireNumbers numbers = WireNumbers::none;
  WireForm form = WireForm::codes;
  int bits = 8;             ///< of a code; 0: the format says, or no codes
  int most_bits = 8;        ///< with numbers BITS
  bool random = false;      ///< a key changes the bytes: it rounds at random
  bool half_meta = false;   ///< may carry fp16
  int64_t most_bucket = 0;  ///< values of a bucket; 0: any number, or one bucket
  /// Of a format that names no bucket; 0: one.
  int64_t (*usual_bucket)(int bits) = [](int) -> int64_t { return 1024; };
  /// Beside its codes, of a bucket (WireForm::codes).
  int64_t (*carried_bytes)(const WireFormat&) = [](const WireFormat&) -> int64_t { return 4; };
  /// All of a bucket of n values (WireForm::whole); not decreasing in n.
  int64_t (*bucket_bytes)(const WireFormat&, int64_t n) = nullptr;
};

Registry<WireCodec> wire_codecs();
/// Its place in the registry is its code.
const WireCodec& codec_of(WireCode code);

/// Where the parts of a message lie: [what buckets carry][codes]; of WireForm::whole all is carried.
struct WireLayout {
  int64_t bucket = 0;   ///< values of a full one; n when a bucket is the whole message
  int64_t buckets = 0;  ///< of a message of no values: none
  int64_t carried = 0;  ///< bytes of each full bucket
  int64_t codes = 0;    ///< where the codes begin
  int64_t bytes = 0;    ///< of the message
};
WireLayout wire_layout(const WireFormat& format, int64_t n);

}  // namespace espalier::kernels
