#pragma once
// Which weights a stage computes with, when the stages of a pipeline step by themselves
// (schedule async): between a micro-batch's forward and the update with its gradient a
// stage makes d other updates. W_t: the weights after t updates; W^_{t+s}: those predicted s
// updates ahead.
//
//   name                   forward        backward      source
//   none                   W_t            W_{t+d}       vanilla asynchronous
//   stash                  W_t            W_t           PipeDream (Narayanan et al., SOSP 2019)
//   2bw                    W_{u-1}        W_{u-1}       PipeDream-2BW (ICML 2021): of mini-batch u, on all
//                                                       stages; d is 1
//   spectrain              W^_{t+s}       W^, its own   SpecTrain (Chen et al., 2018): s = floor(k/2) + d
//                                                       forward, floor(k/2) backward, at stage k
//   spectrain-consistent   W^_{t+d}       the same      its second version
//   pipeoptim              W^_{t+d}       W_{t+d}       PipeOptim (Guan et al., 2023)
//   future-zero            W^_{t+d}       W_{t+d}       FTPipe (Eliad et al., ATC 2021)
//
// The optimizer's direction stays as it is (Momentum m of SGD, m^ / (sqrt(v^) + epsilon) of AdamW):
//   W^_{t+s} = W_t - s lr m       weight decay is not extrapolated
// future-zero lets m decay as if all coming gradients were 0, so the sum is bounded, and uses the
// coming learning rates and AdamW's weight decay:
//   SGD     W^ = W - m sum_{j=1..s} lr_j momentum^j
//   AdamW   for j = 1 … s:  W = (1 - lr_j decay) W - lr_j (beta1^j m / (1 - beta1^(t+j))) /
//                               (sqrt(v / (1 - beta2^(t+j))) + epsilon)
#include <span>
#include <string_view>
#include <vector>

#include "io/config/config.h"
#include "src/kernels/kernels.h"

namespace espalier::optim {

enum class Prediction : uint8_t {
  none,
  stash,
  two_buffers,
  spectrain,
  spectrain_consistent,
  pipeoptim,
  future_zero,
};
/// As configs name them.
std::span<const std::string_view> prediction_names();
Prediction prediction_by_name(std::string_view name);

/// What of the above differs between methods.
struct PredictionRule {
  bool predicts = false;  ///< weights ahead, in forward
  bool reuses = false;    ///< backward computes with its forward's weights
};
PredictionRule rule_of(Prediction prediction);

/// For PredictArgs: from the weights after `done` >= 1 updates, `ahead` updates on. `decays`:
/// weight decay applies to the parameter. `steps`: of the run, for the learning rates.
struct AheadOf {
  int64_t done = 1;
  int ahead = 1;
  int64_t steps = 1;
  bool decays = false;
};
std::vector<kernels::PredictArgs::Term> prediction_terms(const io::OptimizerConfig& config,
                                                         Prediction prediction,
                                                         const AheadOf& from);

}  // namespace espalier::optim
