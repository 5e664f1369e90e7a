#pragma once
// What the stages of a pipeline add up once a step: the two shares of the gradient of tied
// embeddings, which the first and the last stage hold, and the exact sums that the norm is made of
// (optim/norm.h). Where messages between stages go by NCCL, so do these, by one more group of all
// stages with a queue of its own, and the host waits for nothing; else through the host.
//
// Both ends add the other's share to their own, so they get the same bits, in every way the same.
//
// A rank asks for shares when it has asked for all passes of a step, all that it takes from other
// stages has come, and what it sent has left; and for the norm after its sums over replicas. So
// neither stands before a message of that step, and no message of the next can leave before them:
// the first stage's forward follows both. Sums over replicas that are asked for earlier wait for
// neither, those asked for later follow the shares on all ranks: nobody waits in a circle.
#include <optional>

#include "parallel/pipeline/carrier.h"
#include "parallel/transport/device/nccl_link.h"
#include "src/train/stage/layout.h"
#include "src/train/stage/ranks.h"
#include "src/train/stage/stage.h"

namespace espalier::train {

class StageSums {
 public:
  /// Collective over the pipeline. `ranks` and `stage` must outlive it. `carrier`: of messages
  /// between stages; there is no obstacle to it.
  StageSums(const Layout& layout, Ranks& ranks, Stage& stage, parallel::CarrierKind carrier);

  /// Whether there are other stages.
  bool any() const { return comm_.size() > 1; }
  /// Of the last step's gradient; kernels asked for from now on find the sum. Nothing where nothing
  /// is tied, or one rank holds both ends.
  void add_tied();

  /// Whether counts are summed where they are, and not words on the host.
  bool on_device() const { return link_.has_value(); }
  void sum_counts(const Tensor& counts);
  void sum_words(std::span<double> words);

 private:
  void exchange_shares(const Tensor& mine);
  void exchange_through_host(const Tensor& mine);

  parallel::Communicator& comm_;
  Stage& stage_;
  int peer_ = 0;   ///< which holds the other share
  Buffer theirs_;  ///< like the share; empty: there is none
  std::optional<parallel::NcclLink> link_;
};

}  // namespace espalier::train
