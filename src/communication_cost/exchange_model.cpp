#include "src/communication_cost/exchange_model.h"

#include <algorithm>
#include <cmath>

#include "src/core/error.h"

namespace espalier::cost {
namespace {

constexpr int64_t kMaxBuckets = 10'000'000;

void check_time(double seconds, std::string_view what) {
  check(std::isfinite(seconds) && seconds >= 0,
        "{} = {} s is not a duration; set a number of at least 0", what, seconds);
}

void check_rate(double rate, std::string_view what) {
  check(rate > 0, "{} = {} per second is not a rate; set a number above 0", what, rate);
}

void check_model(const ComputeTimes& compute, const ExchangeModel& model) {
  check_time(compute.forward_s, "forward");
  check_time(compute.backward_s, "backward");
  check_time(compute.optimizer_s, "optimizer");
  check(compute.forward_s + compute.backward_s + compute.optimizer_s > 0,
        "forward and backward take 0 ms; set --forward-ms and --backward-ms");
  check_time(model.link.latency_s, "latency");
  check_rate(model.link.bytes_per_s, "bytes over the link");
  check_rate(model.encode_per_s, "values encoded");
  check_rate(model.decode_per_s, "values decoded");
  check(model.pieces >= 1, "{} pieces: a bucket has at least 1", model.pieces);
}

/// Arrival times of the first and the last piece of a bucket, and its decoding time.
struct Arrival {
  double first = 0;
  double last = 0;
  double decode = 0;
};

}  // namespace

ReductionCost cost_of(std::string_view reduction, int ranks) {
  check(ranks >= 1, "{} ranks: at least 1 is needed", ranks);
  const double p = ranks;
  if (ranks == 1) {
    return {};
  }
  if (reduction == "all-to-all") {
    return {.link = p - 1, .latencies = 1, .encoded = 1, .decoded = p};
  }
  check(reduction == "sra" || reduction == "ring",
        "reduction \"{}\" is unknown; available: sra, ring, all-to-all", reduction);
  return {.link = 2 * (p - 1) / p,
          .latencies = reduction == "ring" ? 2 * (p - 1) : 2,
          .encoded = 1,
          .decoded = (2 * p - 1) / p};
}

std::vector<GradientBucket> cut(const EvenBuckets& gradient,
                                const std::function<double(int64_t values)>& bytes) {
  check(gradient.values >= 0,
        "a gradient of {} values is impossible; set --parameters and --density above 0",
        gradient.values);
  check(gradient.bucket_values >= 1, "buckets of {} values: at least 1 is needed",
        gradient.bucket_values);
  check(gradient.values / gradient.bucket_values < kMaxBuckets,
        "{} values in buckets of {} are more than {} buckets: take larger ones", gradient.values,
        gradient.bucket_values, kMaxBuckets);
  std::vector<GradientBucket> buckets;
  for (int64_t end = 0; end < gradient.values;) {
    const int64_t values = std::min(gradient.bucket_values, gradient.values - end);
    end += values;
    const double share = static_cast<double>(end) / static_cast<double>(gradient.values);
    buckets.push_back({.ready_s = gradient.backward_s * (gradient.overlap ? share : 1),
                       .values = values,
                       .bytes = bytes(values)});
  }
  return buckets;
}

ExchangePrediction predict(const ComputeTimes& compute, std::span<const GradientBucket> buckets,
                           const ExchangeModel& model) {
  check_model(compute, model);
  const ReductionCost cost = cost_of(model.reduction, model.ranks);
  const double k = model.pieces;
  const double latency = cost.latencies * model.link.latency_s;
  ExchangePrediction found;
  std::vector<Arrival> arrivals;
  double encoded = 0;  // time of encoding so far
  double free = 0;     // time at which the link is free
  double ready = 0;
  for (const GradientBucket& bucket : buckets) {
    check(bucket.ready_s >= ready && bucket.ready_s <= compute.backward_s,
          "a bucket is ready after {} s: after the one before it ({} s) and within backward ({} s)",
          bucket.ready_s, ready, compute.backward_s);
    check(bucket.values >= 0 && std::isfinite(bucket.bytes) && bucket.bytes >= 0,
          "a bucket of {} values has {} bytes", bucket.values, bucket.bytes);
    ready = bucket.ready_s;
    const auto values = static_cast<double>(bucket.values);
    const double begin = compute.forward_s + ready + encoded;
    const double e = cost.encoded * values / model.encode_per_s;
    const double x = cost.link * bucket.bytes / model.link.bytes_per_s;
    const double first = std::max(free, begin + e / k) + x / k;
    free = std::max({free + x, begin + e / k + x, begin + e + x / k});
    arrivals.push_back({.first = first + latency,
                        .last = free + latency,
                        .decode = cost.decoded * values / model.decode_per_s});
    encoded += e;
    found.link_s += x;
    found.bytes += cost.link * bucket.bytes;
    found.codec_s += e + arrivals.back().decode;
  }
  double now = compute.forward_s + compute.backward_s + encoded;
  for (const Arrival& arrival : arrivals) {
    now = std::max(
        {now + arrival.decode, arrival.first + arrival.decode, arrival.last + arrival.decode / k});
  }
  const double computing = compute.forward_s + compute.backward_s + compute.optimizer_s;
  found.step_s = now + compute.optimizer_s;
  found.exposed_s = std::max(0.0, found.step_s - computing);
  found.waiting_s = std::max(0.0, found.exposed_s - found.codec_s);
  found.speedup = model.ranks * computing / found.step_s;
  return found;
}

}  // namespace espalier::cost
