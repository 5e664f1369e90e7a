#include "parallel/wire/codec.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "src/core/error.h"
#include "src/kernels/wire_codec.h"

namespace espalier::parallel {

namespace {

using kernels::WireFormat;

constexpr int64_t kBits = 4;
constexpr double kShare = 0.01;

}  // namespace

WireFormat format_of(const io::CodecSpec& codec, const CodecDefaults& defaults) {
  const auto all = kernels::wire_codecs();
  const auto found = std::ranges::find(all, codec.name, &kernels::WireCodec::name);
  check(found != all.end(), "codec \"{}\" is none of single values; here one of: {}", codec.name,
        fmt::join(io::value_codecs(), ", "));
  const kernels::WireCodec& entry = **found;
  const auto given = [](int64_t first, int64_t second, int64_t third) {
    return first > 0 ? first : second > 0 ? second : third;
  };
  WireFormat format{.code = kernels::WireCode(found - all.begin()), .bits = entry.bits};
  if (entry.form == kernels::WireForm::plain) {
    return format;
  }
  if (entry.numbers == kernels::WireNumbers::bits) {
    format.bits = static_cast<int>(given(codec.bits, defaults.bits, kBits));
    check(format.bits <= entry.most_bits, "codec \"{}\": a code has at most {} bits, not {}",
          entry.name, entry.most_bits, format.bits);
  }
  format.bucket = given(codec.bucket, defaults.bucket, entry.usual_bucket(format.bits));
  check(entry.most_bucket == 0 || format.bucket <= entry.most_bucket,
        "codec \"{}\": a bucket has at most {} values, not {}", entry.name, entry.most_bucket,
        format.bucket);
  if (entry.numbers == kernels::WireNumbers::share) {
    const double share = codec.share > 0 ? codec.share : kShare;
    format.kept = std::max<int64_t>(1, std::llround(share * static_cast<double>(format.bucket)));
  }
  format.half_meta = entry.half_meta && defaults.half_meta;
  return format;
}

std::string text_of(const WireFormat& format) {
  const kernels::WireCodec& entry = kernels::codec_of(format.code);
  io::CodecSpec spec{.name = std::string(entry.name), .bucket = format.bucket};
  if (entry.numbers == kernels::WireNumbers::share) {
    spec.share = static_cast<double>(format.kept) / static_cast<double>(format.bucket);
  } else if (entry.numbers == kernels::WireNumbers::bits) {
    spec.bits = format.bits;
  }
  return io::to_text(spec);
}

}  // namespace espalier::parallel
