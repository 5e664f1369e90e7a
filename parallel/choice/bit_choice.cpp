#include "parallel/choice/bit_choice.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <optional>
#include <span>

#include "src/core/error.h"

namespace espalier::parallel {

namespace {

constexpr double kNone = std::numeric_limits<double>::infinity();
/// Tolerance by which partial sums may exceed the budget: the sums of `rest` are added in another
/// order.
constexpr double kRounding = 1e-12;
/// The geometric grid spans this many powers of two of (squared) errors below the budget.
constexpr int kOctaves = 60;

/// One option's pass over the states, in ascending order of error.
struct Walk {
  size_t at = 0;
  double error = kNone;  ///< of states[at] with the option; kNone: past the end or the budget
};

/// One choice of a layer.
struct LayerOption {
  int choice = 0;
  double error = 0;
  double seconds = 0;
};

/// The dynamic programme. After l layers it holds the Pareto front of all choices
/// for them: the pairs (error, end of the link) that no other choice beats in both, errors
/// ascending and ends descending. An earlier end never delays the following layers, so an optimal
/// choice uses only these pairs.
///
/// Errors are sums of the inputs, not rounded to bins. Above `states` pairs, a grid of cells
/// thins them; each cell keeps the pair with the earliest end. The grid has states / 2 equal steps
/// up to the budget and states / 2 geometric steps below it (so that small errors stay distinct).
/// Thinning thus adds at most 2 budget / states of error a layer.
class ChoiceFront {
 public:
  struct State {
    double error = 0;
    double end = 0;
  };

  ChoiceFront(double budget, int64_t states);

  /// Layers added next start at `ready` or when the link is free, whichever is later, plus
  /// `latency`.
  void begin_bucket(double ready, double latency);
  /// `options`: errors ascending, seconds descending, at most 256. `rest`: the least error of the
  /// remaining layers; choices that cannot stay within the budget are dropped.
  void add_layer(std::span<const LayerOption> options, double rest);

  /// Rounding may exceed the budget slightly. Empty: no choice is within the budget.
  std::span<const State> states() const { return states_; }
  /// The option of each layer in a state, as an index into its `options`.
  std::vector<int> options_of(size_t state) const;
  bool exact() const { return exact_; }

 private:
  void thin();
  uint64_t cell(double error) const;

  /// State of the previous layer, and option.
  using Step = uint32_t;
  static constexpr Step kOptions = 256;

