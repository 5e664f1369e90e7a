#pragma once
// Codecs by name: the wire format that stands behind each name of `parallel.codec`.
#include <string_view>

#include "io/config/codec_spec.h"
#include "src/kernels/wire_format.h"

namespace espalier::parallel {

struct CodecDefaults {
  int64_t bits = 0;  ///< of maxmin and table; 0: 4
  int64_t bucket =
      0;  ///< 0: 128 of maxmin up to 4 bits, 512 beyond, 16,384 of topk, the whole message of table, else 1,024
  bool half_meta = false;  ///< of maxmin
};

/// What single values travel as; what the spec leaves open is as in `defaults`. Throws Failure for
/// a codec that is none of single values (powersgd and those that choose among others).
kernels::WireFormat format_of(const io::CodecSpec& codec, const CodecDefaults& defaults = {});

/// "maxmin:4:512", for people; parse_codec reads it.
std::string text_of(const kernels::WireFormat& format);

}  // namespace espalier::parallel
