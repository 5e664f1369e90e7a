#pragma once
// One rank's share of a step: its stages' actions, as the pipeline's runner calls for them, and the
// all-reduce of gradients under them. Without a pipeline it is the plain loop over micro-batches: a
// schedule of one rank.
//
// Synchronous schedules leave the update to the trainer. In an asynchronous one (async) each part
// steps by itself as soon as its gradient of a step is complete, with weights as its method has
// them (part_weights.h); several steps run between two drains of the pipeline, and replicas sum a
// part's gradient before it steps.
//
// Micro-batches accumulate in ascending order in every schedule, so gradients have the bits of a
// run without a pipeline, but for tied embeddings: the head's share is summed apart from the
// embedding's, and both are added once a step. All-reduce of a gradient starts as soon as the last
// micro-batch has completed it.
#include <functional>
#include <memory>

#include "parallel/pipeline/runner.h"
#include "src/train/exchange/exchange.h"
#include "src/train/stage/layout.h"
#include "src/train/stage/part_weights.h"
#include "src/train/stage/ranks.h"
#include "src/train/stage/stage.h"
#include "src/train/stage/stage_sums.h"

namespace espalier::train {

class Pipeline final : private parallel::PipelineWork {
 public:
  struct Options {
    int64_t samples = 1;  ///< of a micro-batch
    parallel::CarrierKind carrier = parallel::CarrierKind::host;
    StageSums* sums = nullptr;
  };
  /// Collective over the pipeline. All must outlive it.
  Pipeline(const io::Config& config, const Layout& layout, Ranks& ranks, Stage& stage,
           const Options& options);

  /// Fills what micro-batch `number` reads, counted from the first step on; either tensor may be
  /// empty.
  using Load = std::function<void(int64_t number, const Part::Feed& feed)>;

  struct Step {
    int64_t step = 0;
    int64_t first_sample = 0;  ///< of this replica's share, in the global batch
    double loss_scale = 1;
    Load load;
    Exchange* exchange = nullptr;  ///< empty: gradients stay unsummed
    /// Of asynchronous steps: looks at the loss that this rank has seen and the norm of a part's
    /// gradient, and throws where it is no good. Before the update.
    std::function<void(int64_t step, double loss)> check_loss{};
    std::function<void(int64_t step, double norm)> check_norm{};
  };
  /// Asks for forward and backward of all micro-batches. The gradients that this rank will step are
  /// sums over its replicas afterwards.
  void train(const Step& step);
  /// The sum of losses that this rank has seen (the last stage's) in steps up to `last`, and has
  /// not returned yet. Waits for them.
  double take_losses(int64_t last = Part::kAllSteps);
  /// `steps` steps of an asynchronous schedule, updates included. What this rank has seen of each.
  struct Outcome {
    double loss = 0;     ///< sum
    double squares = 0;  ///< of the gradient, over this rank's parts
  };
  std::vector<Outcome> train_asynchronously(const Step& first, int64_t steps);

  /// The same as `train` for the first micro-batch alone, without losses.
  void probe(const Step& step);

  /// The sum of losses of `samples` samples, in micro-batches of at most the stage's.
  double evaluate(int64_t samples, const Load& load);

  /// Of the last step.
  const parallel::RunTimes& times() const { return times_; }
  double collective_seconds() const { return collective_; }
  parallel::CarrierKind carrier() const { return runner_.carrier(); }
  /// Of an asynchronous schedule: by part.
  std::span<const PartWeights> weights() const { return weights_; }
  /// What ran last; of an asynchronous schedule, all steps since a drain.
  const parallel::Schedule& last_schedule() const {
    return layout_.asynchronous() ? segment_ : layout_.schedule;
  }

 private:
  Mark run(const parallel::Action& action, std::span<const std::byte> in,
           std::span<std::byte> out) override;
  void compute(const parallel::Action& action, std::span<const std::byte> in,
               std::span<std::byte> out);
  void run_step(const Step& step, const parallel::Schedule& schedule);
  void forward(const parallel::Action& action, std::span<const std::byte> in,
               std::span<std::byte> out);
  Part::Done done_of(const parallel::Action& action);
  void completed(size_t part, size_t layer);
  PartWeights* weights_of(const parallel::Action& action);
  void sum_gradient(size_t part, int64_t number);
  void update(const parallel::Action& action);
  Part& part(const parallel::Action& action) {
    return *stage_.parts()[layout_.part_of(action.stage)];
  }

  const Layout& layout_;
  Stage& stage_;
  StageSums& sums_;
  int64_t samples_;  ///< of a micro-batch
  parallel::PipelineRunner runner_;
  parallel::RunTimes times_;
  double collective_ = 0;  ///< seconds of the last step
  Step step_;
  std::vector<PartWeights> weights_;  ///< [parts], of an asynchronous schedule
  std::vector<Outcome> outcomes_;     ///< [steps]; empty: parts do not step by themselves now
  parallel::Schedule segment_;        ///< the last one of an asynchronous schedule
  bool training_ = false;
  int64_t evaluated_ = 0;     ///< samples in all
  int last_ = 0;              ///< number of the last micro-batch
  std::vector<size_t> left_;  ///< [parts] layers whose gradients are not complete
  int64_t ready_ = 0;         ///< flat elements that are
};

}  // namespace espalier::train
