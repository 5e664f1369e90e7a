#include "src/train/exchange/timed_sum.h"

#include <algorithm>

#include "parallel/reduction/flat.h"
#include "parallel/reduction/registry.h"
#include "parallel/reduction/sra.h"
#include "src/core/rng.h"

namespace espalier::train {
namespace {

/// In (-1, 1).
std::vector<std::byte> drawn(DType type, int64_t count) {
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

std::vector<parallel::WireSegment> all_in(const kernels::WireFormat& format, int64_t elements) {
  return {{.first = 0, .count = elements, .format = format}};
}

}  // namespace

HostTimedSum::HostTimedSum(const Means& means, const kernels::WireFormat& format, int64_t elements)
    : means_(means),
      format_(format),
      memory_(drawn(means.type, elements)),
      x_{memory_.data(), means.type, Shape{elements}},
      wire_(means.kernels, means.stream, all_in(format, elements)),
      reduction_(parallel::make_reduction(means.reduction, means.comm, means.stream.arena())) {}

void HostTimedSum::sum() {
  reduction_->start({.data = x_, .wire = &wire_});
  reduction_->wait(means_.comm);
}

/// Its kernels take fp32.
void HostTimedSum::code() {
  if (codes_.empty()) {
    values_ = drawn(DType::fp32, x_.count());
    codes_.resize(kernels::wire_bytes(format_, x_.count()));
  }
  const Tensor values{values_.data(), DType::fp32, x_.shape};
  means_.kernels.encode(means_.stream, {.x = values, .wire = codes_, .format = format_});
  means_.kernels.decode(means_.stream, {.wire = codes_, .y = values, .format = format_});
}

DeviceTimedSum::DeviceTimedSum(const Means& means, const kernels::WireFormat& format,
                               int64_t elements)
    : means_(means),
      x_(means.stage.store().gradient().elements(0, elements)),
      segments_(means.wire.segments().begin(), means.wire.segments().end()),
      feedback_(means.wire.feedback()),
      key_(means.wire.key()) {
  means_.wire.set_segments(all_in(format, elements));
  means_.wire.set_feedback({});
  means_.wire.set_key(0);
  draw();
}

/// A chunk of numbers again and again, so that the host holds little.
void DeviceTimedSum::draw() {
  if (means_.stage.store().arena().dry()) {
    return;
  }
  constexpr int64_t kChunk = int64_t{1} << 18;
  const int64_t chunk = std::min(x_.count(), kChunk);
  std::vector<std::byte> numbers = drawn(x_.dtype, chunk);
  Stream& stream = means_.stage.stream();
  for (int64_t first = 0; first < x_.count(); first += chunk) {
    const int64_t count = std::min(chunk, x_.count() - first);
    stream.copy({numbers.data(), x_.dtype, Shape{count}}, x_.elements(first, count));
  }
  stream.synchronize();  // the host's numbers have been read, too
  means_.link.stream().synchronize();
}

void DeviceTimedSum::sum() {
  means_.reduction.run({.data = x_, .wire = &means_.wire}, "timing sums of gradients");
  means_.link.stream().synchronize();
}

/// In the pieces of a sum, each of whose codes begin a line. A gradient of a few numbers has no room.
void DeviceTimedSum::code() {
  const Tensor gradient = means_.stage.store().gradient();
  const size_t begin = (x_.bytes() + parallel::kLine - 1) / parallel::kLine * parallel::kLine;
  const std::span<std::byte> room =
      parallel::flat_bytes(gradient).subspan(std::min(begin, gradient.bytes()));
  const std::vector<int64_t> edges = parallel::edges_of({.data = x_}, means_.link.size());
  const int64_t piece =
      parallel::sra_piece(edges, x_.dtype, parallel::Phases::both, true, parallel::PieceOptions{});
  for (int64_t first = 0; first < x_.count(); first += piece) {
    const Tensor some = x_.elements(first, std::min(piece, x_.count() - first));
    const size_t bytes = means_.wire.bytes(first, some.count());
    if (bytes <= room.size()) {
      means_.wire.encode(some, first, room.first(bytes));
      means_.wire.decode(room.first(bytes), first, some);
    }
  }
  means_.link.stream().synchronize();
}

void DeviceTimedSum::end() {
  means_.wire.set_segments(segments_);
  means_.wire.set_feedback(feedback_);
  means_.wire.set_key(key_);
  means_.stage.kernels().fill(means_.stage.stream(), {.x = x_, .value = 0});
}

}  // namespace espalier::train
