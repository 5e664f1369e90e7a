#include "src/train/planned_sums.h"

#include "io/codec_spec.h"
#include "sparse/value_copy.h"
#include "src/train/gradient_wire.h"
#include "src/train/shards.h"
#include "src/train/value_wire.h"

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
    : stream_(stage.store().arena(), 1),
      link_(rank, ranks, stream_),
      wire_(stage.kernels(), stream_, segments_of(config, stage)),
      value_wire_(stage.kernels(), stream_),
      reduction_(link_, stage.kernels(), order_of(config)) {
  sparse::Store& store = stage.store();
  store.bring_codecs_to_device();
  if (config.parallel.error_feedback) {
    wire_.set_feedback(store.feedback());
  }
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
