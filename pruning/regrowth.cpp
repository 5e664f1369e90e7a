#include "pruning/regrowth.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "pruning/registry.h"
#include "pruning/selection.h"
#include "src/core/error.h"

namespace espalier::pruning {
namespace {

/// Of RandomKeys: others than those of method random, whose largest are the kept elements.
constexpr uint64_t kCounter = 0x72656772;

double number_of(const io::PruningConfig& config, std::string_view text) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  check(error == std::errc() && end == text.data() + text.size() && std::isfinite(number),
        "pruning.dense_from_step = \"{}\": \"{}\" is no number; write e.g. 3000, \"0.8\" (of "
        "train.steps), or \"2000:0.5,3000\" (first to a sparsity of 0.5)",
        config.dense_from_step, text);
  return number;
}

struct Unit {
  uint32_t key;
  int64_t first;  ///< position of its first element
};

/// The mask with its pruned units of the largest keys kept until SPARSITY is reached.
sparse::Mask grown(const sparse::Parameter& parameter, const Regrowth& regrowth,
                   const sparse::IndexShape& of_method, uint64_t seed) {
  sparse::Mask mask = parameter.index.mask();
  if (regrowth.sparsity == 0) {
    return sparse::Mask(mask.size());
  }
  const Shape& shape = parameter.spec.shape;
  const int64_t cols = shape.cols();
  const sparse::BlockSize block =
      of_method.height > 0 ? sparse::BlockSize{of_method.height, of_method.width}
                           : sparse::find_blocks(mask, shape, {.edge = 1, .exact = false})
                                 .value_or(sparse::BlockSize{1, 1});
  RandomKeys keys(seed, parameter.spec.name, kCounter);
  std::vector<Unit> pruned;
  pruned.reserve(static_cast<size_t>((mask.size() - mask.kept()) / (block.height * block.width)) +
                 1);
  int64_t units = 0;
  for (int64_t row = 0; row < shape.rows(); row += block.height) {
    for (int64_t col = 0; col < cols; col += block.width, ++units) {
      if (const int64_t first = row * cols + col; !mask[first]) {
        pruned.push_back({keys(first), first});
      }
    }
  }
  const int64_t grows =
      kept_after(regrowth, units, units - std::ssize(pruned)) - (units - std::ssize(pruned));
  std::ranges::nth_element(pruned, pruned.begin() + grows, [](const Unit& a, const Unit& b) {
    return std::pair(b.key, a.first) < std::pair(a.key, b.first);
  });
  for (const Unit& unit : std::span(pruned).first(static_cast<size_t>(grows))) {
    const int64_t row = unit.first / cols;
    const int64_t col = unit.first % cols;
    for (int64_t r = row; r < std::min(row + block.height, shape.rows()); ++r) {
      for (int64_t c = col; c < std::min(col + block.width, cols); ++c) {
        mask.set(r * cols + c, true);
      }
    }
  }
  return mask;
}

class Regrows final : public Work {
 public:
  Regrows(std::unique_ptr<Work> method, const RunSettings& settings, const Weights& weights)
      : method_(std::move(method)),
        weights_(weights),
        seed_(settings.seed),
        stages_(regrowths_of(settings.config, settings.steps)) {
    if (const Method& of = method_of(settings.config); of.shape != nullptr) {
      shape_ = of.shape(settings.config);
    }
  }

  bool due(int64_t steps) const override {
    return is_before(steps) ? method_ && method_->due(steps) : at(steps) != stages_.end();
  }

  Proposal propose(int64_t steps, const Gradients& gradients) override {
    if (is_before(steps)) {
      return method_->propose(steps, gradients);
    }
    Proposal proposal{.masks = weights_.store.masks()};
    for (size_t p = 0; p < proposal.masks.size(); ++p) {
      const sparse::Parameter& parameter = weights_.store.parameters()[p];
      if (weights_.prunable[p] && !parameter.full()) {
        proposal.masks[p] = grown(parameter, *at(steps), shape_, seed_);
      }
    }
    return proposal;
  }

  double target(int64_t steps) const override {
    const double before = method_ ? method_->target(steps) : 0;
    const auto after = std::ranges::find_if(
        stages_, [steps](const Regrowth& stage) { return stage.step > steps; });
    return after == stages_.begin() ? before : std::prev(after)->sparsity;
  }
  GradientWork gradient_work() override {
    return method_ ? method_->gradient_work() : GradientWork();
  }
  MaskHistory* history() override { return method_ ? method_->history() : nullptr; }
  bool resume(int64_t steps, bool saved) override {
    check_grown(steps);
    return method_ && method_->resume(steps, saved);
  }

