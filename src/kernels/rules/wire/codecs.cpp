#include "src/kernels/rules/wire/codecs.h"

#include <algorithm>

#include "src/kernels/wire_codec.h"

namespace espalier::kernels {

Registry<WireCodec> wire_codecs() {
#define ESPALIER_WIRE_ENTRY(code, Codec) &wire::Codec::kEntry,
  static constexpr const WireCodec* kAll[] = {ESPALIER_WIRE_CODECS(ESPALIER_WIRE_ENTRY)};
#undef ESPALIER_WIRE_ENTRY
  return kAll;
}

const WireCodec& codec_of(WireCode code) {
  const auto index = static_cast<size_t>(code);
  require(index < wire_codecs().size(), "a code of the list", index);
  return *wire_codecs()[index];
}

std::string_view name_of(WireCode code) { return codec_of(code).name; }

WireLayout wire_layout(const WireFormat& format, int64_t n) {
  const WireCodec& codec = codec_of(format.code);
  WireLayout layout;
  layout.bucket = format.bucket == 0 || format.bucket > n ? n : format.bucket;
  layout.buckets = n == 0 ? 0 : (n + layout.bucket - 1) / layout.bucket;
  if (codec.form == WireForm::whole) {
    layout.carried = codec.bucket_bytes(format, layout.bucket);
    const int64_t last = n - std::max<int64_t>(0, layout.buckets - 1) * layout.bucket;
    layout.bytes =
        n == 0 ? 0 : (layout.buckets - 1) * layout.carried + codec.bucket_bytes(format, last);
    layout.codes = layout.bytes;
    return layout;
  }
  layout.carried = codec.form == WireForm::plain ? 0 : codec.carried_bytes(format);
  layout.codes = layout.buckets * layout.carried;
  layout.bytes = layout.codes + (n / 8) * format.bits + (n % 8 * format.bits + 7) / 8;
  return layout;
}

size_t wire_bytes(const WireFormat& format, int64_t n) {
  return static_cast<size_t>(wire_layout(format, n).bytes);
}

}  // namespace espalier::kernels
