#pragma once
// Reductions over the stages of a pipeline, once per step: the gradient of tied embeddings (the
// first and the last stage hold one share each), and the exact sums that make the gradient norm
// (optim/norm.h). They run by NCCL if messages between stages do, in a group of all stages with its
// own queue, and the host waits for nothing; else through the host.
//
// Each end adds the other's share to its own, so both get the same bits on every route. Both ends
// then sum over their replicas. Where that sum depends on the place of an element in the flat array
// (DataParallel::ends_may_differ), the two ends would drift apart; the last stage then takes the
// first stage's values after each update.
//
// Deadlock freedom:
// - A rank enqueues the exchange of shares after all passes of the step, when all messages from
//   other stages have arrived and all sent ones have left. It enqueues the norm after its
//   reductions over replicas. So neither precedes a message of its step.
// - No message of the next step precedes them: the first stage's forward follows both.
// - Reductions over replicas that were enqueued before do not wait for them; those enqueued after
//   follow the shares on all ranks.
#include <optional>

#include "parallel/pipeline/carrier.h"
#include "parallel/transport/device/nccl_link.h"
#include "src/train/stage/layout.h"
#include "src/train/stage/stage.h"

namespace espalier::train {

class PipelineReduction {
 public:
  /// Collective over the pipeline. `ranks` and `stage` must outlive it. `carrier`: the available
  /// one of messages between stages.
  PipelineReduction(const Layout& layout, Ranks& ranks, Stage& stage,
                    parallel::CarrierKind carrier);

  /// Memory for the share of the other end of tied embeddings; empty: the stage has no end of them.
  static Buffer allocate_share(Stage& stage);

  bool has_stages() const { return comm_.size() > 1; }
  /// Sums the shares of the last step's gradient; kernels enqueued afterwards read the sum. Does
  /// nothing unless embeddings are tied and two ranks hold their ends.
  void reduce_tied();
  /// After an update: the last stage takes the first stage's values of tied embeddings. Does
  /// nothing unless two ranks hold their ends. V x C elements from one rank to another.
  void copy_tied_values();
  bool ties_two_ranks() const { return static_cast<bool>(theirs_.tensor()); }

  /// Whether the norm is reduced by `reduce_counts` in device memory; else by `reduce_words`.
  bool on_device() const { return link_.has_value(); }
  void reduce_counts(const Tensor& counts);
  void reduce_words(std::span<double> words);

 private:
  void exchange_on_device(const Tensor& mine);
  void exchange_through_host(const Tensor& mine);
  void copy_on_device(const Tensor& values);
  void copy_through_host(const Tensor& values);

  parallel::Communicator& comm_;
  Stage& stage_;
  int peer_ = 0;  ///< holds the other share
  bool is_first_ = false;
  Buffer theirs_;  ///< the other share; empty: there is none
  std::optional<parallel::NcclLink> link_;
};

}  // namespace espalier::train
