#include "parallel/choice/bit_choice.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "parallel/choice/choice_front.h"
#include "src/core/error.h"

namespace espalier::parallel {

namespace {

/// A table, an objective and a budget, as input to the programme.
class Problem {
 public:
  Problem(const ChoiceTable& table, const ExchangeTimes& times, const ErrorBudget& budget);
  BitChoice solve() const;

 private:
  using Options = std::vector<LayerOption>;

  Options options_of(int64_t layer) const;
  double error_of(int64_t layer, int choice) const;
  ChoiceFront::State outcome(std::span<const int> choice) const;
  /// Among those within the budget: the earliest end, up to `equal_within`, then the least error.
  size_t best_of(std::span<const ChoiceFront::State> states) const;

  const ChoiceTable& table_;
  const ExchangeTimes& times_;
  const ErrorBudget& budget_;
  std::vector<Options> options_;  ///< [layers]
  std::vector<int> uniform_;      ///< [layers] the choice that represents the uniform one
  std::vector<double> rest_;      ///< [layers] least error of all following layers
  double limit_ = 0;
};

Problem::Problem(const ChoiceTable& table, const ExchangeTimes& times, const ErrorBudget& budget)
    : table_(table), times_(times), budget_(budget) {
  const auto layers = static_cast<size_t>(table.layers);
  double uniform_error = 0;
  double largest = 0;
  for (int64_t l = 0; l < table.layers; ++l) {
    options_.push_back(options_of(l));
    const int wanted = table.allowed(budget.uniform, l);
    const bool known = std::isfinite(table.error[table.at(l, wanted)]);
    uniform_.push_back(known ? wanted : options_.back().front().choice);
    const double error = error_of(l, uniform_.back());
    uniform_error += error;
    largest += std::max(error, options_.back().back().error);
  }
  rest_.resize(layers);
  for (size_t l = layers; l-- > 1;) {
    rest_[l - 1] = rest_[l] + options_[l].front().error;
  }
  // No choice has a larger error than `largest`; a larger budget would only make cells coarser.
  const double factor =
      budget.sum == ErrorSum::squares ? budget.alpha * budget.alpha : budget.alpha;
  limit_ = std::min(factor * uniform_error, largest);
}

double Problem::error_of(int64_t layer, int choice) const {
  const double squared = table_.error[table_.at(layer, choice)];
  if (!std::isfinite(squared)) {
    return 0;  // only for a layer without another choice
  }
  return budget_.sum == ErrorSum::squares ? squared : std::sqrt(squared);
}

/// The options that no other option beats in error and time, errors ascending.
Problem::Options Problem::options_of(int64_t layer) const {
  Options all;
  for (int c = 0; c < table_.choices; ++c) {
    const size_t at = table_.at(layer, c);
    const bool possible =
        table_.is_fixed(layer) ? c == table_.allowed(c, layer) : std::isfinite(table_.error[at]);
    if (possible) {
      all.push_back({.choice = c, .error = error_of(layer, c), .seconds = times_.seconds[at]});
    }
  }
  if (all.empty()) {
    const int c = budget_.uniform;
    all.push_back({.choice = c, .error = 0, .seconds = times_.seconds[table_.at(layer, c)]});
  }
  std::ranges::stable_sort(all, [](const LayerOption& a, const LayerOption& b) {
    return a.error < b.error || (a.error == b.error && a.seconds < b.seconds);
  });
  Options kept;
  for (const LayerOption& option : all) {
    if (kept.empty() || option.seconds < kept.back().seconds) {
      kept.push_back(option);
    }
  }
  return kept;
}

/// Adds in the same order as ChoiceFront.
ChoiceFront::State Problem::outcome(std::span<const int> choice) const {
  ChoiceFront::State state{.end = link_end(table_, times_, choice)};
  for (int64_t l = 0; l < table_.layers; ++l) {
    state.error += error_of(l, choice[static_cast<size_t>(l)]);
  }
  return state;
}

size_t Problem::best_of(std::span<const ChoiceFront::State> states) const {
  std::optional<double> target;
  for (const ChoiceFront::State& state : states) {
    if (state.error <= limit_) {
      const double end = std::max(state.end, times_.backward_end);
      target = target ? std::min(*target, end) : end;
    }
  }
  size_t best = states.size();
  for (size_t s = 0; target && s < states.size(); ++s) {
    const ChoiceFront::State& state = states[s];
    if (state.end <= *target + budget_.equal_within &&
        (best == states.size() || state.error < states[best].error)) {
      best = s;
    }
  }
  return best;
}

BitChoice Problem::solve() const {
  ChoiceFront front(limit_, budget_.states);
  size_t layer = 0;
  for (size_t b = 0; b < times_.ends.size(); ++b) {
    front.begin_bucket(times_.ready[b], times_.latency);
    for (; layer < static_cast<size_t>(times_.ends[b]); ++layer) {
      front.add_layer(options_[layer], rest_[layer]);
    }
  }
  // Followed by two candidates that the front may have dropped.
  std::vector<ChoiceFront::State> candidates(front.states().begin(), front.states().end());
  std::vector<int> precise;
  for (const Options& options : options_) {
    precise.push_back(options.front().choice);
  }
  candidates.push_back(outcome(uniform_));
  candidates.push_back(outcome(precise));
  const size_t best = best_of(candidates);

  BitChoice result{
      .choice = precise, .within_budget = best < candidates.size(), .exact = front.exact()};
  if (best < front.states().size()) {
    const std::vector<int> places = front.options_of(best);
    for (size_t l = 0; l < places.size(); ++l) {
      result.choice[l] = options_[l][static_cast<size_t>(places[l])].choice;
    }
  } else if (best == front.states().size()) {
    result.choice = uniform_;
  }
  return result;
}

/// Computes the remaining fields from the choices.
BitChoice summed(const ChoiceTable& table, BitChoice result) {
  double squares = 0;
  for (int64_t l = 0; l < table.layers; ++l) {
    const size_t at = table.at(l, result.choice[static_cast<size_t>(l)]);
    const double error = table.error.empty() ? 0 : table.error[at];
    squares += std::isfinite(error) ? error : 0;
    result.bytes += table.bytes[at];
  }
  result.error = std::sqrt(squares);
  return result;
}

void check_budget(const ChoiceTable& table, const ErrorBudget& budget) {
  table.check_shape();
  table.check_errors();
  require(budget.uniform >= 0 && budget.uniform < table.choices, "a uniform choice of the table",
          budget.uniform, table.choices);
  require(budget.alpha >= 0 && budget.alpha <= 1e6, "alpha from 0 to 1e6", budget.alpha);
  require(budget.equal_within >= 0, "seconds", budget.equal_within);
}

}  // namespace

BitChoice uniform_choice(const ChoiceTable& table, int choice) {
  check_budget(table, {.uniform = choice});
  BitChoice result;
  for (int64_t l = 0; l < table.layers; ++l) {
    result.choice.push_back(table.allowed(choice, l));
  }
  return summed(table, std::move(result));
}

BitChoice least_bytes(const ChoiceTable& table, const ErrorBudget& budget) {
  check_budget(table, budget);
  // Uses bytes as seconds of one bucket that is ready at once: their sums are exact up to 2^53.
  ErrorBudget exactly = budget;
  exactly.equal_within = 0;
  ExchangeTimes times{.seconds = std::vector<double>(table.bytes.begin(), table.bytes.end())};
  if (table.layers > 0) {
    times.ends = {table.layers};
    times.ready = {0};
  }
  return summed(table, Problem(table, times, exactly).solve());
}

BitChoice least_exposed(const ChoiceTable& table, const ExchangeTimes& times,
                        const ErrorBudget& budget) {
  check_budget(table, budget);
  times.check(table);
  BitChoice result = summed(table, Problem(table, times, budget).solve());
  result.exposed = exposed_seconds(table, times, result.choice);
  return result;
}

BitChoice fastest(const ChoiceTable& table, std::span<const double> seconds) {
  table.check_shape();
  table.check_seconds(seconds);
  BitChoice result;
  for (int64_t l = 0; l < table.layers; ++l) {
    int best = table.allowed(0, l);
    for (int c = 1; c < table.choices && !table.is_fixed(l); ++c) {
      const size_t at = table.at(l, c);
      const size_t now = table.at(l, best);
      const bool better = seconds[at] < seconds[now] ||
                          (seconds[at] == seconds[now] && table.bytes[at] < table.bytes[now]);
      best = better ? c : best;
    }
    result.choice.push_back(best);
  }
  return summed(table, std::move(result));
}

}  // namespace espalier::parallel
