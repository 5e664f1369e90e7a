#pragma once
// Does sparsity pay? Networks that train for the same time: the dense one of a config, smaller
// dense ones, the pruned one, a wider pruned one, and one that is sparse first and dense last. Pure
// functions: contenders, their steps, the next learning rate to try, and the answer.
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "io/config/config.h"

namespace espalier::planner {

struct Contender {
  enum class Kind : uint8_t { dense, smaller_dense, sparse };  ///< sparse: in some of its steps
  std::string name;                                            ///< "dense-0.75-width"
  Kind kind = Kind::dense;
  io::Config config{};     ///< with a number as learning rate; steps of the given config
  std::string unpruned{};  ///< name of the unpruned network of this width,
  std::string pruned{};    ///< and of the pruned one: their steps are timed
};
struct LeftOut {
  std::string name, reason;
};
struct Contenders {
  std::vector<Contender> found;  ///< the first is the dense network of the config
  std::vector<LeftOut> left_out;
};
/// A config without pruning gets random masks of pruning.sparsity, in each matrix. Rates of other
/// widths are those of the config's width (base_width), where the parametrization scales them.
/// `trained`: runs start from weights of a file, which have one width.
Contenders contenders_of(const io::Config& config, bool trained);

/// The same run in so many steps: warm-up, decays, pruning, evaluations and checkpoints keep their
/// share of the steps; each takes at least 1, unless it is 0 or off.
io::Config with_steps(io::Config config, int64_t steps);

/// A run as steps of the unpruned network and of the pruned one. Steps of a sparsity s between 0
/// and that of the pruning, S, count as (S - s) / S unpruned ones.
struct StepCounts {
  double unpruned = 0, pruned = 0;
};
StepCounts step_counts(const io::Config& config);
/// Seconds of a step of each, or of a whole run.
struct StepSeconds {
  double unpruned = 0, pruned = 0;
  double of(const StepCounts& steps) const {
    return steps.unpruned * unpruned + steps.pruned * pruned;
  }
};
/// The steps that fit into `seconds`; 0: none.
int64_t steps_within(const io::Config& config, const StepSeconds& step, double seconds);

/// Losses by learning rate, as {exponent of two: loss}; infinite for a failed run.
using RateLosses = std::map<int, double>;
inline constexpr int kMostDoublings = 8;
/// Until both neighbours of the best rate are known. None: they are, or are more than
/// kMostDoublings away from the first one, 0.
std::optional<int> next_rate(const RateLosses& losses);
/// That of the least loss; of equal ones the least.
int best_rate(const RateLosses& losses);

/// Infinite without losses.
double mean_of(std::span<const double> losses);
/// Of the sample; none of fewer than two losses.
std::optional<double> deviation_of(std::span<const double> losses);

/// Losses over seeds at the best rate; none: its runs failed.
struct TunedLosses {
  std::string name;
  Contender::Kind kind = Contender::Kind::dense;
  std::vector<double> losses{};

  double mean() const { return mean_of(losses); }
};
/// The least mean among those of a kind; null: there is none.
const TunedLosses* best_of(std::span<const TunedLosses> all, Contender::Kind kind);
/// Sentences, those against sparsity first. A difference of means counts if it exceeds twice its
/// standard error over seeds; with one seed the error is unknown, and said to be.
std::vector<std::string> answer(std::span<const TunedLosses> all);

}  // namespace espalier::planner
