#pragma once
// The dynamic programme of bit_choice.h. After l layers it holds, of all ways to choose for them,
// the pairs (error, end of the link) that none beats in both, errors ascending and ends descending.
// A later end never makes what follows end earlier, so nothing else can be part of a best way.
//
// Errors are sums of what was given, never rounded to a bin. When there are more than `states`
// pairs, only the one that ends first is kept of those with about the same error: of each cell of a
// grid that has states / 2 even steps up to the budget and states / 2 steps in ratio below it (so
// that small errors stay apart too). A way's error thus grows by at most 2 budget / states a layer.
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace espalier::parallel {

/// What a layer may become.
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

  /// What is added next starts at `ready` or when the link is free, and `latency` later.
  void begin_bucket(double ready, double latency);
  /// `options`: errors ascending, seconds descending, at most 256. `rest`: the least error that the
  /// layers after this one can have; ways that cannot stay within the budget end here.
  void add_layer(std::span<const LayerOption> options, double rest);

  /// May be beyond the budget by rounding. Empty: no way is within it.
  std::span<const State> states() const { return states_; }
  /// Which option each layer has in a state, by place in its `options`.
  std::vector<int> options_of(size_t state) const;
  bool exact() const { return exact_; }

 private:
  void thin();
  uint64_t cell(double error) const;

  /// Which state of the layer before, and which option.
  using Step = uint32_t;
  static constexpr Step kOptions = 256;

  double budget_;
  int64_t most_states_;
  bool exact_ = true;
  std::vector<State> states_, next_;
  std::vector<std::vector<Step>> steps_;  ///< [layers so far][states then]
};

}  // namespace espalier::parallel
