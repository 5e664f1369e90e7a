#include "src/planner/rates.h"

#include <algorithm>
#include <cmath>

#include "parallel/wire/codec.h"

namespace espalier::planner {
namespace {

/// The link of a flat reduction that takes as long as the configured one.
cost::Link link_of(const std::string& reduction, const Machine& machine,
                   const ReplicaDevices& devices) {
  const int last = devices.first + (devices.replicas - 1) * devices.ways;
  const cost::Link outer = machine.level_between(devices.first, last).link;
  const auto unit = std::max<int64_t>(1, machine.levels.front().ranks / devices.ways);
  const auto within = static_cast<double>(std::min<int64_t>(unit, devices.replicas));
  const double units = std::ceil(devices.replicas / within);
  const bool by_levels = reduction == "hierarchical" || reduction == "auto" || reduction == "nccl";
  if (within == 1 || units == 1 || !by_levels) {
    return outer;
  }
  const cost::Link& inner = machine.levels.front().link;
  const double seconds_per_byte =
      (within - 1) / within / inner.bytes_per_s + (units - 1) / units / within / outer.bytes_per_s;
  const double replicas = devices.replicas;
  return {.latency_s = 2 * inner.latency_s + outer.latency_s,
          .bytes_per_s = (replicas - 1) / replicas / seconds_per_byte};
}

}  // namespace

train::ReplicaRates rates_between(const io::Config& config, const Machine& machine,
                                  const ReplicaDevices& devices) {
  const DType dtype = dtype_by_name(config.train.dtype);
  const auto coding = [&machine, dtype](std::string_view verb) {
    return [&machine, dtype, verb](const kernels::WireFormat& format, int64_t values) {
      return seconds_of(machine, codec_operation(verb, format, values, dtype), dtype);
    };
  };
  return {.link = link_of(config.parallel.reduction, machine, devices),
          .overlaps = machine.overlaps,
          .memory_per_s = machine.bandwidth,
          .encode_s = coding("encode"),
          .decode_s = coding("decode")};
}

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

}  // namespace espalier::planner
