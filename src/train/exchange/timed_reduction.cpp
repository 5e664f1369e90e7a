#include "src/train/exchange/timed_reduction.h"

#include <algorithm>

#include "parallel/flat.h"
#include "parallel/reduction/sra.h"
#include "src/core/rng.h"

namespace espalier::train {

std::vector<std::byte> random_values(DType type, int64_t count) {
  std::vector<std::byte> memory(static_cast<size_t>(count) * size_of(type));
  const Tensor x{memory.data(), type, Shape{count}};
  with_number(type, [&]<class Number>(Number) {
    for (int64_t i = 0; i < count; ++i) {
      const auto bits = static_cast<int32_t>(mix(1, static_cast<uint64_t>(i)) >> 32);
      x.get<Number>()[i] = from_float<Number>(static_cast<float>(bits) * 0x1p-31F);
    }
  });
  return memory;
}

std::vector<parallel::WireSegment> one_segment(const kernels::WireFormat& format,
                                               int64_t elements) {
  return {{.first = 0, .count = elements, .format = format}};
}

DeviceTimedReduction::DeviceTimedReduction(const Context& context,
                                           const kernels::WireFormat& format, int64_t elements)
    : context_(context),
      x_(context.stage.store().gradient().elements(0, elements)),
      segments_(context.wire.segments().begin(), context.wire.segments().end()),
      feedback_(context.wire.feedback()),
      key_(context.wire.key()) {
  context_.wire.set_segments(one_segment(format, elements));
  context_.wire.set_feedback({});
  context_.wire.set_key(0);
  fill_random();
}

/// Repeats one chunk of random values, so that the host needs little memory.
void DeviceTimedReduction::fill_random() {
  if (context_.stage.store().arena().dry()) {
    return;
  }
  constexpr int64_t kChunk = int64_t{1} << 18;
  const int64_t chunk = std::min(x_.count(), kChunk);
  std::vector<std::byte> values = random_values(x_.dtype, chunk);
  Stream& stream = context_.stage.stream();
  for (int64_t first = 0; first < x_.count(); first += chunk) {
    const int64_t count = std::min(chunk, x_.count() - first);
    stream.copy({values.data(), x_.dtype, Shape{count}}, x_.elements(first, count));
  }
  stream.synchronize();  // the host's chunk has been read
  context_.link.stream().synchronize();
}

void DeviceTimedReduction::reduce() {
  context_.reduction.run({.data = x_, .wire = &context_.wire}, "timing sums of gradients");
  context_.link.stream().synchronize();
}

/// Uses the pieces of a reduction; the codes of each begin a cache line. A gradient of a few values
/// is too small for codes.
void DeviceTimedReduction::encode_decode() {
  const Tensor gradient = context_.stage.store().gradient();
  const size_t begin = (x_.bytes() + parallel::kLine - 1) / parallel::kLine * parallel::kLine;
  const std::span<std::byte> codes =
      parallel::flat_bytes(gradient).subspan(std::min(begin, gradient.bytes()));
  const std::vector<int64_t> edges = parallel::edges_of({.data = x_}, context_.link.size());
  const int64_t piece =
      parallel::sra_piece(edges, x_.dtype, parallel::Phases::both, true, parallel::PieceOptions{});
  for (int64_t first = 0; first < x_.count(); first += piece) {
    const Tensor some = x_.elements(first, std::min(piece, x_.count() - first));
    const size_t bytes = context_.wire.bytes(first, some.count());
    if (bytes <= codes.size()) {
      context_.wire.encode(some, first, codes.first(bytes));
      context_.wire.decode(codes.first(bytes), first, some);
    }
  }
  context_.link.stream().synchronize();
}

void DeviceTimedReduction::end() {
  context_.wire.set_segments(segments_);
  context_.wire.set_feedback(feedback_);
  context_.wire.set_key(key_);
  context_.stage.kernels().fill(context_.stage.stream(), {.x = x_, .value = 0});
}

}  // namespace espalier::train
