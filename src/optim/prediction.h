#pragma once
// Weight prediction: selects the weights that a stage of an asynchronous pipeline computes with.
// Between the forward of a micro-batch and the update with its gradient, stage k makes d other
// updates. W_t: the weights after t updates; W^_{t+s}: weights predicted s updates ahead.
//
//   name        forward                       backward           source
//   none        W_t                           W_{t+d}            vanilla asynchronous
//   stash       W_t                           W_t                PipeDream (SOSP 2019)
//   2bw         W_{u-1} of mini-batch u; d is 1    W_{u-1}       PipeDream-2BW (ICML 2021)
//   spectrain   W^_{t+d+floor(k/2)}           W^_{t+d+floor(k/2)}   SpecTrain (Chen et al., 2018)
//
// A prediction follows the optimizer's direction (momentum m of SGD, with Nesterov's momentum too;
// m^ / (sqrt(v^) + epsilon) of AdamW) without weight decay:  W^_{t+s} = W_t - s lr m.
#include "io/config/config.h"
#include "src/core/registry.h"
#include "src/kernels/kernels.h"

namespace espalier::optim {

struct PredictionEntry {
  std::string_view name;
  std::string_view help;
  bool predicts = false;  ///< forward and backward compute with weights ahead
  bool keeps = false;     ///< backward computes with its forward's weights
  bool previous = false;  ///< passes use the weights before the last update, the same on all stages
};

Registry<PredictionEntry> predictions();
/// Throws Failure that lists the names.
const PredictionEntry& prediction_entry(std::string_view name);

/// A prediction from the weights after `done` >= 1 updates, `ahead` updates further, in a run of
/// `steps`.
struct PredictionHorizon {
  int64_t done = 1;
  int ahead = 1;
  int64_t steps = 1;
};
kernels::PredictArgs::Term prediction_term(const io::OptimizerConfig& config,
                                           const PredictionHorizon& from);

}  // namespace espalier::optim
