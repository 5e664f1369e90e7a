// Messages of gradients in each registered codec: [codec][bits][bucket: 2 bytes][share][values: 2
// bytes][flags: 1 half_meta, 2 accumulate][the message, filled up with zeros]. Any bytes decode.
#include <algorithm>
#include <memory>

#include "parallel/wire/codec.h"
#include "src/core/error.h"
#include "src/kernels/kernels.h"
#include "tests/fuzz/fuzz.h"

namespace espalier::fuzz {
namespace {

void decode(Input input) {
  Draws draws(input);
  const auto codecs = kernels::wire_codecs();
  const kernels::WireCodec& codec = *codecs[draws.below(codecs.size(), 1)];
  parallel::CodecSpec spec{.name = std::string(codec.name)};
  spec.bits = static_cast<int64_t>(draws.below(17, 1));
  spec.bucket = static_cast<int64_t>(draws.take(2));
  spec.share = static_cast<double>(draws.take(1)) / 255;
  const auto count = static_cast<int64_t>(draws.below(5000, 2));
  const uint64_t flags = draws.take(1);
  // Without those numbers that the codec does not take.
  const auto takes = [&](kernels::WireNumbers numbers) { return codec.numbers == numbers; };
  spec.bits = takes(kernels::WireNumbers::bits) ? spec.bits : 0;
  spec.share = takes(kernels::WireNumbers::share) ? spec.share : 0;
  spec.bucket = takes(kernels::WireNumbers::none) ? 0 : spec.bucket;
  spec.half_meta = codec.half_meta && (flags & 1) != 0;
  const kernels::WireFormat format =
      parallel::format_of(parallel::parse_codec(parallel::to_text(spec)));
  require(parallel::format_of(parallel::parse_codec(parallel::text_of(format))) == format,
          "a format is its text", parallel::text_of(format));

  // Memory of the exact size, so that the sanitizer sees the first byte beyond.
  const size_t bytes = kernels::wire_bytes(format, count);
  const auto message = std::make_unique<uint8_t[]>(bytes);
  const Input given = draws.part(bytes);
  std::ranges::copy(given, message.get());
  const auto values = std::make_unique<float[]>(static_cast<size_t>(count));
  Arena arena;
  Stream stream(arena, 1);
  kernels::by_name("cpu").decode(stream, {.wire = std::as_bytes(std::span(message.get(), bytes)),
                                          .y = Tensor(values.get(), DType::fp32, Shape{count}),
                                          .format = format,
                                          .accumulate = (flags & 2) != 0});
}

const Registration kTarget({"wire", decode});

}  // namespace
}  // namespace espalier::fuzz
