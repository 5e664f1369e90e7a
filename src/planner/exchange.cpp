#include "src/planner/exchange.h"

#include <algorithm>
#include <cmath>

#include "parallel/wire/codec.h"
#include "src/communication_cost/exchange_model.h"
#include "src/train/stage/wire_formats.h"

namespace espalier::planner {
namespace {

constexpr double kBucketBytes = 4 * 0x1p20;  // unless parallel.bucket_mb is set

/// A matrix stands for the parameters: those that a codec leaves out are small.
sparse::ParameterSpec a_matrix() { return {.name = "matrix", .shape = Shape{1024, 1024}}; }

class Exchange {
 public:
  Exchange(const io::Config& config, const Machine& machine, const ReplicaWork& work)
      : config_(config),
        machine_(machine),
        work_(work),
        dtype_(dtype_by_name(config.train.dtype)),
        link_(link_of_replicas()) {}

  ReplicaTimes times() const {
    const bool sharded = config_.parallel.zero > 0;
    ReplicaTimes found{.update = work_.update_s};
    const cost::ExchangePrediction sums = reduce(sharded ? 2 : 1);
    found.reduction = sums.exposed_s;
    found.bytes = sums.bytes;
    if (sharded) {
      found.update /= work_.replicas;
      const double sent = share_sent() * value_bytes();
      const double gather = link_.latency_s + sent / link_.bytes_per_s;
      const double buckets = std::max(1.0, std::ceil(value_bytes() / kBucketBytes));
      const double hidden = machine_.overlaps ? found.update * (1 - 1 / buckets) : 0;
      found.update += std::max(gather - hidden, gather / buckets);
      found.bytes += sent;
    }
    return found;
  }

 private:
  double share_sent() const {
    return static_cast<double>(work_.replicas - 1) / static_cast<double>(work_.replicas);
  }

  /// The link of a flat reduction over all replicas that takes as long as the configured one.
  cost::Link link_of_replicas() const {
    const int last = work_.first + (work_.replicas - 1) * work_.ways;
    const cost::Link outer = machine_.level_between(work_.first, last).link;
    const std::string& name = config_.parallel.reduction;
    const auto unit = std::max<int64_t>(1, machine_.levels.front().ranks / work_.ways);
    const auto within = static_cast<double>(std::min<int64_t>(unit, work_.replicas));
    const double units = std::ceil(work_.replicas / within);
    if (within == 1 || units == 1 || (name != "hierarchical" && name != "auto" && name != "nccl")) {
      return outer;
    }
    const cost::Link& inner = machine_.levels.front().link;
    const double seconds_per_byte = (within - 1) / within / inner.bytes_per_s +
                                    (units - 1) / units / within / outer.bytes_per_s;
    return {.latency_s = 2 * inner.latency_s + outer.latency_s,
            .bytes_per_s = share_sent() / seconds_per_byte};
  }

  /// `parts` = 2: only the first half of the reduction, in which sums are made.
  cost::ExchangePrediction reduce(double parts) const {
    const DType gradient = dtype_;
    const auto chosen =
        train::gradient_format(config_, a_matrix(), a_matrix().shape.count(), gradient);
    // A codec that is chosen at run time counts as none.
    const kernels::WireFormat plain = parallel::plain_format(gradient);
    const kernels::WireFormat format = chosen.value_or(plain);
    const double wanted =
        config_.parallel.bucket_mb > 0 ? config_.parallel.bucket_mb * 0x1p20 : kBucketBytes;
    const auto bucket_values =
        std::max<int64_t>(1, std::llround(wanted / static_cast<double>(size_of(gradient))));
    const bool ring = config_.parallel.reduction == "ring";
    const bool all_to_all = config_.parallel.reduction == "all-to-all";
    cost::ExchangeModel model{
        .ranks = work_.replicas,
        .reduction = ring         ? "ring"
                     : all_to_all ? "all-to-all"
                                  : "sra",
        .link = {.latency_s = link_.latency_s / parts, .bytes_per_s = link_.bytes_per_s * parts}};
    const auto per_second = [&](std::string_view verb) {
      const kernels::OperationRow row = codec_operation(verb, format, bucket_values, gradient);
      return static_cast<double>(bucket_values) / seconds_of(machine_, row, dtype_);
    };
    if (format == plain) {  // a sum reads two values and writes one
      model.decode_per_s =
          parts * machine_.bandwidth / (3 * static_cast<double>(size_of(gradient)));
    } else {
      model.encode_per_s = per_second("encode");
      model.decode_per_s = parts * per_second("decode");
    }
    cost::ExchangePrediction found = cost::predict(
        {.forward_s = work_.before_s, .backward_s = work_.backward_s, .optimizer_s = 0},
        cost::cut({.values = work_.kept,
                   .bucket_values = bucket_values,
                   .backward_s = work_.backward_s,
                   .overlap = machine_.overlaps && config_.parallel.overlap},
                  [&](int64_t values) {
                    return static_cast<double>(kernels::wire_bytes(format, values));
                  }),
        model);
    found.bytes /= parts;
    return found;
  }

  /// Of all updated values, as they are sent.
  double value_bytes() const {
    const auto format = train::value_format(config_, a_matrix());
    return format ? static_cast<double>(kernels::wire_bytes(*format, work_.kept))
                  : static_cast<double>(work_.kept) * static_cast<double>(size_of(dtype_));
  }

  const io::Config& config_;
  const Machine& machine_;
  const ReplicaWork& work_;
  DType dtype_;
  cost::Link link_;
};

}  // namespace

kernels::OperationRow codec_operation(std::string_view verb, const kernels::WireFormat& format,
                                      int64_t values, DType dtype) {
  parallel::CodecSpec codec = parallel::parse_codec(parallel::text_of(format));
  codec.bucket = 0;
  const auto count = static_cast<double>(values);
  return {.name = fmt::format("{} {}", verb, parallel::to_text(codec)),
          .extents = {values, 0, 0, 0},
          .calls = 1,
          .cost = {.flops = 0,
                   .bytes = count * static_cast<double>(size_of(dtype)) +
                            static_cast<double>(kernels::wire_bytes(format, values))}};
}

ReplicaTimes exchange_of(const io::Config& config, const Machine& machine,
                         const ReplicaWork& work) {
  if (work.replicas == 1) {
    return {.update = work.update_s};
  }
  return Exchange(config, machine, work).times();
}

}  // namespace espalier::planner
