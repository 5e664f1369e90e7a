#pragma once
// Normalisation of rows, with its parameters: weight and, where the kind is centred, bias. It keeps
// no activations: callers pass what backward needs. The kinds (`model.norm`) are in norm.cpp.
#include <string>

#include "sparse/store/store.h"
#include "src/core/registry.h"
#include "src/model/layer.h"

namespace espalier::model {

struct NormKind {
  std::string_view name;
  std::string_view help;
  bool centred = true;  ///< subtracts the mean of a row and adds a bias
};

Registry<NormKind> norms();

class Norm {
 public:
  /// `kind`: a name of norms(). Throws Failure that lists the names. `scaling`: logits if the
  /// classifier reads its output. `epsilon`: added to the mean square.
  Norm(std::string_view kind, std::string name, int64_t width,
       sparse::Scaling scaling = sparse::Scaling::base, double epsilon = 1e-5);

  std::vector<sparse::ParameterSpec> parameters() const;
  void bind(sparse::Store& store);

  /// x [R, C]; statistics fp32 [R], mean empty where the kind is not centred.
  struct Saved {
    Tensor x, mean, rstd;
  };
  /// Pushes the statistics: what backward needs.
  Saved prepare(Pass& pass, const Tensor& x) const;
  /// Writes the statistics and y [shape of x], in the compute type. A second call writes the same
  /// bits.
  void forward(Pass& pass, const Saved& saved, const Tensor& y) const;
  /// dx += gradient at saved.x, and rounded = dx unless empty (it may be dy); accumulates the
  /// gradients of weight and bias.
  void backward(Pass& pass, const Saved& saved, const Tensor& dy, const Tensor& dx,
                const Tensor& rounded = {}) const;

 private:
  const NormKind& kind_;
  std::string name_;
  int64_t width_;
  sparse::Scaling scaling_;
  float epsilon_;
  sparse::Store* store_ = nullptr;
  sparse::Parameter* weight_ = nullptr;
  sparse::Parameter* bias_ = nullptr;  ///< null: the kind is not centred
};

}  // namespace espalier::model