 private:
  /// Stages that a resumed run has passed are not made up for.
  void check_grown(int64_t steps) const {
    const auto next = std::ranges::find_if(
        stages_, [steps](const Regrowth& stage) { return stage.step >= steps; });
    if (next == stages_.begin()) {
      return;
    }
    const Regrowth& last = *std::prev(next);
    for (size_t p = 0; p < weights_.prunable.size(); ++p) {
      const sparse::Parameter& parameter = weights_.store.parameters()[p];
      const double pruned = 1 - static_cast<double>(parameter.kept()) /
                                    static_cast<double>(std::max<int64_t>(parameter.size(), 1));
      constexpr double kRounding = 0.05;  // of counts of blocks
      check(!weights_.prunable[p] || pruned <= last.sparsity + (last.sparsity > 0 ? kRounding : 0),
            "the run is at step {}, and pruning.dense_from_step grows masks after step {}, but {} "
            "has a sparsity of {:.3f}; name a step after {}",
            steps, last.step, parameter.spec.name, pruned, steps);
    }
  }

  bool is_before(int64_t steps) const { return steps < stages_.front().step; }
  std::vector<Regrowth>::const_iterator at(int64_t steps) const {
    return std::ranges::find(stages_, steps, &Regrowth::step);
  }

  std::unique_ptr<Work> method_;
  Weights weights_;
  uint64_t seed_;
  std::vector<Regrowth> stages_;
  sparse::IndexShape shape_;  ///< of the method's masks
};

}  // namespace

std::vector<Regrowth> regrowths_of(const io::PruningConfig& config, int64_t steps) {
  std::vector<Regrowth> found;
  const std::string_view text = config.dense_from_step;
  for (size_t begin = 0; !text.empty() && begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string_view stage = text.substr(begin, end - begin);
    begin = end + 1;
    const size_t colon = std::min(stage.find(':'), stage.size());
    const double when = number_of(config, stage.substr(0, colon));
    check(when < 1 || (when == std::floor(when) && when < 0x1p53),
          "pruning.dense_from_step = \"{}\": {} is neither a number of steps nor a share of "
          "train.steps below 1",
          config.dense_from_step, stage.substr(0, colon));
    found.push_back(
        {.step = std::llround(when < 1 ? when * static_cast<double>(steps) : when),
         .sparsity = colon == stage.size() ? 0 : number_of(config, stage.substr(colon + 1))});
  }
  return found;
}

void check_regrowths(const io::PruningConfig& config, int64_t steps, int64_t last_pruning) {
  const std::vector<Regrowth> stages = regrowths_of(config, steps);
  int64_t before = 0;
  // The sparsity of masks of --init or of pruning.file is unknown.
  const bool known = config.prunes() && method_of(config).run != nullptr;
  double sparsity = known ? sparsity_of(config) : 1;
  for (const Regrowth& stage : stages) {
    check(stage.step > before && stage.step < steps,
          "pruning.dense_from_step = \"{}\": after step {}, which is not between {} and "
          "train.steps = {}; name ascending steps within the run",
          config.dense_from_step, stage.step, before, steps);
    check(stage.sparsity >= 0 && stage.sparsity < sparsity,
          "pruning.dense_from_step = \"{}\": a sparsity of {} does not follow {}; name falling "
          "ones, the last 0 or omitted",
          config.dense_from_step, stage.sparsity, sparsity);
    before = stage.step;
    sparsity = stage.sparsity;
  }
  check(stages.empty() || last_pruning < stages.front().step,
        "pruning.dense_from_step = \"{}\" is not after the last pruning, which follows step {}; "
        "name a later step",
        config.dense_from_step, last_pruning);
}

int64_t last_step_before_regrowth(const io::PruningConfig& config, int64_t steps) {
  const std::vector<Regrowth> stages = regrowths_of(config, steps);
  return stages.empty() ? steps : std::min(steps, stages.front().step - 1);
}

int64_t kept_after(const Regrowth& regrowth, int64_t size, int64_t kept) {
  const int64_t pruned = std::llround(regrowth.sparsity * static_cast<double>(size));
  return std::max(kept, size - pruned);
}

size_t regrowth_bytes(const Regrowth& regrowth, std::span<const sparse::Parameter> parameters) {
  int64_t most = 0;
  for (const sparse::Parameter& parameter : parameters) {
    most = std::max(most, parameter.size() - parameter.kept());
  }
  return regrowth.sparsity > 0 ? sizeof(Unit) * static_cast<size_t>(most) : 0;
}

std::unique_ptr<Work> with_regrowth(std::unique_ptr<Work> method, const RunSettings& settings,
                                    const Weights& weights) {
  return settings.config.dense_from_step.empty()
             ? std::move(method)
             : std::make_unique<Regrows>(std::move(method), settings, weights);
}

}  // namespace espalier::pruning
