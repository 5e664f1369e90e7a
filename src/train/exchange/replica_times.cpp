#include "src/train/exchange/replica_times.h"

#include <algorithm>
#include <cmath>

#include "parallel/wire/codec.h"
#include "src/communication_cost/exchange_model.h"
#include "src/train/stage/wire_formats.h"

namespace espalier::train {
namespace {

constexpr double kBucketBytes = 4 * 0x1p20;  // unless parallel.bucket_mb is set

/// A matrix stands for the parameters: those that a codec leaves out are small.
sparse::ParameterSpec a_matrix() { return {.name = "matrix", .shape = Shape{1024, 1024}}; }

/// `parts` = 2: only the first half of the reduction, in which sums are made.
cost::ExchangePrediction reduce(const io::Config& config, const ReplicaWork& work,
                                const ReplicaRates& rates, double parts) {
  const DType gradient = work.gradient;
  const kernels::WireFormat plain = parallel::plain_format(gradient);
  // A codec that is chosen at run time counts as none.
  const kernels::WireFormat format =
      gradient_format(config, a_matrix(), a_matrix().shape.count(), gradient).value_or(plain);
  const double wanted =
      config.parallel.bucket_mb > 0 ? config.parallel.bucket_mb * 0x1p20 : kBucketBytes;
  const auto bucket_values =
      std::max<int64_t>(1, std::llround(wanted / static_cast<double>(size_of(gradient))));
  const bool ring = config.parallel.reduction == "ring";
  const bool all_to_all = config.parallel.reduction == "all-to-all";
  cost::ExchangeModel model{.ranks = work.replicas,
                            .reduction = ring         ? "ring"
                                         : all_to_all ? "all-to-all"
                                                      : "sra",
                            .link = {.latency_s = rates.link.latency_s / parts,
                                     .bytes_per_s = rates.link.bytes_per_s * parts}};
  const auto values = static_cast<double>(bucket_values);
  if (format == plain) {  // a sum reads two values and writes one
    model.decode_per_s = parts * rates.memory_per_s / (3 * static_cast<double>(size_of(gradient)));
  } else if (rates.encode_s) {
    model.encode_per_s = values / rates.encode_s(format, bucket_values);
    model.decode_per_s = parts * values / rates.decode_s(format, bucket_values);
  }
  cost::ExchangePrediction found = cost::predict(
      {.forward_s = work.before_s, .backward_s = work.backward_s, .optimizer_s = 0},
      cost::cut({.values = work.kept,
                 .bucket_values = bucket_values,
                 .backward_s = work.backward_s,
                 .overlap = rates.overlaps && config.parallel.overlap},
                [&](int64_t n) { return static_cast<double>(kernels::wire_bytes(format, n)); }),
      model);
  found.bytes /= parts;
  return found;
}

/// Of all updated values, as they are sent.
double value_bytes(const io::Config& config, int64_t kept) {
  const auto format = value_format(config, a_matrix());
  return format ? static_cast<double>(kernels::wire_bytes(*format, kept))
                : static_cast<double>(kept) *
                      static_cast<double>(size_of(dtype_by_name(config.train.dtype)));
}

}  // namespace

ReplicaTimes replica_times(const io::Config& config, const ReplicaWork& work,
                           const ReplicaRates& rates) {
  ReplicaTimes found{.update = work.update_s};
  if (work.replicas == 1) {
    return found;
  }
  const bool sharded = config.parallel.zero > 0;
  const cost::ExchangePrediction sums = reduce(config, work, rates, sharded ? 2 : 1);
  found.reduction = sums.exposed_s;
  found.bytes = sums.bytes;
  if (sharded) {
    const double replicas = work.replicas;
    found.update /= replicas;
    const double sent = (replicas - 1) / replicas * value_bytes(config, work.kept);
    const double gather = rates.link.latency_s + sent / rates.link.bytes_per_s;
    const double buckets = std::max(1.0, std::ceil(value_bytes(config, work.kept) / kBucketBytes));
    const double hidden = rates.overlaps ? found.update * (1 - 1 / buckets) : 0;
    found.update += std::max(gather - hidden, gather / buckets);
    found.bytes += sent;
  }
  return found;
}

}  // namespace espalier::train
