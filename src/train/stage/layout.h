#pragma once
// Who computes what: the grid of ranks, the schedule, and which layers make a stage. A pure
// function of config, ranks and what layers cost, so every rank arrives at the same.
//
//   world rank   (stage, replica) by parallel/grid.h; ranks of a stage are neighbours
//   rank of a    owns chunk 0, 1, … of the network: stages by Schedule::stage_of, each a run of
//   pipeline     contiguous layers
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "io/config/config.h"
#include "parallel/grid.h"
#include "parallel/pipeline/schedule/check.h"
#include "parallel/pipeline/schedule/message_driven.h"
#include "src/train/stage/layer_times.h"

namespace espalier::train {

struct Layout {
  parallel::Grid grid;
  /// Without programs where the order depends on arrival times (`policy`).
  parallel::Schedule schedule;
  std::optional<parallel::MessageDriven> policy;
  std::vector<size_t> ends;  ///< [stages] of the stages' layers, ascending; the last: all layers

  bool pipelined() const { return grid.pipeline > 1; }
  /// Stages update by themselves; `schedule` is an example, of as many micro-batches as show the
  /// delays.
  bool asynchronous() const { return !schedule.synchronous; }
  /// Of one step of a replica.
  int micro_batches() const { return asynchronous() ? schedule.every : schedule.micro_batches; }
  /// The asynchronous schedule of so many steps between two drains.
  parallel::Schedule segment(int64_t steps) const;
  /// Most updates between a forward and the one with its gradient.
  int delay(int stage) const { return facts_.delay[static_cast<size_t>(stage)]; }
  int stages() const { return schedule.stages(); }
  size_t first_layer(int stage) const {
    return stage == 0 ? 0 : ends[static_cast<size_t>(stage) - 1];
  }
  /// Layers of each stage.
  std::vector<int64_t> partition() const;
  /// Of a rank of a pipeline, by ascending stage.
  std::vector<PartShape> parts(int rank) const;
  /// The part among parts(rank) that is `stage`.
  size_t part_of(int stage) const;
  /// Messages that may wait on a channel between ranks, and between two stages of one rank.
  int buffers() const;
  int local_buffers() const;

 private:
  friend Layout make_layout(const io::Config&, int, int64_t, const LayerTimes&);
  parallel::ScheduleFacts facts_;
};

/// Throws Failure with the fix when ranks, stages, layers and micro-batches do not go together.
Layout make_layout(const io::Config& config, int ranks, int64_t micro_batches,
                   const LayerTimes& times);

/// Layers to `stages` runs such that the most expensive run is as cheap as it gets, each run with
/// at least one layer; among those the earliest ends. Ends of the runs. By dynamic programming, O(S
/// L²).
std::vector<size_t> balance(std::span<const double> costs, int stages);

/// The same where a rank owns several stages: first the most loaded rank counts, then the most
/// expensive stage. From `balance`, by moving one or two ends at a time while that helps.
std::vector<size_t> balance_ranks(std::span<const double> costs,
                                  const parallel::Schedule& schedule);

/// "2 pipeline stages x 2 replicas, schedule 1f1b, layers 0-3 | 4-7", and where ranks lie.
std::string describe(const Layout& layout, std::span<const int> node);

}  // namespace espalier::train