  double budget_;
  int64_t most_states_;
  bool exact_ = true;
  std::vector<State> states_, next_;
  std::vector<std::vector<Step>> steps_;  ///< [layers so far][states then]
};

ChoiceFront::ChoiceFront(double budget, int64_t states)
    : budget_(budget), most_states_(states), states_{State{.end = -kNone}} {
  require(budget >= 0 && budget < kNone, "a budget that is a number", budget);
  require(states >= 2 && states <= int64_t{1} << 23, "2 to 2^23 states", states);
}

void ChoiceFront::begin_bucket(double ready, double latency) {
  for (State& state : states_) {
    state.end = std::max(state.end, ready) + latency;
  }
}

void ChoiceFront::add_layer(std::span<const LayerOption> options, double rest) {
  require(!options.empty() && options.size() <= kOptions, "1 to 256 options", options.size());
  const double most = budget_ * (1 + kRounding) - rest;
  const auto error_at = [&](size_t at, const LayerOption& option) {
    const double error = at < states_.size() ? states_[at].error + option.error : kNone;
    return error <= most ? error : kNone;
  };
  std::vector<Walk> walks(options.size());
  for (size_t o = 0; o < options.size(); ++o) {
    walks[o].error = error_at(0, options[o]);
  }
  next_.clear();
  std::vector<Step> steps;
  for (;;) {
    size_t first = 0;
    for (size_t o = 1; o < walks.size(); ++o) {
      first = walks[o].error < walks[first].error ? o : first;
    }
    Walk& walk = walks[first];
    if (walk.error == kNone) {
      break;
    }
    const State state{walk.error, states_[walk.at].end + options[first].seconds};
    if (next_.empty() || state.end < next_.back().end) {
      if (!next_.empty() && next_.back().error == state.error) {
        next_.pop_back();  // its error is not smaller than this one's, and its end is later
        steps.pop_back();
      }
      next_.push_back(state);
      steps.push_back(static_cast<Step>(walk.at) * kOptions + static_cast<Step>(first));
    }
    ++walk.at;
    walk.error = error_at(walk.at, options[first]);
  }
  states_.swap(next_);
  steps_.push_back(std::move(steps));
  if (static_cast<int64_t>(states_.size()) > most_states_) {
    thin();
  }
}

/// Number of an error's cell in both grids combined: non-decreasing in the error; two errors with
/// equal numbers share a cell in each grid.
uint64_t ChoiceFront::cell(double error) const {
  const double part = error / budget_;
  const int64_t half = (most_states_ + 1) / 2;
  const auto even = static_cast<uint64_t>(part * static_cast<double>(half));
  // The leading bits of a double form a geometric scale: 2^bits steps to each power of two.
  const auto bits = static_cast<int>(std::bit_width(static_cast<uint64_t>(half / kOctaves))) - 1;
  const int shift = 52 - std::max(bits, 0);
  const double least = 1.0 / static_cast<double>(uint64_t{1} << (bits < 0 ? half / 2 : kOctaves));
  const auto scale = [&](double x) { return std::bit_cast<uint64_t>(std::max(x, least)) >> shift; };
  return even + scale(part) - scale(least);
}

void ChoiceFront::thin() {
  exact_ = false;
  std::vector<Step>& steps = steps_.back();
  size_t kept = 0;
  uint64_t last = 0;
  for (size_t s = 0; s < states_.size(); ++s) {
    const uint64_t number = cell(states_[s].error);
    kept += kept == 0 || number != last ? 1 : 0;
    states_[kept - 1] = states_[s];  // the last state of a cell has the earliest end
    steps[kept - 1] = steps[s];
    last = number;
  }
  states_.resize(kept);
  steps.resize(kept);
  steps.shrink_to_fit();
}

std::vector<int> ChoiceFront::options_of(size_t state) const {
  require(state < states_.size(), "a state", state, states_.size());
  std::vector<int> options(steps_.size());
  for (size_t layer = steps_.size(); layer-- > 0;) {
    const Step step = steps_[layer][state];
    options[layer] = static_cast<int>(step % kOptions);
    state = step / kOptions;
  }
  return options;
}

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
  /// Among those within the budget: the earliest end, then the least error.
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
    const bool known = std::isfinite(table.error[table.at(l, budget.uniform)]);
    uniform_.push_back(known ? budget.uniform : options_.back().front().choice);
    const double error = error_of(l, uniform_.back());
    uniform_error += error;
    largest += std::max(error, options_.back().back().error);
  }
  rest_.resize(layers);
  for (size_t l = layers; l-- > 1;) {
    rest_[l - 1] = rest_[l] + options_[l].front().error;
  }
  // No choice has a larger error than `largest`; a larger budget would only make cells coarser.
  limit_ = std::min(budget.alpha * budget.alpha * uniform_error, largest);
}

double Problem::error_of(int64_t layer, int choice) const {
  const double error = table_.error[table_.at(layer, choice)];
  return std::isfinite(error) ? error : 0;  // 0 only for a layer without another choice
}

/// The options that no other option beats in error and time, errors ascending.
Problem::Options Problem::options_of(int64_t layer) const {
  Options all;
  for (int c = 0; c < table_.choices; ++c) {
    const size_t at = table_.at(layer, c);
    if (std::isfinite(table_.error[at])) {
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
    if (state.end <= *target && (best == states.size() || state.error < states[best].error)) {
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
    squares += std::isfinite(table.error[at]) ? table.error[at] : 0;
    result.bytes += table.bytes[at];
  }
  result.error = std::sqrt(squares);
  return result;
}

void check_budget(const ChoiceTable& table, const ErrorBudget& budget) {
  table.check();
  require(budget.uniform >= 0 && budget.uniform < table.choices, "a uniform choice of the table",
          budget.uniform, table.choices);
  require(budget.alpha >= 0 && budget.alpha <= 1e6, "alpha from 0 to 1e6", budget.alpha);
}

}  // namespace

BitChoice uniform_choice(const ChoiceTable& table, int choice) {
  check_budget(table, {.uniform = choice});
  BitChoice result;
  result.choice.assign(static_cast<size_t>(table.layers), choice);
  return summed(table, std::move(result));
}

BitChoice least_bytes(const ChoiceTable& table, const ErrorBudget& budget) {
  check_budget(table, budget);
  // Uses bytes as seconds of one bucket that is ready at once: their sums are exact up to 2^53.
  ExchangeTimes times{.seconds = std::vector<double>(table.bytes.begin(), table.bytes.end())};
  if (table.layers > 0) {
    times.ends = {table.layers};
    times.ready = {0};
  }
  return summed(table, Problem(table, times, budget).solve());
}

BitChoice least_exposed(const ChoiceTable& table, const ExchangeTimes& times,
                        const ErrorBudget& budget) {
  check_budget(table, budget);
  times.check(table);
  BitChoice result = summed(table, Problem(table, times, budget).solve());
  result.exposed = exposed_seconds(table, times, result.choice);
  return result;
}

}  // namespace espalier::parallel
