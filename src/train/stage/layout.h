#pragma once
// The grid of ranks, the schedule, and the layers of each stage: a pure function of config, number
// of ranks and cost of layers, so every rank computes the same.
//
//   world rank   (stage, replica) by parallel/grid.h
//   pipeline rank   owns chunks 0, 1, …; chunk c is stage Schedule::stage_of(rank, c) of the
//                   network, a run of contiguous layers
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "io/config/config.h"
#include "parallel/grid.h"
#include "parallel/pipeline/runner.h"
#include "parallel/pipeline/schedule/check.h"
#include "parallel/transport/communicator.h"
#include "src/train/stage/layer_times.h"

namespace espalier::train {

/// Steps from one drain of an asynchronous pipeline to the next, unless an evaluation or a
/// checkpoint comes first. A drain of p stages costs the time of p - 1 micro-batches, so at most
/// p - 1 percent; losses and requests to stop wait for it.
inline constexpr int64_t kDrainEvery = 100;

struct Layout {
  parallel::Grid grid;
  /// Without programs if the order depends on arrival times (`policy`).
  parallel::Schedule schedule;
  std::optional<parallel::MessageDriven> policy;
  std::vector<size_t> ends;  ///< [stages] of the stages' layers, ascending; the last: all layers

  bool pipelined() const { return grid.pipeline > 1; }
  /// Each stage updates its weights independently. `schedule` is then an example, with enough
  /// micro-batches to show the delays.
  bool asynchronous() const { return !schedule.synchronous; }
  /// Micro-batches of one step of a replica.
  int micro_batches() const {
    return asynchronous() ? schedule.micro_batches_per_update : schedule.micro_batches;
  }
  /// The asynchronous schedule of `steps` steps between two drains.
  parallel::Schedule segment(int64_t steps) const;
  /// Maximum number of updates between a forward and the update with its gradient.
  int delay(int stage) const { return facts_.delay[static_cast<size_t>(stage)]; }
  int stages() const { return schedule.stages(); }
  size_t first_layer(int stage) const {
    return stage == 0 ? 0 : ends[static_cast<size_t>(stage) - 1];
  }
  /// Layers of each stage.
  std::vector<int64_t> partition() const;
  /// Parts of a rank of a pipeline, by ascending stage.
  std::vector<PartShape> parts(int rank) const;
  /// The part among parts(rank) that is `stage`.
  size_t part_of(int stage) const;
  /// The messages of a pipeline, with these bytes at each boundary between stages.
  parallel::PipelineShape messages(std::vector<size_t> bytes, parallel::CarrierKind carrier) const;

 private:
  friend Layout make_layout(const io::Config&, int, int64_t, const LayerTimes&);
  parallel::ScheduleFacts facts_;
  int needed_buffers_ = 0, needed_local_buffers_ = 0;
};

/// Communicators of a rank in the grid: all ranks, the replicas of its stage, and the pipeline of
/// its replica.
class Ranks {
 public:
  /// Collective over `world`, which must outlive it.
  Ranks(parallel::Communicator& world, const parallel::Grid& grid)
      : world_(world), place_(grid.place_of(world.rank())) {
    if (grid.pipeline > 1) {
      data_ = world.split(place_.stage, place_.replica);
    }
    pipeline_ = world.split(place_.replica, place_.stage);
  }

  parallel::Communicator& world() { return world_; }
  /// Ranks with the same parameters: gradients are summed here.
  parallel::Communicator& data() { return data_ ? *data_ : world_; }
  /// Ranks with the same samples: activations are sent here. Ranks are pipeline ranks.
  parallel::Communicator& pipeline() { return *pipeline_; }
  int stage() const { return place_.stage; }
  int replica() const { return place_.replica; }

 private:
  parallel::Communicator& world_;
  parallel::GridPlace place_;
  std::unique_ptr<parallel::Communicator> data_, pipeline_;
};

/// Throws Failure, with the fix, if ranks, stages, layers and micro-batches do not fit together.
Layout make_layout(const io::Config& config, int ranks, int64_t micro_batches,
                   const LayerTimes& times);

/// The times of stages that end at `ends`, with the latency of `times`.
parallel::Costs stage_costs(std::span<const size_t> ends, const LayerTimes& times);

/// Cuts layers into `stages` runs of at least one layer with the least cost of the most expensive
/// run, by dynamic programming in O(S L²). Returns the ends of the runs; of equal cuts the one with
/// the earliest ends.
std::vector<size_t> balance(std::span<const double> costs, int stages);

/// `balance` for ranks with several stages: minimises the load of the most loaded rank, then the
/// cost of the most expensive stage. Local search from `balance`, moving one or two ends at a time.
std::vector<size_t> balance_ranks(std::span<const double> costs,
                                  const parallel::Schedule& schedule);

/// "2 pipeline stages x 2 replicas, schedule 1f1b, layers 0-3 | 4-7", and the nodes of the ranks.
std::string describe(const Layout& layout, std::span<const int> node);

}  // namespace espalier::train
