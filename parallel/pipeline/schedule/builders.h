#pragma once
// Building blocks of the schedules in this folder: the compute actions of one rank, and `complete`,
// which adds messages, all-reduces and updates. Private to the folder.
#include <deque>
#include <map>

#include "parallel/pipeline/schedule/registry.h"

namespace espalier::parallel {

/// The compute actions of one rank; micro-batches are counted by stage and kind.
class Program {
 public:
  /// Adds the next micro-batch of this kind at this stage.
  void next(ActionKind kind, int stage) {
    add(kind, stage, counts_[{stage, static_cast<int>(kind)}]++);
  }
  void next(ActionKind kind, int stage, int times) {
    for (int i = 0; i < times; ++i) {
      next(kind, stage);
    }
  }
  void add(ActionKind kind, int stage, int micro_batch) {
    actions_.push_back({kind, stage, micro_batch});
  }
  /// A forward that may overlap the backward added next.
  void next_paired(int stage) {
    next(ActionKind::forward, stage);
    actions_.back().paired = true;
  }
  /// Number of actions of this kind that `next` has added.
  int count(ActionKind kind, int stage) const {
    const auto found = counts_.find({stage, static_cast<int>(kind)});
    return found == counts_.end() ? 0 : found->second;
  }
  std::vector<Action> take() { return std::move(actions_); }

 private:
  std::vector<Action> actions_;
  std::map<std::pair<int, int>, int> counts_;
};

/// The program of a rank that owns two stages in a V-shaped placement: stage k (chunk 0) and stage
/// 2p - 1 - k (chunk 1). Deferred weight gradients wait in a queue.
class VProgram {
 public:
  VProgram(const Schedule& schedule, int rank)
      : stage_{schedule.stage_of(rank, 0), schedule.stage_of(rank, 1)} {}

  void forward(int chunk) { program_.next(ActionKind::forward, stage_[chunk]); }
  void backward(int chunk) {
    program_.add(ActionKind::backward, stage_[chunk], backwards_[chunk]++);
  }
  void backward_input(int chunk) {
    waiting_.push_back({ActionKind::backward_weight, stage_[chunk], backwards_[chunk]});
    program_.add(ActionKind::backward_input, stage_[chunk], backwards_[chunk]++);
  }
  /// A forward of chunk `ahead` that may overlap the backward of chunk `back`.
  void forward_and_backward(int ahead, int back) {
    program_.next_paired(stage_[ahead]);
    backward(back);
  }
  /// Adds the oldest deferred weight gradient.
  void backward_weight();
  /// Adds the oldest deferred weight gradient of a chunk.
  void backward_weight(int chunk);
  int forwards(int chunk) const { return program_.count(ActionKind::forward, stage_[chunk]); }
  bool weight_due() const { return !waiting_.empty(); }
  bool weight_due(int chunk) const;
  std::vector<Action> take() { return program_.take(); }

 private:
  int stage_[2];
  int backwards_[2] = {0, 0};
  Program program_;
  std::deque<Action> waiting_;
};

/// Calls body(0) … body(times - 1).
void repeat(int times, const auto& body) {
  for (int i = 0; i < times; ++i) {
    body(i);
  }
}

/// Program of one stage: `warm` forwards, then pairs of a forward and a backward, then the
/// remaining backwards. With `deferred` >= 0 weight gradients are separate, each that many
/// backwards after its backward.
std::vector<Action> forwards_first(int stage, int micro_batches, int warm, int deferred = -1);

/// Schedules without programs: one stage a rank, two in V-shaped placement, and the stages of
/// another schedule.
Schedule one_stage_a_rank(std::string_view name, const ScheduleShape& shape);
Schedule v_shaped(std::string_view name, const ScheduleShape& shape);
Schedule placed_as(const Schedule& like, std::string_view name, int micro_batches);

/// Warm-up of 1F1B: as many forwards as there are later stages.
int warm_up(const Schedule& schedule, int rank);

/// Completes programs of compute actions: adds messages around them, `reduce` after a stage's last
/// gradient, `step` at the end (synchronous) or after each `every` backwards.
Schedule complete(Schedule schedule);
/// The same for a schedule without programs: that of each rank is program_of(rank).
Schedule complete(Schedule schedule, const auto& program_of) {
  for (int rank = 0; rank < schedule.ranks; ++rank) {
    schedule.programs.push_back(program_of(rank));
  }
  return complete(std::move(schedule));
}

}  // namespace espalier::parallel
