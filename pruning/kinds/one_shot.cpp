// Methods that prune once or gradually: by values, at random, from a file (FromFile), by scores of
// gradients (Scored), or once masks are stable (Waiting).
#include <bit>
#include <cmath>

#include "pruning/kinds/kinds.h"
#include "pruning/kinds/scheduled.h"
#include "src/core/error.h"

namespace espalier::pruning {
namespace {

class FromFile final : public Scheduled {
 public:
  using Scheduled::Scheduled;
  bool due(int64_t steps) const override { return steps == schedule_.from_step; }
  Proposal propose(int64_t /*steps*/, const Gradients& /*gradients*/) override {
    return {.masks = settings_.masks_of_file()};
  }
};

/// By scores of the kept elements, summed over the gradients of several batches. Values and scores
/// take 8 bytes of host memory a kept element.
class Scored final : public Scheduled {
 public:
  Scored(const OneShot& kind, RunSettings settings, const Weights& weights)
      : Scheduled(std::move(settings), weights), kind_(kind) {}

  Proposal propose(int64_t steps, const Gradients& gradients) override {
    if (std::optional<Proposal> present = masks_that_suffice(steps)) {
      return std::move(*present);
    }
    const auto parameters = weights_.store.parameters();
    std::vector<std::vector<float>> values(parameters.size());
    std::vector<std::vector<float>> scores(parameters.size());
    std::vector<Candidate> candidates;
    std::vector<size_t> candidate_of_parameter(parameters.size(), 0);
    for (size_t p = 0; p < parameters.size(); ++p) {
      if (weights_.prunable[p]) {
        values[p] = weights_.store.values(parameters[p]);
        scores[p].assign(values[p].size(), 0.0F);
        candidate_of_parameter[p] = candidates.size();
        candidates.push_back(candidate_of(parameters[p], values[p]));
        candidates.back().scores = scores[p];
      }
    }
    const auto score_batches = [&](const auto& score) {
      for (int64_t batch = 0; batch < config().score_batches; ++batch) {
        gradients(batch, weights_.prunable, sparse::Store::Probed::prunable,
                  [&](size_t p, std::span<const float> gradient) {
                    score(candidates[candidate_of_parameter[p]], gradient, scores[p]);
                  });
      }
    };
    score_batches(kind_.score);
    if (kind_.score_shifted != nullptr) {
      with_moved_values(values, scores, [&] { score_batches(kind_.score_shifted); });
    }
    return masks_of(candidates, settings_at(steps));
  }

 private:
  /// The norm of arrays by parameter, over the prunable ones of all stages: the same bits for any
  /// number of stages.
  double norm(std::span<const std::vector<float>> arrays) const {
    std::vector<int64_t> squares;  // bits of doubles, by number of the candidate
    for (size_t p = 0; p < arrays.size(); ++p) {
      if (weights_.prunable[p]) {
        double sum = 0;
        for (const float x : arrays[p]) {
          sum += static_cast<double>(x) * static_cast<double>(x);
        }
        squares.push_back(std::bit_cast<int64_t>(sum));
      }
    }
    if (weights_.stages != nullptr) {
      std::vector<int64_t> all(weights_.stages->candidates, 0);
      for (size_t i = 0; i < squares.size(); ++i) {
        all[weights_.stages->mine[i]] = squares[i];
      }
      weights_.stages->sum(all);  // each has one term that is not zero
      squares = std::move(all);
    }
    double sum = 0;
    for (const int64_t square : squares) {
      sum += std::bit_cast<double>(square);
    }
    return std::sqrt(sum);
  }

