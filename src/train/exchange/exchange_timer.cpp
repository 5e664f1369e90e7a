#include "src/train/exchange/exchange_timer.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "parallel/transport/collectives.h"
#include "parallel/wire/wire.h"
#include "src/core/trace.h"
#include "src/train/exchange/transfer.h"

namespace espalier::train {
namespace {

constexpr int kRepeats = 3;  // and one to warm up

}  // namespace

ExchangeTimer::ExchangeTimer(parallel::Communicator& comm, Transfer& transfer, DType type)
    : comm_(comm), transfer_(transfer), type_(type) {}

double ExchangeTimer::seconds(const kernels::WireFormat& format, int64_t elements) {
  const std::unique_ptr<TimedSum> sum = transfer_.timed_sum(format, elements);
  double best = std::numeric_limits<double>::infinity();
  for (int repeat = 0; repeat <= kRepeats; ++repeat) {
    parallel::barrier(comm_);
    const double begin = now_seconds();
    sum->sum();
    double taken = now_seconds() - begin;
    parallel::all_reduce_small(comm_, {&taken, 1}, parallel::Combine::max);
    best = repeat > 0 ? std::min(best, taken) : best;
  }
  sum->end();
  return best;
}

double ExchangeTimer::codec_seconds(const kernels::WireFormat& format, int64_t elements) {
  const std::unique_ptr<TimedSum> sum = transfer_.timed_sum(format, elements);
  double best = std::numeric_limits<double>::infinity();
  for (int repeat = 0; repeat <= kRepeats; ++repeat) {
    const double begin = now_seconds();
    sum->code();
    best = std::min(best, now_seconds() - begin);
  }
  sum->end();
  parallel::all_reduce_small(comm_, {&best, 1}, parallel::Combine::max);
  return best / static_cast<double>(elements);
}

cost::Link ExchangeTimer::link(int64_t longest) {
  const kernels::WireFormat plain = parallel::plain_format(type_);
  const double sent = 2.0 * (comm_.size() - 1) / comm_.size() * static_cast<double>(size_of(type_));
  std::vector<cost::LinkSample> samples;
  for (const int64_t part : {256, 16, 4, 1}) {
    const int64_t size = std::max<int64_t>(longest / part, 1);
    samples.push_back({.bytes = sent * static_cast<double>(size), .seconds = seconds(plain, size)});
  }
  try {
    return cost::fit_link(samples).link;
  } catch (const Failure&) {
    return {.latency_s = std::ranges::min(samples, {}, &cost::LinkSample::seconds).seconds};
  }
}

}  // namespace espalier::train
