#pragma once
// The communicators of a rank in the grid: all ranks, the replicas of its stages, and the pipeline
// of its replica.
#include <memory>

#include "parallel/grid.h"
#include "parallel/transport/communicator.h"

namespace espalier::train {

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
  /// Holds the same parameters: gradients are summed here.
  parallel::Communicator& data() { return data_ ? *data_ : world_; }
  /// Sees the same samples: activations move here. Ranks are pipeline ranks.
  parallel::Communicator& pipeline() { return *pipeline_; }
  int stage() const { return place_.stage; }
  int replica() const { return place_.replica; }

 private:
  parallel::Communicator& world_;
  parallel::GridPlace place_;
  std::unique_ptr<parallel::Communicator> data_, pipeline_;
};

}  // namespace espalier::train
