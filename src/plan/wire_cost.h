#pragma once
// The bytes of n values under a codec, from its name alone: ceil(bits n / 8) for the codes, and
// what each bucket carries beside them (kernels/wire_format.h has the formats). Codecs whose size
// depends on more than the number of values (topk, powersgd) have no name here: give their bits a
// value instead.
#include <cstdint>
#include <string_view>
#include <vector>

namespace espalier::plan {

struct WireCost {
  double bits = 32;         ///< a code
  double bucket_bytes = 0;  ///< what a bucket carries
  int64_t bucket = 0;       ///< values; 0: all values are one bucket

  double bytes(int64_t values) const;
};

struct CodecChoice {
  std::string_view name = "fp32";
  int bits = 0;        ///< of maxmin and table, 1 to 8; 0: 4. Others have their own
  int64_t bucket = 0;  ///< 0: all values are one
};
/// Failure for an unknown name (the message lists all) or impossible bits.
WireCost wire_cost(const CodecChoice& codec);
std::vector<std::string_view> codec_names();
/// Whether the user chooses the bits of its codes.
bool has_bits(std::string_view codec);

}  // namespace espalier::plan
