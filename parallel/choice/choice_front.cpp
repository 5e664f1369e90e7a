#include "parallel/choice/choice_front.h"

#include <algorithm>
#include <bit>
#include <limits>

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

}  // namespace

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

}  // namespace espalier::parallel
