#include "src/train/exchange/reduction_timer.h"

#include <algorithm>
#include <limits>

#include "parallel/transport/collectives.h"
#include "src/core/trace.h"

namespace espalier::train {
namespace {

constexpr int kRepeats = 3;  // after one warm-up

}  // namespace

ReductionTimer::ReductionTimer(parallel::Communicator& comm, ReplicaRoute& route, DType type)
    : comm_(comm), route_(route), type_(type) {}

double ReductionTimer::seconds(const kernels::WireFormat& format, int64_t elements) {
  const std::unique_ptr<TimedReduction> reduction = route_.timed_reduction(format, elements);
  double best = std::numeric_limits<double>::infinity();
  for (int repeat = 0; repeat <= kRepeats; ++repeat) {
    parallel::barrier(comm_);
    const double begin = now_seconds();
    reduction->reduce();
    double taken = now_seconds() - begin;
    parallel::all_reduce_small(comm_, {&taken, 1}, parallel::Combine::max);
    best = repeat > 0 ? std::min(best, taken) : best;
  }
  reduction->end();
  return best;
}

double ReductionTimer::codec_seconds(const kernels::WireFormat& format, int64_t elements) {
  const std::unique_ptr<TimedReduction> reduction = route_.timed_reduction(format, elements);
  double best = std::numeric_limits<double>::infinity();
  for (int repeat = 0; repeat <= kRepeats; ++repeat) {
    const double begin = now_seconds();
    reduction->encode_decode();
    best = std::min(best, now_seconds() - begin);
  }
  reduction->end();
  parallel::all_reduce_small(comm_, {&best, 1}, parallel::Combine::max);
  return best / static_cast<double>(elements);
}

cost::Link ReductionTimer::link(int64_t longest) {
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
