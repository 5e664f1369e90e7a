#include "src/train/planned_sums.h"

#include <algorithm>

#include "io/codec_spec.h"
#include "sparse/value_copy.h"
#include "src/train/gradient_wire.h"
#include "src/train/low_rank_codec.h"
#include "src/train/shards.h"

namespace espalier::train {
namespace {

/// As the first steps send them (CodecChoice::segments).
std::vector<parallel::WireSegment> segments_of(const io::Config& config, const Stage& stage) {
  const sparse::Store& store = stage.store();
  const kernels::WireFormat widest =
      parallel::format_of(io::parse_codec("maxmin:8"), codec_defaults(config));
  std::vector<parallel::WireSegment> segments;
  for (size_t p = store.parameters().size(); p-- > 0;) {
    const sparse::Parameter& parameter = store.parameters()[p];
    segments.push_back({.first = parameter.offset,
                        .count = parameter.kept(),
                        .format = gradient_format(config, stage, parameter).value_or(widest)});
  }
  return segments;
}

parallel::DeviceReduction::Order order_of(const io::Config& config) {
  using Order = parallel::DeviceReduction::Order;
  return config.parallel.reduction == "nccl" ? Order::by_nccl : Order::by_rank;
}

}  // namespace

PlannedSums::PlannedSums(const io::Config& config, Stage& stage, int rank, int ranks)
    : config_(config),
      stage_(stage),
      stream_(stage.store().arena(), 1),
      link_(rank, ranks, stream_),
      wire_(stage.kernels(), stream_),
      low_rank_(stage.kernels(), stream_, parallel::kDevicePanel),
      reduction_(link_, stage.kernels(), order_of(config)),
      factored_(link_, low_rank_, reduction_) {
  stage.store().bring_feedback_to_device();
}

void PlannedSums::ask() {
  ask_in(0);
  if (uses_low_rank(config_)) {
    ask_in(std::max<int64_t>(config_.train.steps - 1, 0));
  }
}

void PlannedSums::ask_in(int64_t step) {
  const io::Config& config = config_;
  sparse::Store& store = stage_.store();
  std::vector<parallel::WireSegment> segments = segments_of(config, stage_);
  if (uses_low_rank(config)) {
    set_low_rank(low_rank_, config, stage_, step);
    std::erase_if(segments, [this](const auto& s) { return low_rank_.holds(s.first); });
  }
  wire_.set_segments(std::move(segments));
  if (config.parallel.error_feedback) {
    wire_.set_feedback(store.feedback());
  }
  const parallel::WireView wire{.wire = &wire_};
  if (const auto* shards = dynamic_cast<Shards*>(store.options().sharding.get())) {
    ask(parallel::half_step(store.gradient(), parallel::Phases::scatter, shards->partition(),
                            wire));
  } else if (config.parallel.schedule != "async") {
    ask(parallel::all_reduce_step(store.gradient(), stage_.boundaries(), bucket_bytes(config),
                                  wire));
  } else {
    for (size_t part = 0; part < stage_.parts().size(); ++part) {
      const sparse::ParameterRange range = stage_.parameters_of_part(part);
      const auto [first, count] = sparse::flat_range(store, range);
      ask(parallel::all_reduce_step(store.gradient().elements(first, count),
                                    sparse::flat_ends(store, range), bucket_bytes(config),
                                    {.wire = &wire_, .first = first}));
    }
  }
}

void PlannedSums::ask(const parallel::BucketPipeline::Step& step) {
  for (size_t bucket = 0; bucket < step.ends.size(); ++bucket) {
    factored_.run(step, bucket, "planning");
  }
}

}  // namespace espalier::train
