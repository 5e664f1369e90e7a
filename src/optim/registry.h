#pragma once
// Optimizers: one file each (adamw.cpp, lion.cpp, sgd.cpp); the list is in registry.cpp. An
// optimizer is an update rule for the kept elements of a parameter. Store (sparse/store) holds its
// moments; Optimizer (optimizer.h) launches the rule's kernel for the parameters that a rank owns.
#include "io/config/config.h"
#include "src/core/registry.h"
#include "src/kernels/kernels.h"

namespace espalier::optim {

/// The inputs that all parameters of one update share.
struct UpdateStep {
  const io::OptimizerConfig& config;
  int64_t count = 1;  ///< applied updates including this one: t of the bias correction
  float lr = 0;
};

struct OptimizerKind {
  std::string_view name;
  std::string_view help;
  int moments = 1;  ///< arrays of state beside the master copy: 1 or 2
  // optimizer.lr = "auto" (schedule.h):
  double rate = 0;        ///< of transformers
  double image_rate = 0;  ///< of other networks
  /// The size of an update does not depend on the size of the gradient.
  bool scale_free = false;
  kernels::UpdateRule rule = kernels::UpdateRule::adamw;
  /// Sets the numbers of the rule: betas, epsilon, bias corrections; may set a variant of `rule`
  /// with the same moments.
  void (*set)(const UpdateStep& step, kernels::UpdateArgs& args) = nullptr;
  /// Weight prediction: one term of kernels::PredictArgs that moves the weights as an update would
  /// with learning rate `lr` and the moments as they are after `done` updates. Null: the update is
  /// not linear in its moments.
  kernels::PredictArgs::Term (*predict)(const io::OptimizerConfig& config, int64_t done,
                                        double lr) = nullptr;
  /// Whether the moments hold a direction to predict along.
  bool (*has_direction)(const io::OptimizerConfig& config) = nullptr;
};

/// All optimizers.
Registry<OptimizerKind> optimizers();
/// Throws Failure that lists the names.
const OptimizerKind& optimizer_of(const io::OptimizerConfig& config);

}  // namespace espalier::optim
