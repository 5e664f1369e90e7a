#include "src/train/exchange/step_collectives.h"

#include <algorithm>
#include <optional>

#include "parallel/pipeline/schedule/registry.h"
#include "parallel/reduction/device/buckets.h"
#include "parallel/reduction/registry.h"
#include "sparse/store/value_copy.h"
#include "src/train/exchange/shards.h"
#include "src/train/stage/wire_formats.h"

namespace espalier::train {
namespace {

/// Null: the optimizer is not sharded.
const Shards* shards_of(const sparse::Store& store) {
  return dynamic_cast<const Shards*>(store.options().sharding.get());
}

}  // namespace

parallel::BucketedCollective sum_step(const io::Config& config, const Stage& stage,
                                      parallel::Wire& wire) {
  const sparse::Store& store = stage.store();
  const Shards* shards = shards_of(store);
  return shards != nullptr ? parallel::half_step(store.gradient(), parallel::Phases::scatter,
                                                 shards->partition(), {.wire = &wire})
                           : parallel::all_reduce_step(store.gradient(), stage.boundaries(),
                                                       bucket_bytes(config), {.wire = &wire});
}

parallel::BucketedCollective sum_step(const io::Config& config, const Stage& stage,
                                      parallel::Wire& wire, const sparse::ParameterRange& range) {
  const sparse::Store& store = stage.store();
  require(shards_of(store) == nullptr, "all replicas hold whole gradients");
  const auto [first, count] = sparse::flat_range(store, range);
  return parallel::all_reduce_step(store.gradient().elements(first, count),
                                   sparse::flat_ends(store, range), bucket_bytes(config),
                                   {.wire = &wire, .first = first});
}

parallel::BucketedCollective gather_step(const io::Config& config, const Stage& stage,
                                         parallel::Wire& wire) {
  const sparse::Store& store = stage.store();
  const bool coded = encodes_values(config);
  if (coded) {
    wire.set_segments(value_segments(config, store));
  }
  return parallel::half_step(store.value(), parallel::Phases::gather, shards_of(store)->partition(),
                             {.wire = coded ? &wire : nullptr});
}

namespace {

using parallel::BucketedCollective;
using parallel::Workspace;

/// In an asynchronous schedule one for each part.
std::vector<BucketedCollective> sum_steps(const io::Config& config, Stage& stage,
                                          parallel::Wire& wire) {
  if (parallel::schedule_entry(config.parallel.schedule).synchronous) {
    return {sum_step(config, stage, wire)};
  }
  std::vector<BucketedCollective> steps;
  for (size_t part = 0; part < stage.parts().size(); ++part) {
    steps.push_back(sum_step(config, stage, wire, stage.parameters_of_part(part)));
  }
  return steps;
}

/// Upper bound to gather buckets of encoded values: a buffer for each rank's slice, at most an even
/// share and a block, and the fp32 values of a sent and of a received piece.
size_t gather_bytes(size_t bucket_bytes, DType dtype, int ranks) {
  const size_t block = 2 * static_cast<size_t>(kernels::kQuantizeBlock) * size_of(DType::fp32);
  const size_t slices = std::min(parallel::PieceOptions{}.staging_bytes,
                                 bucket_bytes + static_cast<size_t>(ranks) * block);
  return static_cast<size_t>(parallel::BucketOptions{}.in_flight) * (slices + slices / 8) +
         2 * parallel::piece_values_bytes(bucket_bytes, dtype);
}

/// Staging of buckets in flight, of values that are gathered encoded, and of timed reductions.
class HostPlan final : public PlannedCollectives {
 public:
  HostPlan(const io::Config& config, Stage& stage, int ranks, int machines)
      : config_(config),
        stage_(stage),
        ranks_(ranks),
        machines_(machines),
        gradient_(&stage.stream()),
        value_(&stage.stream()),
        slots_(static_cast<size_t>(parallel::BucketOptions{}.in_flight)) {
    gradient_.begin(stage.store().gradient());
    value_.begin(stage.store().options().sharding ? stage.store().value() : Tensor());
  }

  void run(std::vector<WireSegments> segments, const std::vector<TimedSum>& timed) override {
    const sparse::Store& store = stage_.store();
    if (!store.gradient()) {
      return;
    }
    sums_ = 0;
    Stream stream(store.arena(), 1);
    parallel::Wire wire(stage_.kernels(), stream);
    wire.set_feedback(store.feedback());
    for (WireSegments& some : segments) {
      wire.set_segments(std::move(some));
      for (const BucketedCollective& step : sum_steps(config_, stage_, wire)) {
        add_buckets(step);
      }
    }
    // Of an encoded piece, and of a decoded one.
    const bool half = store.gradient().dtype != DType::fp32;
    const std::string& reduction = config_.parallel.reduction;
    const bool encodes =
        coded_ ||
        (reduction != "auto" && find(parallel::reductions(), "reduction", reduction).encodes_plain);
    if (encodes && (half || store.feedback())) {
      values_ = std::max(values_, 2 * sums_);
    }
    if (encodes_values(config_)) {
      gathers_ = std::max(gathers_, gather_bytes(longest_, store.value().dtype, ranks_));
    }
    wire.set_feedback({});
    for (const TimedSum& timing : timed) {
      if (timing.code) {  // sends nothing
        continue;
      }
      wire.set_segments(one_segment(timing.format, timing.elements));
      const Workspace needed = parallel::workspace_of(
          reduction,
          array_of({.data = store.gradient().elements(0, timing.elements), .wire = &wire}));
      timed_ = std::max(timed_, needed.bytes() + (half ? 2 * needed.sums : 0));
    }
    hold();
  }

