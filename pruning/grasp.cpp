// GraSP: keeps the elements whose removal lowers the norm of the gradient most, before the first
// step. With g the gradient of the prunable weights and H its derivative, both summed over a few
// batches, removal of element i changes |g|² / 2 by about -w_i (H g)_i: the elements with the
// largest scores -w (H g) are pruned. H g comes from two gradients, at w and at w + e g:
//
//   scores = g(w)                  first passes
//   scores = g(w) - g(w + e g)     second passes; = -e H g, up to terms of e²
//
// e > 0 is common to all elements and changes no order. Source: Wang, Zhang and Grosse, "Picking
// winning tickets before training by preserving gradient flow", ICLR 2020.
#include "pruning/registry.h"
#include "pruning/selection.h"

namespace espalier::pruning {
namespace {

/// Adds `sign` times the gradient of the kept elements.
template <int sign>
void add_gradient(const Candidate& candidate, std::span<const float> gradient,
                  std::span<float> scores) {
  const sparse::Mask mask = candidate.index->mask();
  float* score = scores.data();
  sparse::for_each_one(mask.words(), [&](int64_t position) {
    *score++ += static_cast<float>(sign) * gradient[static_cast<size_t>(position)];
  });
}

Result grasp(std::span<const Candidate> candidates, const Settings& settings) {
  return keep_largest(candidates, settings, [&](size_t i, const sparse::Mask& mask, auto&& fn) {
    const float* value = candidates[i].values.data();
    const float* score = candidates[i].scores.data();
    sparse::for_each_one(
        mask.words(), [&](int64_t position) { fn(position, ordered_key(-(*value++ * *score++))); });
  });
}

}  // namespace

extern const Method kGrasp{
    .name = "grasp",
    .help = "prunes the largest -value x (Hessian x gradient), over some batches",
    .run = grasp,
    .scope = Scope::layer,
    .kind = OneShot{.score = add_gradient<1>, .score_shifted = add_gradient<-1>},
};

}  // namespace espalier::pruning
