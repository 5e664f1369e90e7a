#include "src/train/exchange/step_collectives.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "parallel/flat.h"
#include "parallel/pipeline/schedule/registry.h"
#include "parallel/reduction/device/buckets.h"
#include "parallel/reduction/registry.h"
#include "parallel/transport/planned_communicator.h"
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

/// The reductions of a run whose replicas are on these machines, without their messages.
class PlannedReductions {
 public:
  PlannedReductions(const io::Config& config, Stage& stage, const std::vector<int>& machines)
      : config_(config),
        stage_(stage),
        comm_(first_of_the_most(machines)),
        stream_(arena_, 1),
        gradient_wire_(stage.kernels(), stream_),
        value_wire_(stage.kernels(), stream_),
        gradients_(comm_, arena_, {.reduction = reduction()}),
        values_(comm_, arena_) {}

  void run(const std::vector<WireSegments>& segments, const std::vector<TimedSum>& timed) {
    const sparse::Store& store = stage_.store();
    if (config_.parallel.error_feedback) {
      gradient_wire_.set_feedback(store.feedback());
    }
    for (const WireSegments& some : segments) {
      gradient_wire_.set_segments(some);
      for (const BucketedCollective& step : sum_steps(config_, stage_, gradient_wire_)) {
        gradients_.reserve(step);
      }
    }
    if (store.options().sharding) {
      values_.reserve(gather_step(config_, stage_, value_wire_));
    }
    for (const TimedSum& timing : timed) {
      if (!timing.code) {
        time(timing);
      }
    }
  }

  size_t bytes() const { return arena_.total().now + timed_; }

 private:
  /// A machine with more ranks needs more memory.
  static parallel::Membership first_of_the_most(const std::vector<int>& machines) {
    parallel::Membership members{.world = std::vector<int>(machines.size()), .node = machines};
    std::iota(members.world.begin(), members.world.end(), 0);
    std::map<int, int> ranks;
    for (const int machine : machines) {
      ++ranks[machine];
    }
    const int most = std::ranges::max_element(ranks, {}, &std::pair<const int, int>::second)->first;
    members.rank = static_cast<int>(std::ranges::find(machines, most) - machines.begin());
    return members;
  }

  std::string_view reduction() const {
    const auto name = parallel::reduction_for(config_.parallel.reduction, comm_.members());
    return find(parallel::reductions(), "reduction", name).make != nullptr ? name : "sra";
  }

  /// A reduction that is timed has memory of its own, for as long as it is timed.
  void time(const TimedSum& timing) {
    Arena arena(true);
    Stream stream(arena, 1);
    parallel::Wire wire(stage_.kernels(), stream, one_segment(timing.format, timing.elements));
    const auto timed = parallel::make_reduction(reduction(), comm_, arena);
    timed->reserve({.data = parallel::flat_part(stage_.store().gradient(), 0, timing.elements),
                    .wire = &wire});
    timed_ = std::max(timed_, arena.total().now);
  }

  const io::Config& config_;
  Stage& stage_;
  parallel::PlannedCommunicator comm_;
  Arena arena_{true};
  Stream stream_;
  parallel::Wire gradient_wire_, value_wire_;
  parallel::HostBuckets gradients_, values_;
  size_t timed_ = 0;  ///< the most of all so far
};

/// The most of all places that the replicas may have.
class HostPlan final : public PlannedCollectives {
 public:
  HostPlan(const io::Config& config, Stage& stage, std::span<const std::vector<int>> places)
      : stage_(stage), gradient_(&stage.stream()), value_(&stage.stream()) {
    gradient_.begin(stage.store().gradient());
    value_.begin(stage.store().options().sharding ? stage.store().value() : Tensor());
    for (const std::vector<int>& machines : places) {
      reductions_.push_back(std::make_unique<PlannedReductions>(config, stage, machines));
    }
  }

  void run(std::vector<WireSegments> segments, const std::vector<TimedSum>& timed) override {
    if (!stage_.store().gradient()) {
      return;
    }
    size_t bytes = 0;
    for (const auto& reductions : reductions_) {
      reductions->run(segments, timed);
      bytes = std::max(bytes, reductions->bytes());
    }
    if (bytes > held_.bytes()) {
      held_.release();
      held_ = stage_.store().arena().host().allocate(Memory::communication, "staging", DType::uint8,
                                                     Shape{static_cast<int64_t>(bytes)});
    }
  }

 private:
  Stage& stage_;
  parallel::HostCopy gradient_, value_;
  std::vector<std::unique_ptr<PlannedReductions>> reductions_;
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
                                                      int ranks,
                                                      std::vector<std::vector<int>> places) {
  const std::string& reduction = config.parallel.reduction;
  const bool depends = reduction == "auto" || reduction == "hierarchical";
  if (!depends || places.empty()) {
    places.clear();
    // On equally many of any number of machines.
    for (int each = depends ? 1 : ranks; each <= ranks; ++each) {
      if (ranks % each == 0) {
        std::vector<int>& machines = places.emplace_back();
        for (int rank = 0; rank < ranks; ++rank) {
          machines.push_back(rank / each);
        }
      }
    }
  }
  return std::make_unique<HostPlan>(config, stage, places);
}

}  // namespace espalier::train
