#pragma once
// A linear map with its parameters. It keeps no activations: callers pass what backward needs.
#include <optional>
#include <span>
#include <string>

#include "sparse/weight/weight.h"
#include "src/model/layer.h"

namespace espalier::model {

/// y = x Wᵀ + b. W [out, in], b [out]; x [R, in], y [R, out].
class Linear {
 public:
  struct Options {
    float deviation = 0.02F;  ///< of the initial weights
    bool bias = true;
    bool prunable = true;
    sparse::Scaling scaling = sparse::Scaling::hidden;
    int64_t width = 0;                ///< of the network here; 0: the number of inputs
    bool deviation_by_width = false;  ///< the deviation is proportional to 1 / sqrt(width)
    int64_t rows = 0;                 ///< ParameterSpec: rows, window, groups, parts
    std::optional<kernels::Window> window{};
    int64_t groups = 1;
    int64_t parts = 1;
  };
  Linear(const std::string& name, int64_t in, int64_t out, const Options& options);
  /// Uses the weight of another layer (tied embeddings): declares no parameter, has no bias.
  static Linear tied_to(std::string weight_name, int64_t in, int64_t out);

  std::vector<sparse::ParameterSpec> parameters() const;
  void bind(sparse::Store& store, const kernels::Kernels& kernels);

  const std::string& name() const { return weight_name_; }
  int64_t in() const { return in_; }
  int64_t out() const { return out_; }
  sparse::Weight& weight() { return *weight_; }
  Tensor bias() const { return bias_ != nullptr ? bias_->dense : Tensor(); }
  Tensor bias_gradient() const {
    return bias_ != nullptr ? store_->full_gradient(*bias_) : Tensor();
  }
  /// Calls pass.on_input, if set; forward() does so itself.
  void report_input(const Pass& pass, const Tensor& x) const;
  /// y = x Wᵀ + b (+ addend), and activated = f(y) if set. Sets args.bias.
  void forward(Pass& pass, sparse::Weight::Apply args);
  /// dx = dy W, times f'(preactivation) if set.
  void backward_input(Pass& pass, const sparse::Weight::ApplyTransposed& args);
  /// dW (+)= dyᵀ x and db (+)= column sums of dy. With pass.deferred: added to its list.
  void backward_weight(Pass& pass, const Tensor& x, const Tensor& dy, bool accumulate);
  /// The same at once. Sets args.bias_gradient.
  void weight_gradient(Pass& pass, sparse::Weight::AccumulateGradient args);

 private:
  std::string weight_name_;
  std::string bias_name_;  ///< empty: none
  int64_t in_, out_;
  Options options_;
  bool tied_ = false;
  sparse::Store* store_ = nullptr;
  sparse::Parameter* bias_ = nullptr;
  std::optional<sparse::Weight> weight_;
};

/// Options of a map into the residual stream of a transformer: initial deviation
/// 0.02 / sqrt(2 blocks).
struct IntoResidual {
  int64_t width = 1;   ///< of the stream
  int64_t tokens = 1;  ///< of a sequence
  int64_t blocks = 1;  ///< of the network
  bool bias = true;
};
Linear::Options into_residual(const IntoResidual& options);

/// backward_weight of maps that read the same x. Deferred, it keeps one copy of x and of each dy.
struct WeightGradient {
  Linear* linear = nullptr;
  Tensor dy;          ///< of the map, or of several side by side
  int64_t first = 0;  ///< the map's columns of it

  Tensor columns() const { return dy.column_range(first, linear->out()); }
};
void backward_weights(Pass& pass, const Tensor& x, std::span<const WeightGradient> maps,
                      bool accumulate);

}  // namespace espalier::model
