#pragma once
// Properties of wire codecs, and the registry. Their rules: rules/wire/codecs.h.
#include "src/core/registry.h"
#include "src/kernels/wire_format.h"

namespace espalier::kernels {

/// The numbers after a codec's name, all optional.
enum class WireNumbers : uint8_t {
  none,    ///< NAME
  bucket,  ///< NAME:BUCKET
  bits,    ///< NAME:BITS:BUCKET
  share,   ///< NAME:SHARE:BUCKET
};

/// How a message is laid out.
enum class WireForm : uint8_t {
  plain,  ///< values, one after the other; no buckets
  codes,  ///< bucket headers, then codes of `bits` bits, packed without gaps
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
  int bits = 8;             ///< of a code; 0: set by the format, or no codes
  int most_bits = 8;        ///< maximum, if BITS can be given
  bool random = false;      ///< rounding is stochastic if there is a key
  bool half_meta = false;   ///< headers may be fp16
  int64_t most_bucket = 0;  ///< values in a bucket at most; 0: unlimited, or one bucket
  /// Bucket size if the format names none; 0: one bucket.
  int64_t (*usual_bucket)(int bits) = [](int) -> int64_t { return 1024; };
  /// Bytes of a bucket's header (WireForm::codes).
  int64_t (*carried_bytes)(const WireFormat&) = [](const WireFormat&) -> int64_t { return 4; };
  /// Bytes of a bucket of n values (WireForm::whole); not decreasing in n.
  int64_t (*bucket_bytes)(const WireFormat&, int64_t n) = nullptr;
};

Registry<WireCodec> wire_codecs();
/// A code is an index into the registry.
const WireCodec& codec_of(WireCode code);

/// Layout of a message: [bucket headers][codes]; with WireForm::whole, the header is the whole
/// bucket.
struct WireLayout {
  int64_t bucket = 0;   ///< values of a full bucket; n if the message is one bucket
  int64_t buckets = 0;  ///< 0 for an empty message
  int64_t carried = 0;  ///< header bytes of each full bucket
  int64_t codes = 0;    ///< offset of the codes
  int64_t bytes = 0;    ///< size of the message
};
WireLayout wire_layout(const WireFormat& format, int64_t n);

}  // namespace espalier::kernels
