#include "parallel/codec.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "src/core/error.h"

namespace espalier::parallel {

namespace {

using kernels::WireCode;
using kernels::WireFormat;

struct Named {
  std::string_view name;
  WireCode code;
  int bits;        ///< 0: as asked for
  int64_t bucket;  ///< by default
};

constexpr int64_t kBucket = 1024;
constexpr std::array<Named, kernels::kWireCodes> kNamed{{
    {"fp32", WireCode::fp32, 32, 0},
    {"bf16", WireCode::bf16, 16, 0},
    {"fp16", WireCode::fp16, 16, 0},
    {"fp8-e5m2", WireCode::fp8_e5m2, 8, kBucket},
    {"fp8-e4m3", WireCode::fp8_e4m3, 8, kBucket},
    {"dynamic8", WireCode::dynamic8, 8, kBucket},
    {"dynamic8-bnb", WireCode::dynamic8_bnb, 8, kBucket},
    {"static8", WireCode::static8, 8, kBucket},
    {"mantissa8", WireCode::mantissa8, 8, kBucket},
    {"linear8", WireCode::linear8, 8, kBucket},
    {"maxmin", WireCode::maxmin, 0, 512},
    {"table", WireCode::table, 0, 0},
    {"sign", WireCode::sign, 1, kBucket},
    {"topk", WireCode::topk, 0, 16'384},
}};
constexpr int64_t kBits = 4;
constexpr double kShare = 0.01;
constexpr int64_t kMostPlaces = 65'536;  // in a bucket of topk

}  // namespace

WireFormat format_of(const io::CodecSpec& codec, const CodecDefaults& defaults) {
  const auto* const named = std::ranges::find(kNamed, codec.name, &Named::name);
  check(named != kNamed.end(), "codec \"{}\" is none of single values; here one of: {}", codec.name,
        fmt::join(io::value_codecs(), ", "));
  const auto given = [](int64_t first, int64_t second, int64_t third) {
    return first > 0 ? first : second > 0 ? second : third;
  };
  WireFormat format{.code = named->code, .bits = named->bits};
  if (format.bits == 32 || format.bits == 16) {
    return format;
  }
  format.bucket = given(codec.bucket, defaults.bucket, named->bucket);
  if (named->code == WireCode::topk) {
    check(format.bucket <= kMostPlaces, "codec \"topk\": a bucket has at most {} values, not {}",
          kMostPlaces, format.bucket);
    const double share = codec.share > 0 ? codec.share : kShare;
    format.kept = std::max<int64_t>(1, std::llround(share * static_cast<double>(format.bucket)));
  } else if (named->bits == 0) {
    format.bits = static_cast<int>(given(codec.bits, defaults.bits, kBits));
  }
  format.half_meta = named->code == WireCode::maxmin && defaults.half_meta;
  return format;
}

std::string text_of(const WireFormat& format) {
  const auto* const named = std::ranges::find(kNamed, format.code, &Named::code);
  io::CodecSpec spec{.name = std::string(named->name), .bucket = format.bucket};
  if (format.code == WireCode::topk) {
    spec.share = static_cast<double>(format.kept) / static_cast<double>(format.bucket);
  } else if (named->bits == 0) {
    spec.bits = format.bits;
  }
  return io::to_text(spec);
}

}  // namespace espalier::parallel
