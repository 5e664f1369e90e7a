#pragma once
// What the replicas of a stage exchange in a step: gradients while backward goes on, and with
// ZeRO-1 (`parallel.zero` = 1) values while the optimizer goes on. p ranks, n kept elements,
// gradients of w bytes, values of v:
//
//   zero 0   all-reduce of gradients: 2 (p-1)/p w n bytes a rank; every rank steps all values
//   zero 1   reduce-scatter of gradients: (p-1)/p w n; the norm's words: 568 (p-1); a rank steps its
//            slices; all-gather of values: (p-1)/p v n, or in codes (value_wire.h); in runs of 16 bits norms and
//            biases once more in fp32
//
// Gradients travel in the codecs of `parallel.codec` (gradient_wire.h), by `parallel.reduction`;
// the factors of powersgd as by sra, whatever that says. Between devices they go by NCCL
// (device_transfer.h) where `parallel.device_link` and the machine allow it, else through the host
// (host_transfer.h). Both modes give the same bits on all ranks, and without codecs the same as
// each other. Over a pipeline the norm is that of all stages.
#include <memory>

#include "io/config/config.h"
#include "src/train/codec_choice/codec_choice.h"
#include "src/train/exchange/shards.h"
#include "src/train/exchange/transfer.h"
#include "src/train/stage/ranks.h"
#include "src/train/stage/stage.h"
#include "src/train/stage/stage_sums.h"

namespace espalier::train {

/// Empty unless this config shares out the optimizer and there are ranks to share with.
std::shared_ptr<Shards> make_shards(const io::Config& config, parallel::Communicator& comm);

/// The same for plans, of one of `ranks` ranks; it sends nothing.
std::shared_ptr<sparse::Sharding> plan_shards(const io::Config& config, int rank, int ranks);

class Exchange {
 public:
  /// Collective. `shards`: those of the stage's store. Throws Failure: NCCL is asked for and cannot
  /// be had.
  Exchange(const io::Config& config, Ranks& ranks, Stage& stage, std::shared_ptr<Shards> shards,
           StageSums& stages);
  ~Exchange();
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  /// Before gradients are computed, after masks may have changed: codecs measure what is new, with
  /// the gradient's memory. `begin` does it itself.
  void prepare() { codecs_.prepare(); }
  /// A step begins: gradients are about to be computed.
  void begin(int64_t step);
  /// The gradients of flat elements [0, end) are final.
  void ready(int64_t end);
  /// All are: waits until this rank has the sums that it needs.
  void finish();
  /// Sums the gradients of some parameters alone, all of which are final. Not with ZeRO-1.
  void sum(const sparse::ParameterRange& range, int64_t step);
  /// Asks for the optimizer's step (Stage::result). Kernels asked for afterwards find all values on
  /// all ranks.
  optim::AskedUpdate update(int64_t step, double lr);
  CodecChoice& codecs() { return codecs_; }
  /// How arrays of a device get to other ranks, for people; empty: there is no device, or no other
  /// rank.
  const std::string& way() const { return way_; }

  /// What codec powersgd keeps of matrices, for checkpoints.
  parallel::LowRank& low_rank() { return transfer_->low_rank(); }

 private:
  std::unique_ptr<Transfer> make_transfer();
  void prepare_wire(int64_t step);
  void begin_buckets();
  uint64_t key(int64_t step) const;
  void begin_gather();
  optim::AskedUpdate sharded_update(int64_t step, double lr);
  optim::GradientNorm::Sum sum_of_norms();
  void sum_words(std::span<double> words);
  void sum_counts(const Tensor& counts);

  const io::Config& config_;
  int64_t step_ = 0;
  Ranks& ranks_;
  Stage& stage_;
  std::shared_ptr<Shards> shards_;
  StageSums& stages_;
  bool measures_ = false;  ///< nothing is sent before all gradients of this step have been seen
  ReadinessClock clock_;
  std::string way_;
  std::unique_ptr<Transfer> transfer_;
  CodecChoice codecs_;
};

}  // namespace espalier::train
