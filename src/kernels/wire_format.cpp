#include "src/kernels/wire_format.h"

#include "src/kernels/rules/wire_layout.h"

namespace espalier::kernels {

std::string_view name_of(WireCode code) {
  constexpr std::string_view kNames[] = {
      "fp32",    "bf16",      "fp16",    "fp8-e5m2", "fp8-e4m3", "dynamic8", "dynamic8-bnb",
      "static8", "mantissa8", "linear8", "maxmin",   "table",    "sign",     "topk"};
  static_assert(std::size(kNames) == kWireCodes);
  const auto index = static_cast<size_t>(code);
  require(index < std::size(kNames), "a code of the list", index);
  return kNames[index];
}

int wire_bits(WireCode code) {
  switch (code) {
    case WireCode::fp32:
      return 32;
    case WireCode::bf16:
    case WireCode::fp16:
      return 16;
    case WireCode::sign:
      return 1;
    case WireCode::maxmin:
    case WireCode::table:
    case WireCode::topk:
      return 0;
    default:
      return 8;
  }
}

namespace {

/// Bytes that a full bucket carries; all of its bytes for topk.
int64_t carried_bytes(const WireFormat& format) {
  switch (format.code) {
    case WireCode::fp32:
    case WireCode::bf16:
    case WireCode::fp16:
      return 0;
    case WireCode::maxmin:
      return format.half_meta ? 4 : 8;
    case WireCode::table:
      return 4 * (int64_t{1} << (format.bits - 1));
    case WireCode::topk:
      return 4 * format.kept;
    default:
      return 4;
  }
}

}  // namespace

WireLayout wire_layout(const WireFormat& format, int64_t n) {
  WireLayout layout;
  layout.bucket = format.bucket == 0 || format.bucket > n ? n : format.bucket;
  layout.buckets = n == 0 ? 0 : (n + layout.bucket - 1) / layout.bucket;
  layout.carried = carried_bytes(format);
  layout.codes = layout.buckets * layout.carried;
  layout.bytes = layout.codes + (n / 8) * format.bits + (n % 8 * format.bits + 7) / 8;
  if (format.code == WireCode::topk && n > 0) {
    const int64_t last = n - (layout.buckets - 1) * layout.bucket;
    layout.bytes -= 4 * (format.kept - (last < format.kept ? last : format.kept));
  }
  return layout;
}

size_t wire_bytes(const WireFormat& format, int64_t n) {
  return static_cast<size_t>(wire_layout(format, n).bytes);
}

}  // namespace espalier::kernels