 private:
  parallel::ReducedArray array_of(const parallel::SliceJob& job) const {
    parallel::ReducedArray array = parallel::reduced_array(job, ranks_);
    array.machines = machines_;
    return array;
  }

  void add_buckets(const BucketedCollective& step) {
    std::vector<int64_t> slices;
    for (size_t bucket = 0; bucket < step.ends.size(); ++bucket) {
      const parallel::ReducedArray array = array_of(step.job(bucket, slices));
      const Workspace needed =
          parallel::workspace_of(config_.parallel.reduction, array, step.phases);
      Workspace& slot = slots_[bucket % slots_.size()];
      slot = slot.with(needed);
      sums_ = std::max(sums_, needed.sums);
      longest_ = std::max(longest_, array.bytes);
      coded_ = coded_ || array.message_share;
    }
  }

  void hold() {
    size_t bytes = values_ + gathers_ + timed_;
    for (const Workspace& slot : slots_) {
      bytes += slot.bytes();
    }
    if (bytes > held_.bytes()) {
      held_.release();
      held_ = stage_.store().arena().host().allocate(Memory::communication, "staging", DType::uint8,
                                                     Shape{static_cast<int64_t>(bytes)});
    }
  }

  const io::Config& config_;
  Stage& stage_;
  int ranks_, machines_;
  parallel::HostCopy gradient_, value_;
  std::vector<Workspace> slots_;  ///< of buckets in flight
  size_t longest_ = 0;            ///< bytes of a bucket
  size_t sums_ = 0;               ///< Workspace::sums of the present masks, of a piece
  bool coded_ = false;            ///< some bucket is encoded
  size_t values_ = 0, gathers_ = 0, timed_ = 0;
  Buffer held_;
};

class DevicePlan final : public PlannedCollectives {
 public:
  DevicePlan(const io::Config& config, Stage& stage, int rank, int ranks)
      : config_(config),
        stage_(stage),
        stream_(stage.store().arena(), 1),
        link_(rank, ranks, stream_),
        wire_(stage.kernels(), stream_),
        value_wire_(stage.kernels(), stream_),
        reduction_(link_, stage.kernels(), parallel::order_of(config.parallel.reduction)),
        buckets_(link_, reduction_, {.compute = &stage.stream()}, parallel::kGradientText) {
    stage.store().move_codecs_to_device();
    if (codec_chooser(config) == CodecChooser::adaptive) {
      buckets_.on_host(stage.store().gradient());
    }
  }

  void run(std::vector<WireSegments> segments, const std::vector<TimedSum>& timed) override {
    if (config_.parallel.error_feedback) {
      wire_.set_feedback(stage_.store().feedback());
    }
    const DeviceTimedReduction::Context context{
        .link = link_, .reduction = reduction_, .wire = wire_, .stage = stage_};
    for (const TimedSum& timing : timed_ ? std::vector<TimedSum>() : timed) {
      DeviceTimedReduction reduction(context, timing.format, timing.elements);
      timing.code ? reduction.encode_decode() : reduction.reduce();
      reduction.end();
    }
    timed_ = true;
    for (WireSegments& some : segments) {
      wire_.set_segments(std::move(some));
      for (BucketedCollective& step : sum_steps(config_, stage_, wire_)) {
        run_buckets(std::move(step));
      }
      if (stage_.store().options().sharding) {
        run_buckets(gather_step(config_, stage_, value_wire_));
      }
    }
  }

 private:
  void run_buckets(BucketedCollective step) {
    buckets_.begin(std::move(step));
    buckets_.finish();
  }

  const io::Config& config_;
  Stage& stage_;
  Stream stream_;
  parallel::PlannedLink link_;
  parallel::Wire wire_, value_wire_;
  parallel::DeviceReduction reduction_;
  parallel::DeviceBuckets buckets_;
  bool timed_ = false;  ///< the timings before the first step, which are the longest
};

}  // namespace

std::unique_ptr<PlannedCollectives> plan_on_device(const io::Config& config, Stage& stage, int rank,
                                                   int ranks) {
  return std::make_unique<DevicePlan>(config, stage, rank, ranks);
}

std::unique_ptr<PlannedCollectives> plan_through_host(const io::Config& config, Stage& stage,
                                                      int ranks, int machines) {
  return std::make_unique<HostPlan>(config, stage, ranks, machines);
}

}  // namespace espalier::train