  /// Runs `passes` at values moved along `direction`, and restores them bit for bit. Arrays are by
  /// parameter.
  void with_moved_values(std::span<const std::vector<float>> values,
                         std::span<const std::vector<float>> direction,
                         const std::function<void()>& passes) {
    const double length = norm(direction);
    check(std::isfinite(length) && length > 0,
          "pruning.method = \"{}\": the norm of the gradient is {}; check the data, or prune by "
          "another method",
          config().method, length);
    const auto factor = static_cast<float>(OneShot::kShift * norm(values) / length);
    sparse::Store& store = weights_.store;
    const auto parameters = store.parameters();
    std::vector<std::vector<float>> masters(parameters.size());
    for (size_t p = 0; p < parameters.size(); ++p) {
      if (weights_.prunable[p]) {
        if (store.state(parameters[p]).separate_master) {
          masters[p] = store.master(parameters[p]);
        }
        std::vector<float> moved = values[p];
        for (size_t i = 0; i < moved.size(); ++i) {
          moved[i] += factor * direction[p][i];
        }
        store.set_values(parameters[p], moved);
      }
    }
    passes();
    for (size_t p = 0; p < parameters.size(); ++p) {
      if (weights_.prunable[p] && masters[p].empty()) {
        store.set_values(parameters[p], values[p]);
      } else if (weights_.prunable[p]) {
        store.set_values(parameters[p], masters[p]);
        store.set_common(parameters[p], values[p]);
      }
    }
  }

  const OneShot& kind_;
};

class Waiting final : public Scheduled {
 public:
  Waiting(RunSettings settings, const Weights& weights)
      : Scheduled(std::move(settings), weights), history_(weights.prunable.size()) {}

  bool due(int64_t steps) const override {
    return history_ && (steps == schedule_.to_step || check_at(config(), steps));
  }

  Proposal propose(int64_t steps, const Gradients& /*gradients*/) override {
    Proposal proposal = masks_by_run(steps);
    if (history_->full()) {
      MaskHistory::Counts counts = history_->compare(proposal.masks);
      if (weights_.stages != nullptr) {
        weights_.stages->sum(counts.different);
        weights_.stages->sum(counts.sizes);
      }
      proposal.distance = MaskHistory::largest_distance(counts);
    }
    const bool stable = proposal.distance && *proposal.distance < kStableDistance;
    if (stable || steps >= schedule_.to_step) {
      proposal.note = note_of(steps, proposal.distance, stable);
      history_.reset();
    } else {
      proposal.applies = false;
      proposal.warnings.clear();  // of masks that are not used
      history_->add(proposal.masks, weights_.prunable);
    }
    return proposal;
  }

  MaskHistory* history() override { return history_ ? &*history_ : nullptr; }

  bool resume(int64_t steps, bool saved) override {
    const int64_t checks = checks_before(config(), steps);
    if (steps > schedule_.to_step || (checks > 0 && !saved)) {
      history_.reset();  // pruned already
      return false;
    }
    history_->set_checks(checks);
    return checks > 0;
  }

 protected:
  Settings settings_at(int64_t steps) const override {
    Settings settings = Scheduled::settings_at(steps);
    settings.sparsity = schedule_.final_sparsity;
    return settings;
  }

 private:
  std::string note_of(int64_t steps, std::optional<double> distance, bool stable) const {
    const std::string text = distance ? fmt::format("{:.4f}", *distance) : "?";
    return stable ? fmt::format(
                        "early-bird ticket drawn after step {}: masks differ by {}, less "
                        "than {}",
                        steps, text, kStableDistance)
                  : fmt::format(
                        "no early-bird ticket until pruning.to_step = {}: masks still "
                        "differ by {}; the masks of this step are taken",
                        steps, text);
  }

  std::optional<MaskHistory> history_;  ///< until it prunes
};

}  // namespace

std::unique_ptr<Work> start(const OneShot& kind, RunSettings settings, const Weights& weights) {
  if (method_of(settings.config).run == nullptr) {
    return std::make_unique<FromFile>(std::move(settings), weights);
  }
  if (kind.waits) {
    return std::make_unique<Waiting>(std::move(settings), weights);
  }
  if (kind.score != nullptr) {
    return std::make_unique<Scored>(kind, std::move(settings), weights);
  }
  return std::make_unique<Scheduled>(std::move(settings), weights);
}

void validate(const OneShot& kind, const io::PruningConfig& config, const RunFacts& run) {
  check(kind.score_shifted == nullptr || !run.half,
        "pruning.method = \"{}\" scores elements by the difference of two gradients, which "
        "rounding to 16 bits hides; set train.dtype = \"fp32\" (the masks of such a run suit any "
        "type: pruning.method = \"file\")",
        config.method);
}

bool reads(const OneShot& kind, const io::PruningConfig& config, std::string_view key) {
  return (key == "every" && (config.gradual() || kind.waits)) ||
         (key == "score_batches" && kind.score != nullptr);
}

}  // namespace espalier::pruning
