#pragma once
// A stage: one rank's share of the network, with its parameters, optimizer and tapes. It joins
// model, masks and optimizer, and does not communicate. Without a pipeline it is one part (part.h)
// of all layers; a pipeline rank has one part per chunk of its schedule, all in one store.
#include <functional>
#include <memory>

#include "io/config/config.h"
#include "sparse/store/store.h"
#include "src/optim/optimizer.h"
#include "src/train/stage/part.h"
#include "src/train/stage/teacher.h"

namespace espalier::train {

/// The parameters that a stage of these parts holds, in the order of its store, as numbers in
/// forward order of the whole network. Without `borrowed`: only parameters that it owns.
std::vector<size_t> parameters_of(std::span<const std::unique_ptr<model::Layer>> layers,
                                  std::span<const PartShape> parts, bool borrowed = true);

/// The type in which a step sums so many gradients (micro-batches x replicas):
/// train.gradient_dtype. "auto" is fp32, or train.dtype for a single one. Sums in 16 bits lose
/// summands: 1,024 of equal size lost 29 % of the norm in bf16.
DType gradient_type(const io::Config& config, int64_t summands);

class Stage {
 public:
  struct Options {
    int64_t micro_batch = 1;  ///< samples, at most
    bool training = true;
    bool generation = false;  ///< not for training: for Generator (generation/generator.h)
    model::Recompute recompute = model::Recompute::none;
    bool dry = false;  ///< allocates nothing; kernels must be "dry"
    /// Initial masks (masks/initial_masks.h); empty: all elements are kept.
    std::function<sparse::Mask(size_t p)> masks{};
    std::vector<int64_t> planned{};  ///< of a dry stage, instead of masks: kept elements
    std::shared_ptr<sparse::Sharding> sharding{};  ///< of optimizer state; empty: not sharded
    std::vector<PartShape> parts{};                ///< ascending; empty: one, of all layers
    const TeacherFile* teacher = nullptr;          ///< of training; null: none
  };
  Stage(const io::Config& config, const ProblemShape& problem, Stream& stream,
        const kernels::Kernels& kernels, const Options& options);

  /// Of a stage that ends the network of a run with a teacher; else null. Its weights are not
  /// loaded.
  Teacher* teacher() { return teacher_.get(); }
  sparse::Store& store() { return *store_; }
  const sparse::Store& store() const { return *store_; }
  std::span<const std::unique_ptr<Part>> parts() const { return parts_; }
  const ProblemShape& problem() const { return problem_; }
  /// The parameter that a layer of another stage uses too (tied embeddings); empty: none.
  std::string_view tied_parameter() const { return tied_parameter_; }
  bool tied_head_on_other_stage() const { return !tied_parameter_.empty(); }
  const PassCost& cost() const { return cost_; }  ///< of a micro-batch through all parts
  Stream& stream() { return stream_; }
  const kernels::Kernels& kernels() const { return kernels_; }

  // Only for a stage of the whole network:

  /// Micro-batch buffers for `samples` samples: fill them, then call one of the functions below.
  Tensor inputs(int64_t samples) { return feed(samples).inputs; }
  Tensor targets(int64_t samples) { return feed(samples).targets; }
  /// Forward and backward; returns the sum of the rows' losses.
  double forward_backward(const MicroBatch& batch);
  /// Sums over the rows without training.
  Part::Loss evaluate(int64_t samples);
  /// The loss of each row without training.
  std::vector<float> row_losses(int64_t samples);
  /// Prediction of the token after `tokens`, 1 to features() of them: fp32 [1, classes], valid
  /// until the next call. The cost depends on the number of tokens given.
  Tensor predict(std::span<const int32_t> tokens);

  // For any stage:

  /// [0, end) of the flat arrays holds layer `layer` of part `part` and all layers after it.
  int64_t end_of_layer(size_t part, size_t layer) const;

  /// Enqueues the update; `result` waits for it.
  optim::PendingUpdate update(int64_t step, double lr, const optim::StepHooks& hooks = {}) {
    return optimizer_.enqueue(stream_, step, lr, {.first = 0, .end = store_->parameters().size()},
                              hooks);
  }
  /// Updates one part, clipped by its own norm.
  optim::PendingUpdate update_part(size_t part, int64_t step, double lr) {
    return optimizer_.enqueue(stream_, step, lr, parameters_of_part(part));
  }
  /// For the next updates; see Optimizer.
  void set_gradient_scale(double scale, int64_t skipped) { optimizer_.set_scale(scale, skipped); }
  void set_gradient_hooks(optim::GradientHooks hooks) { optimizer_.set_hooks(std::move(hooks)); }
  optim::StepResult result(const optim::PendingUpdate& update) { return optimizer_.result(update); }
  const optim::Parametrization& parametrization() const { return optimizer_.parametrization(); }
  /// Clip factor of the last enqueued update, in kernels' memory (optim/norm.h).
  Tensor clip_factor() const { return optimizer_.clip_factor(); }
  sparse::ParameterRange parameters_of_part(size_t part) const {
    const bool last = part + 1 == parts_.size();
    return {.first = first_parameter_[part].front(),
            .end = last ? store_->parameters().size() : first_parameter_[part + 1].front()};
  }
  /// Cost of a pass by part. Dry stages only.
  std::vector<PassCost> measure();
  /// Ascending ends of the layers in the flat arrays, in backward order.
  std::vector<int64_t> boundaries() const;

 private:
  using Layers = model::Layers;
  /// `layers`: of the whole network; parts take theirs.
  Stage(const io::Config& config, const ProblemShape& problem, Stream& stream,
        const kernels::Kernels& kernels, const Options& options, Layers layers);
  std::unique_ptr<sparse::Store> make_store(const io::Config& config, const Options& options,
                                            const Layers& layers) const;
  std::vector<std::unique_ptr<Part>> make_parts(const io::Config& config, const Options& options,
                                                Layers layers) const;
  Part& whole();
  Part::Feed feed(int64_t samples);

  ProblemShape problem_;
  Stream& stream_;
  const kernels::Kernels& kernels_;
  std::vector<PartShape> shapes_;
  std::string_view tied_parameter_;
  std::unique_ptr<sparse::Store> store_;
  std::unique_ptr<Teacher> teacher_;
  std::vector<std::unique_ptr<Part>> parts_;
  optim::Optimizer optimizer_;
  PassCost cost_;
  std::vector<std::vector<size_t>> first_parameter_;  ///< [part][layer], of store_->parameters()
};

/// Cost of a pass of this config by part, from a run on "dry" kernels without memory: forward and
/// backward if training, else an evaluation. Masks in `options` are ignored. `on_device`: layers
/// may need different memory there.
std::vector<PassCost> measure_pass(const io::Config& config, const ProblemShape& problem,
                                   const Stage::Options& options, bool on_device = false);

/// Format of a parameter's gradient (wire_formats.h); empty: chosen by measurement.
std::optional<kernels::WireFormat> gradient_format(const io::Config& config, const Stage& stage,
                                                   const sparse::Parameter& parameter);

}  // namespace espalier::train
