#pragma once
// Dense gradients for pruning methods: of the same samples, with the same bits, on every grid of
// ranks and for every micro-batch.
//
//   samples   the first kScoredSamples of a step's global batch, or all of a smaller one
//   unit      the samples of one pass: one; with batch norm, whose statistics are those of a
//             micro-batch, as many as a micro-batch has
//   sum       of integers, gradient · 2^k rounded, so its order does not matter. 2^k of a parameter
//             follows from the largest gradient of the first unit: a unit of the sum is 2^-44 of it
//
// Replicas share the units and add their sums. A first pass of unit 0, on every replica, finds the
// 2^k. The gradient of a unit has the same bits on every grid if kernels and run.threads are equal.
//
// Memory on the host: 8 bytes for each element of the parameters that are summed at once. These
// take at most half of the model state without the optimizer's, or the largest one alone; all units
// are passed once for each such group. Cost: (units / replicas + 1) passes, times the groups, and
// 16 (p - 1) / p bytes sent for each element.
#include <functional>
#include <span>
#include <vector>

#include "parallel/transport/communicator.h"
#include "sparse/store/store.h"

namespace espalier::train {

/// Samples [first, first + count) of the global batch of a step.
struct PassSamples {
  int64_t batch = 0;  ///< steps after the present one
  int64_t first = 0;
  int64_t count = 1;
};
/// Runs forward and backward on these samples, with the same factor of the loss for each call.
using GradientPass = std::function<void(const PassSamples& samples)>;

/// The samples whose gradients are summed.
struct ScoredSamples {
  static constexpr int64_t kScoredSamples = 64;

  int64_t unit = 1;   ///< samples of a pass
  int64_t units = 1;  ///< passes

  /// `micro_batch`: of a run with batch norm; 0: there is none. `together`: replicas that pass
  /// units at the same time, because they share the statistics of batch norm.
  static ScoredSamples of(int64_t global_batch, int64_t micro_batch, int together);
};

/// Bytes of the sums of a group. `state`: of the store; `all`: elements of all summed parameters;
/// `largest`: of the largest one. The same on all replicas.
size_t gradient_sum_bytes(const sparse::StateParts& state, int64_t all, int64_t largest);
/// For plans: heap of SampleGradients::for_each over all parameters that passes show with `probed`.
size_t sample_gradient_bytes(const sparse::Store& store, sparse::Store::Probed probed,
                             int replicas);

class SampleGradients {
 public:
  struct Ranks {
    parallel::Communicator& replicas;
    parallel::Communicator* stages = nullptr;  ///< of the pipeline; null: there are none
  };
  /// All must outlive it.
  SampleGradients(sparse::Store& store, const ScoredSamples& samples, Ranks ranks,
                  const GradientPass& pass);

  using Use = std::function<void(size_t p, std::span<const float> gradient)>;
  /// Calls use(p, dense gradient) once for each parameter with wanted[p], which passes show with
  /// `probed`. Collective. Throws Failure that names the parameter if a gradient is not finite.
  void for_each(int64_t batch, const std::vector<bool>& wanted, sparse::Store::Probed probed,
                const Use& use);

 private:
  using See = std::function<void(size_t p, std::span<const float> gradient)>;
  void run_pass(int64_t batch, int64_t unit, const std::vector<bool>& wanted,
                sparse::Store::Probed probed, const See& see);
  void find_scales(int64_t batch, const std::vector<bool>& wanted, sparse::Store::Probed probed);
  std::vector<std::vector<size_t>> groups_of(const std::vector<bool>& wanted) const;
  int64_t most_of_stages(int64_t mine) const;

  sparse::Store& store_;
  ScoredSamples samples_;
  Ranks ranks_;
  const GradientPass& pass_;
  std::vector<int> exponents_;  ///< k by parameter
  std::vector<bool> scaled_;    ///< the parameters that have one
};

}  // namespace espalier::train
