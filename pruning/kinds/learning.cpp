// Methods that learn from every step of a window. They see the summed gradient on the host, each
// rank the elements that it updates, one parameter at a time in fp32 copies.
#include <algorithm>

#include "pruning/kinds/kinds.h"
#include "pruning/kinds/scheduled.h"
#include "src/core/error.h"
#include "src/core/mirror.h"

namespace espalier::pruning {
namespace {

/// The elements of an array of any number type, times `factor`.
std::vector<float> numbers_of(Stream& stream, const Tensor& array, double factor) {
  std::vector<float> numbers;
  const Mirror mirror(stream, array);
  with_number(array.dtype, [&]<class Number>(Number) {
    const auto by = static_cast<float>(factor);
    std::ranges::transform(mirror.read().host().span<Number>(), std::back_inserter(numbers),
                           [by](Number x) { return to_float(x) * by; });
  });
  return numbers;
}

/// Writes numbers times `factor` to the array, rounded.
void write_numbers(Stream& stream, std::span<const float> numbers, double factor,
                   const Tensor& array) {
  const Mirror mirror(stream, array);
  with_number(array.dtype, [&]<class Number>(Number) {
    const auto by = static_cast<float>(factor);
    std::ranges::transform(numbers, mirror.host().get<Number>(),
                           [by](float x) { return from_float<Number>(x * by); });
  });
  mirror.write();
}

class Learns final : public Scheduled {
 public:
  Learns(const Learning& kind, RunSettings settings, const Weights& weights)
      : Scheduled(std::move(settings), weights),
        kind_(kind),
        window_(learning_window_of(config())) {
    check_learning_window(config());
  }

  bool due(int64_t steps) const override { return Scheduled::due(steps) || projects_at(steps); }

  /// Masks by the arrays; or, between prunings, projected arrays. Collective when the store is
  /// sharded.
  Proposal propose(int64_t steps, const Gradients& /*gradients*/) override {
    const auto parameters = weights_.store.parameters();
    std::vector<std::vector<float>> values;  // outlive the candidates' views
    std::vector<std::vector<float>> scores;
    std::vector<sparse::Parameter*> pruned;
    for (size_t p = 0; p < parameters.size(); ++p) {
      if (weights_.prunable[p]) {
        pruned.push_back(&parameters[p]);
        values.push_back(weights_.store.values(parameters[p]));
        scores.emplace_back(values.back().size());
        kind_.score(values.back(), arrays_of_parameter(parameters[p]), scores.back());
      }
    }
    std::vector<Candidate> candidates;
    for (size_t i = 0; i < pruned.size(); ++i) {
      candidates.push_back(candidate_of(*pruned[i], values[i]));
      candidates.back().scores = scores[i];
    }
    if (Scheduled::due(steps)) {
      std::optional<Proposal> present = masks_that_suffice(steps);
      return present ? std::move(*present) : masks_of(candidates, settings_at(steps));
    }
    Settings settings = settings_at(steps);
    settings.sparsity = schedule_.final_sparsity;
    const Result target = prune(candidates, settings);
    for (size_t i = 0; i < pruned.size(); ++i) {
      std::vector<std::vector<float>> arrays = arrays_of_parameter(*pruned[i]);
      kind_.project(candidates[i], target.masks[i], steps == window_.from_step, arrays);
      for (int which = 0; which < kind_.arrays; ++which) {
        weights_.store.set_pruning_array(*pruned[i], which, arrays[static_cast<size_t>(which)]);
      }
    }
    return {.applies = false};
  }

  GradientWork gradient_work() override {
    GradientWork work;
    if (kind_.add != nullptr) {
      work.add = [this](int64_t step, double scale) { learn(step, scale, true); };
    }
    if (kind_.observe != nullptr) {
      work.observe = [this](int64_t step, double scale) { learn(step, scale, false); };
    }
    return work;
  }

 private:
  /// Whether the arrays change after `steps`, and masks do not.
  bool projects_at(int64_t steps) const {
    return kind_.project != nullptr && config().sparsity > 0 && steps >= window_.from_step &&
           steps < window_.to_step && (steps - window_.from_step) % interval_of(config()) == 0;
  }

  std::vector<std::vector<float>> arrays_of_parameter(const sparse::Parameter& parameter) const {
    std::vector<std::vector<float>> arrays;
    for (int which = 0; which < kind_.arrays; ++which) {
      arrays.push_back(weights_.store.pruning_array(parameter, which));
    }
    return arrays;
  }

  /// Step `step` + 1, whose gradient is too large by `scale`: adds to it, or observes it. Element
  /// by element, so the same bits for any number of threads and shards.
  void learn(int64_t step, double scale, bool adds) {
    if (config().sparsity == 0 || step < window_.from_step || step >= window_.to_step) {
      return;
    }
    sparse::Store& store = weights_.store;
    for (size_t p = 0; p < weights_.prunable.size(); ++p) {
      const sparse::OptimizerState state = store.state(store.parameters()[p]);
      const auto count = static_cast<size_t>(state.value.count());
      if (!weights_.prunable[p] || count == 0) {
        continue;
      }
      const std::vector<float> values = numbers_of(store.stream(), state.value, 1);
      std::vector<float> gradient = numbers_of(store.stream(), state.gradient, 1 / scale);
      const bool two = kind_.arrays == 2;
      const Mirror first(store.stream(), state.pruning1);
      const Mirror second(store.stream(), two ? state.pruning2 : state.pruning1);
      const std::span<float> array1 = first.read().host().span<float>();
      const std::span<float> array2 = second.read().host().span<float>();
      constexpr size_t kTogether = size_t{1} << 14U;
      const int threads = store.stream().threads();
#pragma omp parallel for num_threads(threads) if (threads > 1 && count > kTogether)
      for (size_t begin = 0; begin < count; begin += kTogether) {
        const auto part = [&](auto span) {
          return span.subspan(begin, std::min(kTogether, count - begin));
        };
        const GradientStep learned{
            .values = part(std::span(values)),
            .gradient = part(std::span(gradient)),
            .arrays = {part(array1), two ? part(array2) : std::span<float>()}};
        adds ? kind_.add(learned) : kind_.observe(learned);
      }
      if (adds) {
        write_numbers(store.stream(), gradient, scale, state.gradient);
      } else {
        first.write();
        if (two) {
          second.write();
        }
      }
    }
  }

  const Learning& kind_;
  LearningWindow window_;
};

}  // namespace

std::unique_ptr<Work> start(const Learning& kind, RunSettings settings, const Weights& weights) {
  return std::make_unique<Learns>(kind, std::move(settings), weights);
}

void validate(const Learning& /*kind*/, const io::PruningConfig& config, const RunFacts& run) {
  check_learning_window(config);
  check(!run.asynchronous,
        "parallel.schedule = \"async\" updates each stage separately, and pruning.method = \"{}\" "
        "learns from whole steps; set a synchronous schedule, such as \"1f1b\"",
        config.method);
}

bool reads(const Learning& kind, const io::PruningConfig& config, std::string_view key) {
  return key == "every" && (config.gradual() || kind.project != nullptr);
}

}  // namespace espalier::pruning
