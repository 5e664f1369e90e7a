#pragma once
// The layer interface and the state of a pass over one micro-batch. Read this first.
//
// A network is a list of layers. A layer declares its parameters, is bound to a store, and then
// runs forward and backward on tapes, one tape for each micro-batch in flight. Layers never branch
// on values and know nothing of ranks and optimizers (batch norm may gather numbers of replicas
// through a callback), so a dry pass (kernels "dry", a dry tape) runs the same code and counts
// flops, bytes and memory.
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "sparse/store/store.h"
#include "src/kernels/kernels.h"
#include "src/model/tape.h"

namespace espalier::model {

/// Activations that backward computes again instead of storing them; changes no bit of a run.
enum class Recompute : uint8_t {
  none,
  selective,  ///< results of one pass over saved tensors: norm outputs, activated MLP
  full,       ///< layers with `replay` store only their input; their forward runs again
};
std::span<const std::string_view> recompute_names();
std::string_view name_of(Recompute recompute);
/// Throws Failure that lists the names.
Recompute recompute_by_name(std::string_view name);

struct Pass;
struct CachedPass;

/// Deferred weight gradients (the W part of a split backward), with copies of their operands on a
/// tape of their own.
struct DeferredGradients {
  Tape& tape;
  std::vector<std::function<void(Pass&)>> gradients{};
};

/// Distillation: another network, the teacher, predicts the targets of the same inputs. The last
/// layer trains on (1 - weight) losses + weight teacher_losses (kernels::DistillationArgs).
struct DistillationTarget {
  float weight = 0;
  float temperature = 1;
  Tensor losses;  ///< fp32 [rows]: written by the last layer
  /// The teacher's logits of rows [first, first + rows): fp32 [rows, classes], valid until the next
  /// call.
  std::function<Tensor(int64_t first, int64_t rows)> logits;
};

/// For the last layer (compute_losses).
struct Losses {
  Tensor targets{};       ///< int32 [rows] of the last layer
  Tensor values{};        ///< fp32 [rows]: written
  Tensor target_ranks{};  ///< likewise (kernels::CrossEntropyArgs); empty: none
  float scale = 1;        ///< gradient of the loss with respect to one row's loss
  float smoothing = 0;    ///< of the targets in `values`; not with `distillation`
  const DistillationTarget* distillation = nullptr;  ///< in training; null: targets alone
};

/// Of layers/batch_norm.h.
struct BatchStatistics {
  /// The replicas whose micro-batches share statistics.
  struct Replicas {
    int64_t count = 1;
    /// All-gather in host memory: `all` gets the numbers of each replica, in order. Collective.
    std::function<void(std::span<const float> mine, std::span<float> all)> gather;
  };
  float share = 1;                     ///< samples / those of the global batch
  const Replicas* replicas = nullptr;  ///< in training; null: statistics of this micro-batch alone
};

/// Of layers/dropout.h.
struct Dropout {
  float rate = 0;              ///< 0 for inference
  uint64_t key = 0;            ///< of (seed, step)
  int64_t first_sequence = 0;  ///< of inputs in the global batch: draws depend on no rank
};

/// One pass of a micro-batch through the layers.
struct Pass {
  Stream& stream;
  const kernels::Kernels& kernels;
  Tape& tape;
  DType dtype = DType::fp32;              ///< compute type
  int64_t samples = 0;                    ///< B
  Tensor inputs{};                        ///< int32 [B, T] tokens, or fp32 [B, features]
  bool training = false;                  ///< save the tensors that backward needs
  bool accumulate = false;                ///< add to the gradients of earlier micro-batches
  Recompute recompute = Recompute::none;  ///< in training
  /// Tied embeddings: the head, with its part of their gradient, is on another stage.
  bool tied_head_on_other_stage = false;
  Losses losses{};
  BatchStatistics batch{};
  Dropout dropout{};
  const CachedPass* cached = nullptr;     ///< of generation (key_value_cache.h); null: none
  DeferredGradients* deferred = nullptr;  ///< set: backward defers matrix gradients to it
  const std::function<void()>* after_layer = nullptr;  ///< called after each layer; null: nothing
  /// Called by each linear map with the name of its weight and its inputs; null: nothing.
  const std::function<void(std::string_view weight, const Tensor& x)>* on_input = nullptr;
};

/// Type and shape of the tensor between two layers.
struct TensorSpec {
  DType dtype = DType::fp32;
  Shape shape;
  size_t bytes() const { return static_cast<size_t>(shape.count()) * size_of(dtype); }
};

class Layer {
 public:
  virtual ~Layer() = default;

  virtual std::string_view name() const = 0;
  /// Differs between layers whose parameters have equal shapes and whose times differ (windows of
  /// attention). Layers with equal shapes and variants are timed once.
  virtual int64_t variant() const { return 0; }
  /// In forward order.
  virtual std::vector<sparse::ParameterSpec> parameters() const = 0;
  /// Parameters of other layers that this layer reads; a store without those layers needs copies.
  virtual std::vector<sparse::ParameterSpec> borrowed() const { return {}; }
  /// Called once; the store outlives the layer.
  virtual void bind(sparse::Store& store, const kernels::Kernels& kernels) = 0;

  /// The output for `samples` samples, its first extent, in this compute type. Not for the last
  /// layer.
  virtual TensorSpec output(int64_t samples, DType dtype) const;

  /// Returns the output, pushed on the tape. The first layer reads pass.inputs instead of `x`. The
  /// last layer writes the losses and, in training, the gradient of its input; it returns {}.
  virtual Tensor forward(Pass& pass, const Tensor& x) = 0;
  /// `dy`: gradient of the output, may be overwritten. Returns the gradient of the input: `dy`
  /// updated in place, or memory on the tape. Accumulates the gradients of the parameters. Saved
  /// tensors may be overwritten.
  virtual Tensor backward(Pass& pass, const Tensor& dy) = 0;

  /// Whether `replay` is implemented; then backward updates `dy` in place.
  virtual bool can_replay() const { return false; }
  /// Recomputes from `x` what a training forward saves; the output is not computed.
  virtual void replay(Pass& pass, const Tensor& x);

  /// Predictions for the rows of x, fp32 [rows, classes]. Last layer only.
  virtual Tensor logits(Pass& pass, const Tensor& x);
};

/// For a last layer: losses of rows [first, first + logits.rows()) of pass.losses.targets and, with
/// `dlogits`, their gradient (of the type of `dlogits`, which may be `logits`).
void compute_losses(Pass& pass, int64_t first, const Tensor& logits, const Tensor& dlogits);

using Layers = std::vector<std::unique_ptr<Layer>>;
/// Parameters of all layers, in forward order.
std::vector<sparse::ParameterSpec> parameters_of(std::span<const std::unique_ptr<Layer>> layers);

}  // namespace espalier::model
