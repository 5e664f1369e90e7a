#include "src/plan/wire_cost.h"

#include <fmt/ranges.h>

#include <array>
#include <cmath>

#include "src/core/error.h"

namespace espalier::plan {
namespace {

struct Codec {
  std::string_view name;
  int bits;             ///< where has_bits: unless others are chosen
  double bucket_bytes;  ///< of a table: for each of its magnitudes
};
constexpr std::array<Codec, 13> kCodecs{{{"fp32", 32, 0},
                                         {"bf16", 16, 0},
                                         {"fp16", 16, 0},
                                         {"fp8-e5m2", 8, 4},
                                         {"fp8-e4m3", 8, 4},
                                         {"dynamic8", 8, 4},
                                         {"dynamic8-bnb", 8, 4},
                                         {"static8", 8, 4},
                                         {"mantissa8", 8, 4},
                                         {"linear8", 8, 4},
                                         {"maxmin", 4, 8},
                                         {"table", 4, 4},
                                         {"sign", 1, 4}}};

}  // namespace

double WireCost::bytes(int64_t values) const {
  if (values == 0) {
    return 0;
  }
  const int64_t buckets = bucket == 0 ? 1 : (values - 1) / bucket + 1;
  return std::ceil(bits * static_cast<double>(values) / 8) +
         bucket_bytes * static_cast<double>(buckets);
}

WireCost wire_cost(const CodecChoice& codec) {
  check(codec.bucket >= 0, "codec \"{}\": a bucket of {} values", codec.name, codec.bucket);
  for (const Codec& known : kCodecs) {
    if (known.name != codec.name) {
      continue;
    }
    int bits = known.bits;
    if (has_bits(codec.name) && codec.bits != 0) {
      check(codec.bits >= 1 && codec.bits <= 8, "codec \"{}\" has codes of 1 to 8 bits, not {}",
            codec.name, codec.bits);
      bits = codec.bits;
    }
    check(codec.bits == 0 || codec.bits == bits, "codec \"{}\" has codes of {} bits, not {}",
          codec.name, bits, codec.bits);
    const double magnitudes = codec.name == "table" ? std::exp2(bits - 1) : 1;
    return {.bits = static_cast<double>(bits),
            .bucket_bytes = known.bucket_bytes * magnitudes,
            .bucket = codec.bucket};
  }
  fail("codec \"{}\" is unknown; available: {}", codec.name, fmt::join(codec_names(), ", "));
}

bool has_bits(std::string_view codec) { return codec == "maxmin" || codec == "table"; }

std::vector<std::string_view> codec_names() {
  std::vector<std::string_view> names;
  for (const Codec& known : kCodecs) {
    names.push_back(known.name);
  }
  return names;
}

}  // namespace espalier::plan
