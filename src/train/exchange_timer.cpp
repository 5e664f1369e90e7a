#include "src/train/exchange_timer.h"

#include <algorithm>
#include <array>
#include <limits>
#include <vector>

#include "parallel/collectives.h"
#include "parallel/reduction/by_name.h"
#include "src/core/rng.h"
#include "src/core/trace.h"

namespace espalier::train {
namespace {

constexpr int kRepeats = 3;  // and one to warm up

std::vector<float> drawn(int64_t count) {
  std::vector<float> x(static_cast<size_t>(count));
  for (size_t i = 0; i < x.size(); ++i) {
    x[i] = static_cast<float>(static_cast<int32_t>(mix(1, i) >> 32)) * 0x1p-31F;
  }
  return x;
}

Tensor view_of(std::vector<float>& x) {
  return {x.data(), DType::fp32, Shape{static_cast<int64_t>(x.size())}};
}

}  // namespace

ExchangeTimer::ExchangeTimer(parallel::Communicator& comm, const kernels::Kernels& kernels,
                             Stream& stream, std::string reduction)
    : comm_(comm), kernels_(kernels), stream_(stream), reduction_(std::move(reduction)) {}

double ExchangeTimer::seconds(const kernels::WireFormat& format, int64_t elements) {
  std::vector<float> x = drawn(elements);
  parallel::Wire wire(kernels_, stream_, {{.first = 0, .count = elements, .format = format}});
  const auto reduction = parallel::make_reduction(reduction_, comm_, stream_.arena());
  double best = std::numeric_limits<double>::infinity();
  for (int repeat = 0; repeat <= kRepeats; ++repeat) {
    parallel::barrier(comm_);
    const double begin = now_seconds();
    reduction->start({.data = view_of(x), .wire = &wire});
    reduction->wait(comm_);
    double taken = now_seconds() - begin;
    parallel::all_reduce_small(comm_, {&taken, 1}, parallel::Combine::max);
    best = repeat > 0 ? std::min(best, taken) : best;
  }
  return best;
}

double ExchangeTimer::codec_seconds(const kernels::WireFormat& format) {
  constexpr int64_t kElements = 65'536;
  std::vector<float> x = drawn(kElements);
  std::vector<std::byte> message(kernels::wire_bytes(format, kElements));
  double best = std::numeric_limits<double>::infinity();
  for (int repeat = 0; repeat <= kRepeats; ++repeat) {
    const double begin = now_seconds();
    kernels_.encode(stream_, {.x = view_of(x), .wire = message, .format = format});
    kernels_.decode(stream_, {.wire = message, .y = view_of(x), .format = format});
    best = std::min(best, now_seconds() - begin);
  }
  parallel::all_reduce_small(comm_, {&best, 1}, parallel::Combine::max);
  return best / static_cast<double>(kElements);
}

plan::Link ExchangeTimer::link() {
  const kernels::WireFormat plain = parallel::plain_format(DType::fp32);
  constexpr std::array<int64_t, 4> kSizes{1024, 16'384, 65'536, 262'144};
  std::vector<plan::LinkSample> samples;
  const double sent = 2.0 * (comm_.size() - 1) / comm_.size() * sizeof(float);  // an element
  for (const int64_t size : kSizes) {
    samples.push_back({.bytes = sent * static_cast<double>(size), .seconds = seconds(plain, size)});
  }
  return plan::fit_link(samples).link;
}

}  // namespace espalier::train
