#include "src/optim/norm.h"

namespace espalier::optim {

SquareSums::SquareSums(Stream& stream)
    : stream_(stream),
      staging_(stream),
      counts_(stream.arena().allocate(Memory::scratch, "sum of squares", DType::uint64,
                                      Shape{ExactSum::kWords})) {}

ExactSum SquareSums::owned(const kernels::Kernels& kernels, const sparse::Store& store,
                           const sparse::ParameterRange& range) {
  const Tensor counts = counts_.tensor();
  kernels.fill(stream_, {.x = counts.as(DType::fp32, Shape{2 * ExactSum::kWords}), .value = 0});
  for (const sparse::Parameter& parameter :
       store.parameters().subspan(range.first, range.end - range.first)) {
    if (!parameter.spec.borrowed) {
      kernels.sum_squares(stream_, {.x = store.state(parameter).gradient, .counts = counts});
    }
  }
  const Staging::Arrival arrival = staging_.fetch(counts);
  stream_.wait(arrival.mark);
  const auto* words = arrival.host.get<uint64_t>();
  const ExactSum sum =
      ExactSum::of(std::span<const uint64_t, ExactSum::kWords>(words, words + ExactSum::kWords));
  staging_.done(arrival.host);
  return sum;
}

}  // namespace espalier::optim
