// ELSA: trains towards sparse weights with ADMM, on the loss itself, and prunes at the end of the
// window. z are the nearest sparse weights, u the scaled dual variable, λ = kPenalty:
//
//   every step             gradient += λ (w - z + u), that of λ/2 |w - z + u|²
//   every K steps          z = the largest |w + u| under the target sparsity, else 0
//                          u += w - z
//   begin of the window    z from w alone; u = 0
//   end of the window      the mask of z
//
// Source: "ELSA: extreme LLM sparsity via surrogate-free ADMM", arXiv:2510.01650.
#include <cmath>

#include "pruning/registry.h"
#include "pruning/selection.h"

namespace espalier::pruning {
namespace {

/// In trials 0.1 lost 0.06 of validation loss and 0.001 won 0.02, less than methods differ by
/// (benchmarks/results/moving-masks.md).
constexpr float kPenalty = 0.01F;

void add(const GradientStep& learned) {
  const auto& [z, u] = learned.arrays;
  for (size_t i = 0; i < z.size(); ++i) {
    learned.gradient[i] += kPenalty * (learned.values[i] - z[i] + u[i]);
  }
}

void score(std::span<const float> values, std::span<const std::vector<float>> arrays,
           std::span<float> scores) {
  const std::vector<float>& u = arrays[1];
  for (size_t i = 0; i < scores.size(); ++i) {
    scores[i] = std::fabs(values[i] + u[i]);
  }
}

void project(const Candidate& candidate, const sparse::Mask& mask, bool first,
             std::span<std::vector<float>> arrays) {
  std::vector<float>& z = arrays[0];
  std::vector<float>& u = arrays[1];
  size_t i = 0;
  const sparse::Mask now = candidate.index->mask();
  sparse::for_each_one(now.words(), [&](int64_t position) {
    const float value = candidate.values[i];
    z[i] = mask[position] ? value + u[i] : 0.0F;
    u[i] += first ? 0.0F : value - z[i];
    ++i;
  });
}

}  // namespace

extern const Method kElsa{
    .name = "elsa",
    .help = "the largest |value| after steps that pull the others to zero (ADMM)",
    .run = keep_largest_scores,
    .every = 32,
    .kind =
        Learning{
            .arrays = 2, .add = add, .score = score, .project = project, .prunes_at_end = true},
};

}  // namespace espalier::pruning
