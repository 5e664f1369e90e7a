#pragma once
// A stage: the layers that one rank owns, with their parameters, optimizer and tape. Here model,
// masks and optimizer meet; ranks do not. One rank owns the whole network today.
#include <functional>
#include <memory>

#include "io/config.h"
#include "sparse/store.h"
#include "src/model/network.h"
#include "src/optim/optimizer.h"
#include "src/train/source.h"

namespace espalier::train {

/// What the data fixes about a network.
struct ProblemShape {
  int64_t classes = 256;  ///< vocabulary, or image classes
  int64_t features = 64;  ///< context, or pixels
  int64_t rows = 64;      ///< predictions a sample
  DType input_dtype = DType::int32;
};
ProblemShape problem_of(const Source& source);

/// The layers that a config describes. Throws Failure when config and data disagree.
model::Network make_network(const io::Config& config, const ProblemShape& problem);

/// How parameters are held under this config; without `training` weights only.
sparse::StoreOptions store_options(const io::Config& config, bool training);

/// What one forward and backward of a micro-batch takes.
struct PassCost {
  size_t tape_bytes = 0;
  double flops = 0;
  double bytes = 0;  ///< read and written, as the "dry" kernels count
  std::map<std::string, size_t, std::less<>> activations;  ///< bytes by name
};

class Stage {
 public:
  struct Options {
    int64_t micro_batch = 1;  ///< samples, at most
    bool training = true;
    model::Recompute recompute = model::Recompute::none;
    bool dry = false;  ///< no memory behind anything; kernels must be "dry"
    /// The masks to start with (start.h); empty: all is kept.
    std::function<sparse::Mask(size_t p)> masks{};
    std::vector<int64_t> planned{};                ///< of a dry stage, instead: kept elements
    std::shared_ptr<sparse::Sharding> sharding{};  ///< of optimizer state; empty: all is here
  };
  Stage(const io::Config& config, const ProblemShape& problem, Stream& stream,
        const kernels::Kernels& kernels, const Options& options);

  sparse::Store& store() { return *store_; }
  const model::Network& network() const { return network_; }
  const ProblemShape& problem() const { return problem_; }
  const PassCost& cost() const { return cost_; }
  const model::Tape& tape() const { return *tape_; }
  Stream& stream() { return stream_; }
  const kernels::Kernels& kernels() const { return kernels_; }

  /// Views of the micro-batch buffers for `samples` samples: fill them, then call one of the below.
  Tensor inputs(int64_t samples) const;
  Tensor targets(int64_t samples) const;

  struct MicroBatch {
    int64_t samples = 0;
    int64_t step = 0;
    int64_t first_sample = 0;  ///< of the micro-batch, in the global batch
    double loss_scale = 1;     ///< 1 / rows of the global batch
    bool accumulate = false;   ///< not the first micro-batch of the step
  };
  /// Forward and backward; returns the sum of the rows' losses. `done(end)`: the gradients of flat
  /// elements [0, end) are complete for this micro-batch.
  double forward_backward(const MicroBatch& batch, const std::function<void(int64_t)>& done = {});
  /// The sum of the rows' losses without training.
  double evaluate(int64_t samples);
  /// Predictions for rows [first, first + rows) of a micro-batch of `samples`: fp32 [rows,
  /// classes], valid until the next call.
  Tensor logits(int64_t samples, int64_t first, int64_t rows);
  /// What follows `tokens`, 1 to features() of them: fp32 [1, classes], valid until the next call.
  /// Costs no more than the tokens given.
  Tensor predict(std::span<const int32_t> tokens);

  optim::StepResult update(int64_t step, double lr, const optim::StepHooks& hooks = {}) {
    return optimizer_.step(stream_, step, lr, hooks);
  }
  /// Of a dry stage: what a pass takes.
  PassCost measure();
  /// Ascending ends of the layers' parts of the flat arrays, in backward order.
  std::vector<int64_t> boundaries() const;

 private:
  std::unique_ptr<sparse::Store> make_store(const io::Config& config, const Options& options);
  model::Pass make_pass(model::Tape& tape, int64_t samples, bool training) const;
  double sum_losses(int64_t samples) const;
  int64_t end_of_layer(size_t layer) const;
  void allocate_buffers(const Options& options);

  ProblemShape problem_;
  Stream& stream_;
  const kernels::Kernels& kernels_;
  model::Network network_;
  std::unique_ptr<sparse::Store> store_;
  optim::Optimizer optimizer_;
  DType dtype_;
  float dropout_;
  model::Recompute recompute_;
  uint64_t seed_;
  bool training_;
  PassCost cost_;
  std::vector<size_t> first_parameter_;  ///< of each layer, among store_->parameters()
  Buffer inputs_, targets_, losses_;
  std::unique_ptr<model::Tape> tape_;
};

/// Measures a pass of this config by running it on "dry" kernels, without memory: forward and
/// backward when training, else an evaluation. Of `options` the masks do not matter.
PassCost measure_pass(const io::Config& config, const ProblemShape& problem,
                      const Stage::Options& options);

}  // namespace espalier::train
