// Movement pruning: keeps the elements that training moves away from zero, by -Σ w dL/dw over the
// steps of the window. Elements keep their scores when masks change. Source: Sanh, Wolf and Rush,
// "Movement pruning: adaptive sparsity by fine-tuning", NeurIPS 2020; there pruned elements may
// return, here they do not.
#include "pruning/registry.h"
#include "pruning/schedule.h"
#include "pruning/selection.h"

namespace espalier::pruning {
namespace {

void observe(const GradientStep& learned) {
  const std::span<float> scores = learned.arrays[0];
  for (size_t i = 0; i < scores.size(); ++i) {
    scores[i] -= learned.values[i] * learned.gradient[i];
  }
}

void summed_scores(std::span<const float> /*values*/, std::span<const std::vector<float>> arrays,
                   std::span<float> scores) {
  std::ranges::copy(arrays[0], scores.begin());
}

}  // namespace

extern const Method kMovement{
    .name = "movement",
    .help = "the largest -value x gradient, summed over the steps before",
    .run = keep_largest_scores,
    .scope = Scope::layer,
    .kind = Learning{.arrays = 1, .observe = observe, .score = summed_scores},
};

}  // namespace espalier::pruning
