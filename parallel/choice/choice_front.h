#pragma once
// The dynamic programme of bit_choice.h. After l layers it holds the Pareto front of all choices
// for them: the pairs (error, end of the link) that no other choice beats in both, errors ascending
// and ends descending. An earlier end never delays the following layers, so an optimal choice uses
// only these pairs.
//
// Errors are sums of the inputs, not rounded to bins. Above `states` pairs, a grid of cells
// thins them; each cell keeps the pair with the earliest end. The grid has states / 2 equal steps
// up to the budget and states / 2 geometric steps below it (so that small errors stay distinct).
// Thinning thus adds at most 2 budget / states of error a layer.
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace espalier::parallel {

/// One choice of a layer.
struct LayerOption {
  int choice = 0;
  double error = 0;
  double seconds = 0;
};

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

}  // namespace espalier::parallel
