#pragma once
// The MLP of a transformer block, with its parameters:
//
//   plain   y = f(x Weᵀ + be) Wcᵀ + bc
//   gated   y = (f(x Wgᵀ + bg) * (x Wuᵀ + bu)) Wcᵀ + bc     (Shazeer, "GLU variants", 2020)
//
// It keeps no activations: callers pass what backward needs.
#include <optional>
#include <string>
#include <vector>

#include "src/core/registry.h"
#include "src/model/layers/linear.h"

namespace espalier::model {

struct ActivationKind {
  std::string_view name;
  std::string_view help;
  kernels::Activation kind = kernels::Activation::none;
};
Registry<ActivationKind> activations();
/// Throws Failure that lists the names.
kernels::Activation activation_by_name(std::string_view name);
std::string_view name_of(kernels::Activation kind);

class FeedForward {
 public:
  struct Options {
    int64_t tokens = 1;  ///< T
    int64_t width = 1;   ///< C
    int64_t hidden = 4;  ///< F
    int64_t blocks = 1;  ///< of the network, for initial weights
    kernels::Activation activation = kernels::Activation::gelu;
    bool gated = false;
    bool bias = true;
  };
  /// Parameters NAME.expand.weight [F, C], or NAME.gate.weight and NAME.up.weight;
  /// NAME.contract.weight [C, F]; and biases.
  FeedForward(const std::string& name, const Options& options);

  std::vector<sparse::ParameterSpec> parameters() const;
  void bind(sparse::Store& store, const kernels::Kernels& kernels);

  struct Saved {
    Tensor expanded;  ///< [R, F]: of expand, or of up
    Tensor gate;      ///< [R, F] before f; gated only
  };
  /// Pushes what backward needs.
  Saved prepare(Pass& pass, int64_t rows) const;
  /// [R, F], on the tape: for `expand` and `activate`.
  Tensor push_activated(Pass& pass, int64_t rows) const;
  /// saved's tensors from x [R, C], and `activated`, the input of `contract`, unless it is empty.
  void expand(Pass& pass, const Tensor& x, const Saved& saved, const Tensor& activated);
  /// `activated` once more, with the same bits.
  void activate(Pass& pass, const Saved& saved, const Tensor& activated) const;
  Linear& contract() { return contract_; }

  /// From `dy`, the gradient of the output: overwrites `activated` and saved's tensors by their
  /// gradients, and accumulates the gradients of `contract`.
  void backward_contract(Pass& pass, const Saved& saved, const Tensor& activated, const Tensor& dy);
  /// dx [R, C] = gradient of x, after backward_contract; accumulates the gradients of the other
  /// maps. `dx` may be x.
  void backward_expand(Pass& pass, const Saved& saved, const Tensor& x, const Tensor& activated,
                       const Tensor& dx);

 private:
  Options options_;
  std::optional<Linear> gate_;
  Linear expand_, contract_;
};

}  // namespace espalier::model
