#include "parallel/wire/codec.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "src/core/error.h"

namespace espalier::parallel {

namespace {

using kernels::WireCode;
using kernels::WireFormat;

/// Values that share a scale, where nothing else is asked for.
int64_t usual_bucket(WireCode code, int bits) {
  switch (code) {
    case WireCode::maxmin:
      return bits <= 4 ? 128 : 512;  // few levels have to span less (docs/results.md)
    case WireCode::topk:
      return 16'384;
    case WireCode::table:
      return 0;  // a table a message
    default:
      return 1024;
  }
}

constexpr int64_t kBits = 4;
constexpr double kShare = 0.01;

}  // namespace

WireFormat format_of(const io::CodecSpec& codec, const CodecDefaults& defaults) {
  int number = 0;
  while (number < kernels::kWireCodes && kernels::name_of(WireCode(number)) != codec.name) {
    ++number;
  }
  check(number < kernels::kWireCodes, "codec \"{}\" is none of single values; here one of: {}",
        codec.name, fmt::join(io::value_codecs(), ", "));
  const auto code = WireCode(number);
  const auto given = [](int64_t first, int64_t second, int64_t third) {
    return first > 0 ? first : second > 0 ? second : third;
  };
  WireFormat format{.code = code, .bits = kernels::wire_bits(code)};
  if (format.bits == 32 || format.bits == 16) {
    return format;
  }
  if (format.bits == 0 && code != WireCode::topk) {
    format.bits = static_cast<int>(given(codec.bits, defaults.bits, kBits));
  }
  format.bucket = given(codec.bucket, defaults.bucket, usual_bucket(code, format.bits));
  if (code == WireCode::topk) {
    check(format.bucket <= kernels::kTopkBucket,
          "codec \"topk\": a bucket has at most {} values, not {}", kernels::kTopkBucket,
          format.bucket);
    const double share = codec.share > 0 ? codec.share : kShare;
    format.kept = std::max<int64_t>(1, std::llround(share * static_cast<double>(format.bucket)));
  }
  format.half_meta = code == WireCode::maxmin && defaults.half_meta;
  return format;
}

std::string text_of(const WireFormat& format) {
  io::CodecSpec spec{.name = std::string(kernels::name_of(format.code)), .bucket = format.bucket};
  if (format.code == WireCode::topk) {
    spec.share = static_cast<double>(format.kept) / static_cast<double>(format.bucket);
  } else if (kernels::wire_bits(format.code) == 0) {
    spec.bits = format.bits;
  }
  return io::to_text(spec);
}

}  // namespace espalier::parallel
