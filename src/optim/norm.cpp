#include "src/optim/norm.h"

#include <algorithm>

namespace espalier::optim {
namespace {

/// Of the host at a time: work for all threads, and sums that stay in a cache.
constexpr int64_t kBlocks = 4096;

int64_t blocks_of(int64_t count) { return (count + kernels::kSumBlock - 1) / kernels::kSumBlock; }

}  // namespace

void SquareSums::make_room(int64_t blocks) {
  if (!stream_.arena().on_device()) {
    host_.resize(static_cast<size_t>(kBlocks));
    room_ = kBlocks;
    sums_ = Tensor(host_.data(), DType::uint8, Shape{8 * room_});
  } else if (room_ < blocks) {
    on_device_.release();
    on_device_ = stream_.arena().allocate(Memory::scratch, "sums of squares", DType::uint8,
                                          Shape{8 * blocks});
    room_ = blocks;
    sums_ = on_device_.tensor();
  }
}

/// Adds what kernels have summed up so far.
void SquareSums::take(ExactSum& sum) {
  const Staging::Arrival arrival = staging_.fetch(sums_.elements(0, 8 * used_));
  stream_.wait(arrival.mark);
  const auto* blocks = reinterpret_cast<const double*>(arrival.host.get<uint8_t>());
  for (int64_t block = 0; block < used_; ++block) {
    sum.add(blocks[block]);
  }
  staging_.done(arrival.host);
  used_ = 0;
}

ExactSum SquareSums::owned(const kernels::Kernels& kernels, const sparse::Store& store,
                           const sparse::ParameterRange& range) {
  std::vector<Tensor> gradients;
  int64_t all = 0;
  for (const sparse::Parameter& parameter :
       store.parameters().subspan(range.first, range.end - range.first)) {
    if (!parameter.spec.borrowed) {
      gradients.push_back(store.state(parameter).gradient);
      all += blocks_of(gradients.back().count());
    }
  }
  make_room(all);
  ExactSum sum;
  for (const Tensor& gradient : gradients) {
    const int64_t most = room_ * kernels::kSumBlock;
    for (int64_t first = 0; first < gradient.count(); first += most) {
      const Tensor part = gradient.elements(first, std::min(most, gradient.count() - first));
      if (used_ + blocks_of(part.count()) > room_) {
        take(sum);
      }
      kernels.sum_squares(stream_, {.x = part, .sums = static_cast<double*>(sums_.data) + used_});
      used_ += blocks_of(part.count());
    }
  }
  take(sum);
  return sum;
}

}  // namespace espalier::optim
