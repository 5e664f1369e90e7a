#pragma once
// What builders write with: the compute actions of one rank, micro-batches counted by stage.
#include <array>
#include <map>

#include "parallel/pipeline/schedule/schedule.h"

namespace espalier::parallel {

class Program {
 public:
  /// The next micro-batch of this kind at this stage.
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
  /// How many of this kind `next` has added.
  int count(ActionKind kind, int stage) const {
    const auto found = counts_.find({stage, static_cast<int>(kind)});
    return found == counts_.end() ? 0 : found->second;
  }
  std::vector<Action> take() { return std::move(actions_); }

 private:
  std::vector<Action> actions_;
  std::map<std::pair<int, int>, int> counts_;
};

}  // namespace espalier::parallel
