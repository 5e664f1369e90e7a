#include "src/train/memory/planned_sums.h"

#include <algorithm>

#include "parallel/pipeline/schedule/registry.h"
#include "sparse/store/value_copy.h"
#include "src/kernels/rules/wire/codecs.h"
#include "src/train/codec_choice/codec_candidates.h"
#include "src/train/exchange/low_rank_codec.h"
#include "src/train/exchange/shards.h"
#include "src/train/exchange/timed_sum.h"
#include "src/train/exchange/value_wire.h"

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

}  // namespace

PlannedSums::PlannedSums(const io::Config& config, Stage& stage, int rank, int ranks)
    : config_(config),
      stage_(stage),
      stream_(stage.store().arena(), 1),
      link_(rank, ranks, stream_),
      wire_(stage.kernels(), stream_),
      value_wire_(stage.kernels(), stream_),
      low_rank_(stage.kernels(), stream_, parallel::kDevicePanel),
      reduction_(link_, stage.kernels(), parallel::order_of(config.parallel.reduction)),
      factored_(link_, low_rank_, reduction_) {
  stage.store().move_codecs_to_device();
  time();
}

void PlannedSums::time() {
  if (config_.parallel.error_feedback) {
    wire_.set_feedback(stage_.store().feedback());
  }
  const DeviceTimedSum::Means means{
      .link = link_, .reduction = reduction_, .wire = wire_, .stage = stage_};
  for (const Timing& timing : longest_timings(config_, stage_)) {
    DeviceTimedSum sum(means, timing.format, timing.elements);
    timing.code ? sum.code() : sum.sum();
    sum.end();
  }
}

void PlannedSums::ask() {
  ask_in(0);
  if (uses_low_rank(config_)) {
    ask_in(std::max<int64_t>(config_.train.steps - 1, 0));
  }
}

void PlannedSums::ask_in(int64_t step) {
  if (uses_low_rank(config_)) {
    set_low_rank(low_rank_, config_, stage_, step);
  }
  if (config_.parallel.error_feedback) {
    wire_.set_feedback(stage_.store().feedback());
  }
  for (Segments& way : ways_to_send(config_, stage_)) {
    std::erase_if(way, [this](const auto& s) { return low_rank_.holds(s.first); });
    wire_.set_segments(std::move(way));
    ask_with({.wire = &wire_});
  }
}

void PlannedSums::ask_with(const parallel::WireView& wire) {
  sparse::Store& store = stage_.store();
  if (const auto* shards = dynamic_cast<Shards*>(store.options().sharding.get())) {
    ask(parallel::half_step(store.gradient(), parallel::Phases::scatter, shards->partition(),
                            wire));
    if (codes_values(config_)) {
      value_wire_.set_segments(value_segments(config_, store));
      ask(parallel::half_step(store.value(), parallel::Phases::gather, shards->partition(),
                              {.wire = &value_wire_}));
    }
  } else if (parallel::schedule_entry(config_.parallel.schedule).synchronous) {
    ask(parallel::all_reduce_step(store.gradient(), stage_.boundaries(), bucket_bytes(config_),
                                  wire));
  } else {
    for (size_t part = 0; part < stage_.parts().size(); ++part) {
      const sparse::ParameterRange range = stage_.parameters_of_part(part);
      const auto [first, count] = sparse::flat_range(store, range);
      ask(parallel::all_reduce_step(store.gradient().elements(first, count),
                                    sparse::flat_ends(store, range), bucket_bytes(config_),
                                    {.wire = wire.wire, .first = first}));
    }
  }
}

void PlannedSums::ask(const parallel::BucketPipeline::Step& step) {
  for (size_t bucket = 0; bucket < step.ends.size(); ++bucket) {
    factored_.run(step, bucket, "planning");
  }
}

}  // namespace espalier::train
