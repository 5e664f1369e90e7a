#include "src/optim/norm.h"

#include <cmath>

namespace espalier::optim {

GradientNorm::GradientNorm(Stream& stream, const kernels::Kernels& kernels, double clip)
    : stream_(stream),
      kernels_(kernels),
      most_(clip),
      staging_(stream),
      counts_(stream.arena().allocate(Memory::scratch, "sum of squares", DType::uint64,
                                      Shape{ExactSum::kWords})),
      clip_(stream.arena().allocate(Memory::scratch, "norm and factor", DType::fp32, Shape{2})) {}

bool GradientNorm::enqueue(const sparse::Store& store, const sparse::ParameterRange& range,
                           const Sum& sum) {
  const Tensor counts = counts_.tensor();
  // Excludes the last word: it marks a non-finite gradient until `result` clears it.
  kernels_.fill(stream_, {.x = counts.as(DType::fp32, Shape{2 * ExactSum::kDigits}), .value = 0});
  std::vector<kernels::SumSquaresArgs> squares;
  for (const sparse::Parameter& parameter :
       store.parameters().subspan(range.first, range.end - range.first)) {
    if (parameter.spec.counts()) {
      squares.push_back({.x = store.state(parameter).gradient, .counts = counts});
    }
  }
  kernels_.sum_squares(stream_, squares);
  const Tensor clip = clip_.tensor();
  if (sum.on_device) {
    sum.on_device(counts);
  }
  if (!sum.on_host) {
    kernels_.clip(stream_, {.counts = counts,
                            .norm = clip.elements(0, 1),
                            .factor = clip.elements(1, 1),
                            .clip = most_,
                            .scale = scale_});
    return true;
  }
  const Staging::Arrival digits = staging_.fetch(counts);
  stream_.wait(digits.mark);
  auto words = ExactSum::of(digits.host.span<uint64_t>().first<ExactSum::kWords>()).words();
  staging_.done(digits.host);
  sum.on_host(words);
  const kernels::Clip found =
      kernels::clip_of(std::sqrt(ExactSum::of(words).value()), most_, scale_);
  const Tensor host = staging_.host_memory(clip);
  host.get<float>()[0] = found.norm;
  host.get<float>()[1] = found.factor;
  staging_.send(host, clip);
  return std::isfinite(found.factor);
}

kernels::Clip GradientNorm::result(const Staging::Arrival& arrival) {
  stream_.wait(arrival.mark);
  const auto* found = arrival.host.get<float>();
  const kernels::Clip clip{.norm = found[0], .factor = found[1]};
  staging_.done(arrival.host);
  if (!std::isfinite(clip.factor)) {
    const Tensor counts = counts_.tensor();
    kernels_.fill(stream_, {.x = counts.as(DType::fp32, Shape{2 * ExactSum::kWords}), .value = 0});
  }
  return clip;
}

}  // namespace espalier::optim
