#include "src/planner/links.h"

#include <algorithm>

#include "parallel/wire/codec.h"

namespace espalier::planner {
namespace {

/// Ranks of a unit that a level joins: one within the innermost level.
int64_t ranks_within(const Machine& machine, size_t level) {
  return level == 0 ? 1 : machine.levels[level - 1].ranks;
}

}  // namespace

Links::Links(const Machine& machine, const parallel::Grid& grid, int ways, Messages messages)
    : machine_(machine),
      grid_(grid),
      ways_(ways),
      messages_(std::move(messages)),
      senders_(machine.levels.size()) {
  for (size_t level = 1; level < machine.levels.size(); ++level) {
    if (machine.levels[level].shared) {
      count(level);
    }
  }
}

void Links::count(size_t level) {
  const int64_t ranks = ranks_within(machine_, level);
  const auto units = static_cast<size_t>((int64_t{grid_.ranks()} * ways_ + ranks - 1) / ranks);
  std::vector<Senders>& all = senders_[level];
  all.resize(units);
  for (const auto& [from, to] : messages_) {
    for (int replica = 0; from != to && replica < grid_.data; ++replica) {
      if (level_between(from, replica, to, replica) >= level) {
        all[static_cast<size_t>(device(from, replica) / ranks)].of_messages += ways_;
      }
    }
  }
  for (int stage = 0; stage < grid_.pipeline; ++stage) {
    const bool spreads = level_between(stage, 0, stage, grid_.data - 1) >= level;
    size_t ring = units;  // the unit whose ring is counted
    for (int replica = 0; replica < grid_.data; ++replica) {
      const auto unit = static_cast<size_t>(device(stage, replica) / ranks);
      Senders& senders = all[unit];
      if (spreads) {
        senders.with_replicas += ways_;
        senders.of_rings += unit == ring ? 0 : ways_;
        ring = unit;
      }
    }
  }
}

int64_t Links::device(int stage, int replica) const {
  return int64_t{grid_.rank_of({.stage = stage, .replica = replica})} * ways_;
}

size_t Links::level_between(int stage, int replica, int other_stage, int other_replica) const {
  return machine_.level_between(device(stage, replica), device(other_stage, other_replica));
}

double Links::bandwidth(size_t level, int64_t device, int Senders::*senders) const {
  const double whole = machine_.levels[level].link.bytes_per_s;
  if (senders_[level].empty()) {
    return whole;
  }
  const auto unit = static_cast<size_t>(device / ranks_within(machine_, level));
  return whole / std::max(1, senders_[level][unit].*senders);
}

cost::Link Links::between_stages(int from, int to) const {
  cost::Link slowest;
  for (int replica = 0; replica < grid_.data; ++replica) {
    const size_t level = level_between(from, replica, to, replica);
    slowest.latency_s = std::max(slowest.latency_s, machine_.levels[level].link.latency_s);
    slowest.bytes_per_s = std::min(slowest.bytes_per_s,
                                   bandwidth(level, device(from, replica), &Senders::of_messages));
  }
  return slowest;
}

cost::Link Links::of_replicas(int stage, std::string_view reduction) const {
  const size_t level = level_between(stage, 0, stage, grid_.data - 1);
  cost::Link outer = machine_.levels[level].link;
  const bool by_levels = reduction == "hierarchical" || reduction == "auto" || reduction == "nccl";
  const auto senders = reduction == "ring" ? &Senders::of_rings : &Senders::with_replicas;
  int64_t node = -1;  // the innermost unit that is counted
  int nodes = 0;
  for (int replica = 0; replica < grid_.data; ++replica) {
    outer.bytes_per_s =
        std::min(outer.bytes_per_s, bandwidth(level, device(stage, replica), senders));
    const int64_t mine = device(stage, replica) / machine_.levels.front().ranks;
    nodes += mine == node ? 0 : 1;
    node = mine;
  }
  const double replicas = grid_.data;
  const double units = nodes;
  const double within = replicas / units;
  if (within == 1 || units == 1 || !by_levels) {
    return outer;
  }
  const cost::Link& inner = machine_.levels.front().link;
  const double seconds_per_byte =
      (within - 1) / within / inner.bytes_per_s + (units - 1) / units / within / outer.bytes_per_s;
  return {.latency_s = 2 * inner.latency_s + outer.latency_s,
          .bytes_per_s = (replicas - 1) / replicas / seconds_per_byte};
}

train::ReplicaRates rates_between(const io::Config& config, const Machine& machine,
                                  const cost::Link& link) {
  const DType dtype = dtype_by_name(config.train.dtype);
  const auto coding = [&machine, dtype](std::string_view verb) {
    return [&machine, dtype, verb](const kernels::WireFormat& format, int64_t values) {
      return seconds_of(machine, codec_operation(verb, format, values, dtype), dtype);
    };
  };
  return {.link = link,
          .overlaps = machine.overlaps,
          .memory_per_s = machine.bandwidth,
          .encode_s = coding("encode"),
          .decode_s = coding("decode")};
}

kernels::OperationRow codec_operation(std::string_view verb, const kernels::WireFormat& format,
                                      int64_t values, DType dtype) {
  parallel::CodecSpec codec = parallel::parse_codec(parallel::text_of(format));
  codec.bucket = 0;
  codec.half_meta = false;
  const auto count = static_cast<double>(values);
  return {.name = fmt::format("{} {}", verb, parallel::to_text(codec)),
          .extents = {values, 0, 0, 0},
          .calls = 1,
          .cost = {.flops = 0,
                   .bytes = count * static_cast<double>(size_of(dtype)) +
                            static_cast<double>(kernels::wire_bytes(format, values))}};
}

}  // namespace espalier::planner
