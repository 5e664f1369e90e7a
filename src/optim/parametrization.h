#pragma once
// Parametrization: the learning rate and the initial values of each parameter, as factors of those
// of the config, so that what is tuned on a narrow or dense network also fits wide or sparse ones.
// Source: SμPar (Dey, Bergsma, Hestness, NeurIPS 2024, arXiv 2405.15743); its limits of full
// density: μP (Yang et al., Tensor Programs V, arXiv 2203.03466, table 8).
//
//   m_d = width / base_width;  m_ρ = (k + c) / (n + c) of a prunable matrix, 1 of all others
//
// k: mean kept elements of a row, n: columns. c = 0: m_ρ is the density, as in SμPar.
// supar-lr has c = 8: with few inputs to a row the best rate grows more slowly than 1 / density
// (measured, docs/tuning.md).
//
//   parameter                             learning rate    initial values
//   matrix whose inputs grow with width   1 / (m_d m_ρ)    1 / sqrt(m_d m_ρ)
//   other prunable matrix                 1 / m_ρ          1 / sqrt(m_ρ)
//   what scales the logits                1 / m_d          1 / m_d
//   other (embedding, head, norm, bias)   1                1
//
// supar-lr: initial values have m_ρ = 1. Where the network's own deviation already falls with
// 1 / sqrt(width), as an mlp's does, their factor is multiplied by sqrt(m_d).
//
// The density is that of the current mask, so factors change when masks do. The logits scale with
// the last norm of a gpt and with the weights of an mlp's classifier; their factor replaces the
// multiplier 1 / m_d of μP's logits.
//
// An update of sgd grows with the gradient. Its learning rates are 1 / m_ρ for hidden matrices,
// 1 / m_d for what scales the logits, and m_d / m_ρ for all others.
//
// Weight decay does not follow these factors: it stays lr · weight_decay a step. (Measured:
// docs/tuning.md.)
//
// Attention divides by the root of a head's size, which must not change with the width: change
// model.heads in proportion.
#include <string>
#include <vector>

#include "io/config/config.h"
#include "sparse/store/store.h"
#include "src/core/registry.h"

namespace espalier::optim {

struct ParametrizationKind {
  std::string_view name;
  std::string_view help;
  bool scales = false;           ///< by the table above
  bool keeps_deviation = false;  ///< the density does not change initial values
  double few_inputs = 0;         ///< c above
};

Registry<ParametrizationKind> parametrizations();

class Parametrization {
 public:
  struct Factors {
    double lr = 1;             ///< of the learning rate
    double initial_scale = 1;  ///< of the deviation
  };

  /// All factors are 1.
  Parametrization() = default;
  explicit Parametrization(const io::Config& config);

  bool scales() const { return kind_ != nullptr && kind_->scales; }
  Factors factors_of(const sparse::Parameter& parameter) const;
  /// Whether any factor is not 1.
  bool has_effect(std::span<const sparse::Parameter> parameters) const;
  /// The largest factor of a learning rate.
  double largest_lr_factor(std::span<const sparse::Parameter> parameters) const;
  /// The factors of some parameters, as a table for people; equal rows together.
  std::string format_table(std::span<const sparse::Parameter> parameters) const;

 private:
  const ParametrizationKind* kind_ = nullptr;
  double base_width_ = 0;  ///< 0: that of the network
  bool scale_free_ = true;
  std::vector<std::string> exclude_{};
};

}  // namespace espalier::optim
