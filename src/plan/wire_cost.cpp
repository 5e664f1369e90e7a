#include "src/plan/wire_cost.h"

#include <fmt/ranges.h>

#include <array>
#include <cmath>

#include "src/core/error.h"

namespace espalier::plan {
namespace {

struct Codec {
  std::string_view name;
  int bits;             ///< 0: given by the user
  double bucket_bytes;  ///< of a table: for each of its magnitudes
};
constexpr int kDefaultBits = 4;
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
                                         {"maxmin", 0, 8},
                                         {"table", 0, 4},
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
    const int wanted = codec.bits == 0 && known.bits == 0 ? kDefaultBits : codec.bits;
    check(known.bits == 0 ? wanted >= 1 && wanted <= 8 : wanted == 0 || wanted == known.bits,
          "codec \"{}\" has no codes of {} bits; {}", codec.name, codec.bits,
          known.bits == 0 ? "it has 1 to 8" : fmt::format("it has {}", known.bits));
    const int bits = known.bits == 0 ? wanted : known.bits;
    const double magnitudes = codec.name == "table" ? std::exp2(bits - 1) : 1;
    return {.bits = static_cast<double>(bits),
            .bucket_bytes = known.bucket_bytes * magnitudes,
            .bucket = codec.bucket};
  }
  fail("codec \"{}\" is unknown; available: {}", codec.name, fmt::join(codec_names(), ", "));
}

std::vector<std::string_view> codec_names() {
  std::vector<std::string_view> names;
  for (const Codec& known : kCodecs) {
    names.push_back(known.name);
  }
  return names;
}

}  // namespace espalier::plan
