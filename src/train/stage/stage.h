#pragma once
// A stage: what one rank owns of the network, with its parameters, optimizer and tapes. Here model,
// masks and optimizer meet; ranks do not. Without a pipeline that is one part (part.h), of all
// layers; a rank of a pipeline owns as many parts as its schedule has chunks, in one store.
#include <functional>
#include <memory>

#include "io/config/config.h"
#include "sparse/store/store.h"
#include "src/optim/optimizer.h"
#include "src/train/run/source.h"
#include "src/train/stage/part.h"

namespace espalier::train {

ProblemShape problem_of(const Source& source);

/// The layers that a config describes. Throws Failure when config and data disagree.
std::vector<std::unique_ptr<model::Layer>> make_layers(const io::Config& config,
                                                       const ProblemShape& problem);
/// All of them.
model::Network make_network(const io::Config& config, const ProblemShape& problem);

/// The parameters that a stage of these parts holds, as numbers in forward order of the whole
/// network; in the order of its store. Without `borrowed` those that it owns.
std::vector<size_t> parameters_of(std::span<const std::unique_ptr<model::Layer>> layers,
                                  std::span<const PartShape> parts, bool borrowed = true);

/// How activations and their gradients cross the ends of stages.
kernels::WireFormat activation_format(const io::Config& config);

/// How parameters are held under this config; without `training` weights only.
sparse::StoreOptions store_options(const io::Config& config, bool training);

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
    std::vector<PartShape> parts{};                ///< ascending; empty: one, of all layers
  };
  Stage(const io::Config& config, const ProblemShape& problem, Stream& stream,
        const kernels::Kernels& kernels, const Options& options);

  sparse::Store& store() { return *store_; }
  const sparse::Store& store() const { return *store_; }
  std::span<const std::unique_ptr<Part>> parts() const { return parts_; }
  const ProblemShape& problem() const { return problem_; }
  /// The parameter that a layer of another stage uses too (tied embeddings); empty: none.
  std::string_view tied_parameter() const { return tied_parameter_; }
  bool tied_apart() const { return !tied_parameter_.empty(); }
  const PassCost& cost() const { return cost_; }  ///< of a micro-batch through all parts
  Stream& stream() { return stream_; }
  const kernels::Kernels& kernels() const { return kernels_; }

  // Of a stage that is the whole network:

  /// Views of the micro-batch buffers for `samples` samples: fill them, then call one of the below.
  Tensor inputs(int64_t samples) { return feed(samples).inputs; }
  Tensor targets(int64_t samples) { return feed(samples).targets; }
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

  // Of any stage:

  /// The flat elements that end with layer `layer` of part `part`: [0, end) holds the gradients of
  /// it and of all that come after it in the network.
  int64_t end_of_layer(size_t part, size_t layer) const;

  /// Asks for it; `result` waits, and tells what came of it.
  optim::AskedUpdate update(int64_t step, double lr, const optim::StepHooks& hooks = {}) {
    return optimizer_.ask(stream_, step, lr, {.first = 0, .end = store_->parameters().size()},
                          hooks);
  }
  /// Of one part alone, clipped by its own norm.
  optim::AskedUpdate update_part(size_t part, int64_t step, double lr) {
    return optimizer_.ask(stream_, step, lr, parameters_of_part(part));
  }
  /// Of updates from now on; see Optimizer.
  void set_gradient_scale(double scale, int64_t left_out) { optimizer_.set_scale(scale, left_out); }
  optim::StepResult result(const optim::AskedUpdate& asked) { return optimizer_.result(asked); }
  /// Of the update asked for last, as kernels find it (optim/norm.h).
  Tensor clip_factor() const { return optimizer_.clip_factor(); }
  sparse::ParameterRange parameters_of_part(size_t part) const {
    const bool last = part + 1 == parts_.size();
    return {.first = first_parameter_[part].front(),
            .end = last ? store_->parameters().size() : first_parameter_[part + 1].front()};
  }
  /// Of a dry stage: what a pass takes, by part.
  std::vector<PassCost> measure();
  /// Ascending ends of the layers' parts of the flat arrays, in backward order.
  std::vector<int64_t> boundaries() const;

 private:
  std::vector<std::unique_ptr<Part>> make_parts(const io::Config& config, const Options& options);
  std::unique_ptr<sparse::Store> make_store(const io::Config& config, const Options& options);
  Part& whole();
  Part::Feed feed(int64_t samples);

  ProblemShape problem_;
  Stream& stream_;
  const kernels::Kernels& kernels_;
  std::string_view tied_parameter_;
  std::vector<std::unique_ptr<Part>> parts_;
  std::unique_ptr<sparse::Store> store_;
  optim::Optimizer optimizer_;
  PassCost cost_;
  std::vector<std::vector<size_t>> first_parameter_;  ///< [part][layer], of store_->parameters()
};

/// Measures a pass of this config by running it on "dry" kernels, without memory: forward and
/// backward when training, else an evaluation. By part. Of `options` the masks do not matter.
/// Layers may take other memory `on_device`.
std::vector<PassCost> measure_pass(const io::Config& config, const ProblemShape& problem,
                                   const Stage::Options& options, bool on_device = false);

}  // namespace espalier::train
