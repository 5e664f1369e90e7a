#include "src/optim/norm.h"

#include <algorithm>
#include <vector>

namespace espalier::optim {
namespace {

/// Elements of one call of the kernel: work for all threads, and sums that stay in a cache.
constexpr int64_t kChunk = 4096 * kernels::kSumBlock;

Tensor part_of(const Tensor& flat, int64_t first, int64_t count) {
  auto* data =
      static_cast<std::byte*>(flat.data) + static_cast<size_t>(first) * size_of(flat.dtype);
  return Tensor(data, flat.dtype, Shape{count});
}

}  // namespace

ExactSum owned_squares(Stream& stream, const kernels::Kernels& kernels, const sparse::Store& store,
                       const sparse::ParameterRange& range) {
  ExactSum sum;
  std::vector<double> sums(static_cast<size_t>(kChunk / kernels::kSumBlock));
  for (const sparse::Parameter& parameter :
       store.parameters().subspan(range.first, range.end - range.first)) {
    if (parameter.spec.borrowed) {
      continue;
    }
    const Tensor gradient = store.state(parameter).gradient;
    for (int64_t first = 0; first < gradient.count(); first += kChunk) {
      const int64_t count = std::min(kChunk, gradient.count() - first);
      kernels.sum_squares(stream, {.x = part_of(gradient, first, count), .sums = sums.data()});
      const int64_t blocks = (count + kernels::kSumBlock - 1) / kernels::kSumBlock;
      for (int64_t block = 0; block < blocks; ++block) {
        sum.add(sums[static_cast<size_t>(block)]);
      }
    }
  }
  return sum;
}

}  // namespace espalier::optim
