// What enters and leaves a part: messages of other stages, and losses.
#include <algorithm>
#include <iterator>

#include "src/train/stage/part.h"

namespace espalier::train {
namespace {

/// The bytes of a message as a tensor like `like`.
Tensor message(std::span<const std::byte> bytes, const Tensor& like) {
  return Tensor(const_cast<std::byte*>(bytes.data()), like.dtype, like.shape);
}

}  // namespace

Tensor Part::as_fp32(const Tensor& tensor) {
  return tensor.dtype == DType::fp32 ? tensor : fp32_.tensor().as(DType::fp32, tensor.shape);
}

void Part::take(std::span<const std::byte> from, const Tensor& to) {
  if (stream_.arena().dry()) {
    return;
  }
  const size_t bytes = wire_bytes(to.dtype, to.count());
  require(bytes <= from.size(), "a whole message", bytes, from.size());
  const Tensor values = as_fp32(to);
  if (!coded()) {
    stream_.copy(message(from, to), to);
  } else {
    kernels_.decode(stream_, {.wire = from.first(bytes), .y = values, .format = options_.wire});
  }
  taken_ = stream_.mark();
  if (coded() && values.data != to.data) {
    kernels_.cast(stream_, {.x = values, .y = to});
  }
}

void Part::give(const Tensor& from, std::span<std::byte> to) {
  if (stream_.arena().dry()) {
    return;
  }
  const size_t bytes = wire_bytes(from.dtype, from.count());
  require(bytes <= to.size(), "room for a whole message", bytes, to.size());
  if (!coded()) {
    stream_.copy(from, message(to, from));
    return;
  }
  const Tensor values = as_fp32(from);
  if (values.data != from.data) {
    kernels_.cast(stream_, {.x = from, .y = values});
  }
  kernels_.encode(stream_, {.x = values, .wire = to.first(bytes), .format = options_.wire});
}

/// Sums up what has come.
void Part::take_arrived() {
  while (!arriving_.empty() && stream_.passed(arriving_.front().rows.mark)) {
    const Arriving& first = arriving_.front();
    double sum = 0;
    for (const float loss : first.rows.host.span<float>()) {
      sum += static_cast<double>(loss);
    }
    losses_.push_back({.step = first.step, .sum = sum});
    staging_.done(first.rows.host);
    arriving_.pop_front();
  }
}

std::vector<Part::Loss> Part::take_losses(int64_t last) {
  const auto later = [last](const auto& loss) { return loss.step > last; };
  const auto rest = std::ranges::find_if(arriving_, later);
  if (rest != arriving_.begin()) {
    stream_.wait(std::prev(rest)->rows.mark);
    take_arrived();
  }
  const auto end = std::ranges::find_if(losses_, later);
  const std::vector<Loss> taken(losses_.begin(), end);
  losses_.erase(losses_.begin(), end);
  return taken;
}

double Part::take_loss_sum() {
  double sum = 0;
  for (const Loss& loss : take_losses()) {
    sum += loss.sum;
  }
  return sum;
}

}  // namespace espalier::train
