#include "src/train/planned_sums.h"

#include "sparse/value_copy.h"
#include "src/train/codec_candidates.h"
#include "src/train/shards.h"
#include "src/train/timed_sum.h"
#include "src/train/value_wire.h"

namespace espalier::train {
namespace {

using Segments = std::vector<parallel::WireSegment>;

/// With this format for what is to be chosen.
Segments segments_of(const io::Config& config, const Stage& stage,
                     const kernels::WireFormat& chosen) {
  const sparse::Store& store = stage.store();
  Segments segments;
  for (size_t p = store.parameters().size(); p-- > 0;) {
    const sparse::Parameter& parameter = store.parameters()[p];
    segments.push_back({.first = parameter.offset,
                        .count = parameter.kept(),
                        .format = gradient_format(config, stage, parameter).value_or(chosen)});
  }
  return segments;
}

/// As steps may send them (CodecChoice::segments). Formats beside each other take no more than the
/// widest of them for all.
std::vector<Segments> ways_to_send(const io::Config& config, const Stage& stage) {
  const sparse::Store& store = stage.store();
  const kernels::WireFormat plain = parallel::plain_format(store.gradient().dtype);
  std::vector<Segments> ways;
  for (const kernels::WireFormat& format : codec_candidates(config, store.gradient().dtype)) {
    ways.push_back(segments_of(config, stage, format));
    if (format == plain && config.parallel.codec.fallback != "adaprec") {
      // What travels as it is beside codes goes another way than where nothing is in codes.
      ways.push_back(ways.back());
      ways.back().push_back(
          {.first = store.flat_size(), .format = {.code = kernels::WireCode::maxmin}});
    }
  }
  if (ways.empty()) {
    ways.push_back(segments_of(config, stage, plain));
  }
  if (config.parallel.reduction == "auto" && loses(config)) {
    ways.push_back(ways.front());
    for (parallel::WireSegment& segment : ways.back()) {
      segment.format = plain;
    }
  }
  return ways;
}

parallel::DeviceReduction::Order order_of(const io::Config& config) {
  using Order = parallel::DeviceReduction::Order;
  return config.parallel.reduction == "nccl" ? Order::by_nccl : Order::by_rank;
}

}  // namespace

PlannedSums::PlannedSums(const io::Config& config, Stage& stage, int rank, int ranks)
    : stream_(stage.store().arena(), 1),
      link_(rank, ranks, stream_),
      wire_(stage.kernels(), stream_),
      value_wire_(stage.kernels(), stream_),
      reduction_(link_, stage.kernels(), order_of(config)) {
  sparse::Store& store = stage.store();
  store.bring_codecs_to_device();
  if (config.parallel.error_feedback) {
    wire_.set_feedback(store.feedback());
  }
  time(config, stage);
  for (Segments& way : ways_to_send(config, stage)) {
    wire_.set_segments(std::move(way));
    ask(config, stage);
  }
}

void PlannedSums::time(const io::Config& config, Stage& stage) {
  const DeviceTimedSum::Means means{
      .link = link_, .reduction = reduction_, .wire = wire_, .stage = stage};
  for (const Timing& timing : longest_timings(config, stage)) {
    DeviceTimedSum sum(means, timing.format, timing.elements);
    timing.code ? sum.code() : sum.sum();
    sum.end();
  }
}

void PlannedSums::ask(const io::Config& config, Stage& stage) {
  sparse::Store& store = stage.store();
  const parallel::WireView wire{.wire = &wire_};
  if (const auto* shards = dynamic_cast<Shards*>(store.options().sharding.get())) {
    ask(parallel::half_step(store.gradient(), parallel::Phases::scatter, shards->partition(),
                            wire));
    if (codes_values(config)) {
      value_wire_.set_segments(value_segments(config, store));
      ask(parallel::half_step(store.value(), parallel::Phases::gather, shards->partition(),
                              {.wire = &value_wire_}));
    }
  } else if (config.parallel.schedule != "async") {
    ask(parallel::all_reduce_step(store.gradient(), stage.boundaries(), bucket_bytes(config),
                                  wire));
  } else {
    for (size_t part = 0; part < stage.parts().size(); ++part) {
      const sparse::ParameterRange range = stage.parameters_of_part(part);
      const auto [first, count] = sparse::flat_range(store, range);
      ask(parallel::all_reduce_step(store.gradient().elements(first, count),
                                    sparse::flat_ends(store, range), bucket_bytes(config),
                                    {.wire = &wire_, .first = first}));
    }
  }
}

void PlannedSums::ask(const parallel::BucketPipeline::Step& step) {
  for (size_t bucket = 0; bucket < step.ends.size(); ++bucket) {
    reduction_.run(step, bucket, "planning");
  }
}

}  // namespace espalier::train
