#pragma once
// The layer interface, and what a pass over one micro-batch shares. Read this first.
//
// A network is a list of layers. A layer declares its parameters, is bound to a store, and then
// runs forward and backward on tapes: several micro-batches may be under way, each with a tape of
// its own. Layers never branch on values and never see ranks or optimizers, so a dry pass (kernels
// "dry", a dry tape) goes through the same code and counts flops, bytes and memory.
//
// Between layers of a GPT flows the residual stream, fp32 [B, T, C]; products run in the compute
// type.
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "sparse/store/store.h"
#include "src/kernels/kernels.h"
#include "src/model/tape.h"

namespace espalier::model {

/// What backward computes again instead of keeping it. The bits of a run do not depend on it.
enum class Recompute : uint8_t {
  none,
  selective,  ///< what one pass over kept tensors gives: norm outputs, activated MLP tensors
  full,       ///< a layer that can keeps nothing: its forward runs again from its input
};
std::span<const std::string_view> recompute_names();
std::string_view name_of(Recompute recompute);
/// Throws Failure that lists the names.
Recompute recompute_by_name(std::string_view name);

struct Pass;

/// The second half of a backward that was cut in two: gradients of weights that wait, each with
/// copies of its operands on a tape of its own.
struct WeightParts {
  Tape& tape;
  std::vector<std::function<void(Pass&)>> parts{};
};

/// One micro-batch on its way through the layers.
struct Pass {
  Stream& stream;
  const kernels::Kernels& kernels;
  Tape& tape;
  DType dtype = DType::fp32;              ///< compute type
  int64_t samples = 0;                    ///< B
  Tensor inputs;                          ///< int32 [B, T] tokens, or fp32 [B, features]
  Tensor targets;                         ///< int32, one a row of the last layer
  Tensor losses;                          ///< fp32 [rows]: written by the last layer
  bool training = false;                  ///< keep what backward needs
  Recompute recompute = Recompute::none;  ///< in training
  bool accumulate = false;                ///< add to the gradients of earlier micro-batches
  WeightParts* waiting = nullptr;         ///< set: backward leaves gradients of matrices to it
  /// Tied embeddings: the head is elsewhere, and so is its share of their gradient.
  bool tied_apart = false;
  float loss_scale = 1;      ///< gradient of the loss with respect to one row's loss
  float dropout = 0;         ///< 0 for inference
  uint64_t dropout_key = 0;  ///< of (seed, step)
  int64_t first_sequence =
      0;  ///< index of inputs[0] in the global batch: dropout ignores the ranks
  const std::function<void()>* between = nullptr;  ///< called after each layer; null: nothing
};

/// What flows between two layers.
struct Flow {
  DType dtype = DType::fp32;
  Shape shape;
  size_t bytes() const { return static_cast<size_t>(shape.count()) * size_of(dtype); }
};

class Layer {
 public:
  virtual ~Layer() = default;

  virtual std::string_view name() const = 0;
  /// In forward order.
  virtual std::vector<sparse::ParameterSpec> parameters() const = 0;
  /// Of other layers, read here, too: a store without those layers needs them all the same.
  virtual std::vector<sparse::ParameterSpec> borrowed() const { return {}; }
  /// Called once; the store outlives the layer.
  virtual void bind(sparse::Store& store, const kernels::Kernels& kernels) = 0;

  /// The output for `samples` samples in this compute type. Not of the last layer.
  virtual Flow output(int64_t samples, DType dtype) const;

  /// Returns the output, pushed on the tape. The first layer ignores `x` and reads pass.inputs; the
  /// last one writes pass.losses (and, in training, already the gradient of its input) and returns
  /// {}.
  virtual Tensor forward(Pass& pass, const Tensor& x) = 0;
  /// `dy`: gradient of the output, may be overwritten. Returns the gradient of the input: `dy`
  /// itself updated in place, or memory that is on the tape. Accumulates the parameters' gradients;
  /// what was saved is used up.
  virtual Tensor backward(Pass& pass, const Tensor& dy) = 0;

  /// Whether backward can follow a forward without pass.training, after a `replay` from the same
  /// input. Such a layer's backward updates `dy` in place.
  virtual bool can_replay() const { return false; }
  /// Pushes and saves what forward would have kept, in training; the output is not computed.
  virtual void replay(Pass& pass, const Tensor& x);

  /// What the last layer predicts: fp32 [rows, classes] for the rows of x. Only the last layer has
  /// it.
  virtual Tensor logits(Pass& pass, const Tensor& x);
};

}  // namespace espalier::model
