#pragma once
// Assigns parts of the optimizer state to ranks under ZeRO-1: the store's sparse::Sharding, by
// parallel/partition.h over the ranks of a communicator. Every rank computes the same
// partition from the same masks, without messages, and again when masks change.
#include <memory>
#include <vector>

#include "io/config/config.h"
#include "parallel/partition.h"
#include "parallel/transport/communicator.h"
#include "parallel/transport/device/nccl_link.h"
#include "sparse/store/sharding.h"

namespace espalier::train {

class Shards final : public sparse::Sharding {
 public:
  /// `comm` must outlive it.
  Shards(const io::Config& config, parallel::Communicator& comm)
      : Shards(config, comm.rank(), comm.size()) {
    comm_ = &comm;
  }
  /// For plans: cannot collect.
  Shards(const io::Config& config, int rank, int ranks);

  int rank() const override { return rank_; }
  std::vector<std::vector<Range>> shares(std::span<const sparse::Extent> extents,
                                         DType gradient) override;
  void collect(std::span<const Range> shares, const Tensor& whole) override;
  bool collects_on_device() const override { return link_ != nullptr; }
  void collect_on_device(std::span<const sparse::SharedVector> vectors) override;
  /// Between devices, from now on; null: through the host.
  void set_link(parallel::NcclLink* link) { link_ = link; }

  /// The partition of the store's present layout.
  const parallel::Partition& partition() const { return partition_; }

 private:
  parallel::Communicator* comm_ = nullptr;
  parallel::NcclLink* link_ = nullptr;
  int rank_, ranks_;
  size_t bucket_bytes_;  ///< of the gradient
  parallel::Partition partition_;
};

/// Shards(config, of...), or null if the config does not shard the optimizer or there is one rank.
std::shared_ptr<Shards> make_shards(const io::Config& config, parallel::Communicator& comm);
std::shared_ptr<Shards> plan_shards(const io::Config& config, int rank, int ranks);

}  // namespace espalier::train
