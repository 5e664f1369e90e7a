#include "src/optim/prediction.h"

#include "src/optim/registry.h"
#include "src/optim/schedule.h"

namespace espalier::optim {
namespace {

constexpr PredictionEntry kPredictions[]{
    {.name = "none", .help = "the current weights"},
    {.name = "stash",
     .help = "backward with the weights of its forward (PipeDream)",
     .keeps = true},
    {.name = "2bw",
     .help = "the weights before the last update, on all stages (PipeDream-2BW)",
     .keeps = true,
     .previous = true},
    {.name = "spectrain",
     .help = "weights predicted along the optimizer's direction (SpecTrain)",
     .predicts = true}};

}  // namespace

Registry<PredictionEntry> predictions() { return pointers_into<kPredictions>(); }

const PredictionEntry& prediction_entry(std::string_view name) {
  return find(predictions(), "weight prediction", name);
}

kernels::PredictArgs::Term prediction_term(const io::OptimizerConfig& config,
                                           const PredictionHorizon& from) {
  require(from.done >= 1 && from.ahead >= 1, "an update to go on from", from.done, from.ahead);
  const double lr = learning_rate(config, from.done, from.steps) * from.ahead;
  return optimizer_of(config).predict(config, from.done, lr);
}

}  // namespace espalier::optim
