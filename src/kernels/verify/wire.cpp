// Checks arguments of encoding, decoding and sums of messages; see verify.h.
#include "src/kernels/verify/cost.h"
#include "src/kernels/verify/verify.h"
#include "src/kernels/wire_codec.h"

namespace espalier::kernels {
namespace {

/// n contiguous values of any shape, and a message of their size.
void is_message(const Tensor& values, size_t wire, const WireFormat& format) {
  const int64_t n = values.count();
  verify(format);
  require(values.dtype == DType::fp32, "values must be fp32", name_of(values.dtype));
  require((values.data != nullptr || n == 0) && values.contiguous(), "values must lie side by side",
          values.shape.text());
  require(wire == wire_bytes(format, n), "the wire must have the size of the message",
          name_of(format.code), wire, wire_bytes(format, n));
}

}  // namespace

void verify(const WireFormat& format) {
  const auto& [code, bits, bucket, kept, half_meta] = format;
  const WireCodec& codec = codec_of(code);
  if (codec.numbers == WireNumbers::bits) {
    require(bits >= 1 && bits <= codec.most_bits, "bits of a code", codec.name, bits,
            codec.most_bits);
  } else {
    require(bits == codec.bits, "this code has one number of bits", codec.name, bits, codec.bits);
  }
  require(bucket >= (codec.most_bucket > 0 ? 1 : 0), "a bucket holds values, or 0 for all",
          codec.name, bucket);
  require(codec.most_bucket == 0 || bucket <= codec.most_bucket, "values of a bucket, at most",
          codec.name, bucket, codec.most_bucket);
  if (codec.numbers == WireNumbers::share) {
    require(kept >= 1 && kept <= bucket, "1 or more values of a bucket are kept", codec.name, kept,
            bucket);
  } else {
    require(kept == 0, "this codec keeps all values", codec.name, kept);
  }
  require(!half_meta || codec.half_meta, "this codec carries fp32", codec.name);
}

void verify(const EncodeArgs& args) {
  is_message(args.x, args.wire.size(), args.format);
  require(args.first >= 0, "elements are numbered from 0", args.first);
}

DryCount cost(const EncodeArgs& args) {
  return {10 * elements(args.x), traffic(args.x) + static_cast<double>(args.wire.size())};
}

void verify(const DecodeArgs& args) { is_message(args.y, args.wire.size(), args.format); }

DryCount cost(const DecodeArgs& args) {
  return {2 * elements(args.y),
          traffic(args.y) * (args.accumulate ? 2 : 1) + static_cast<double>(args.wire.size())};
}

}  // namespace espalier::kernels
