#pragma once
// Algorithms that choose the bits of each layer's gradient. They are pure functions of measured
// tables (error_table.h); one rank calls them and broadcasts the result.
//
//   least_bytes    L-GreCo: the fewest bytes with an error of at most alpha times that of one
//                  choice for all layers
//   least_exposed  the same budget, but the least time that communication adds to a step; the
//                  smallest error where that time is hidden anyway
//
// Errors. A table holds squared L2 norms, e² = |gradient - decoded|², or relative errors, which are
// fractions of squares and add up like them (error_table.h). The budget is sum e² <= alpha² sum u²,
// u of the uniform choice. It bounds the L2 error of the whole gradient, which convergence analyses
// use and whose square is a sum over layers. (L-GreCo's published form adds plain norms; it bounds
// the whole only by alpha sqrt(layers) times the uniform error, since one layer may have all of
// it.)
//
// Both choices are one dynamic programme over layers. It keeps the Pareto front of pairs (error,
// end): pairs that no other choice beats in both.
// - It is exact while there are at most `states` pairs. Otherwise the answer is at least as good as
//   the best one within (1 - 2 layers / states) of the budget.
// - The answer never exceeds the budget, and is never worse than the uniform choice where that is
//   within it.
// - Ties take the smaller error, then the earlier choice.
//
// Cost: layers × choices × choices × states comparisons, 4 bytes a layer and state: 148 layers with
// 10 choices take 0.1 s, and come within 0.01 % of the Lagrangian bound.
//
// A choice with a non-finite error is not taken. A layer without another choice keeps the uniform
// one and counts as error-free. If only the uniform choice is non-finite, the layer's best error
// replaces it in the budget.
//
// Source: Alimohammadi, Markov, Frantar, Alistarh, "L-GreCo", MLSys 2024 (the programme over bins
// of the error).
#include <cstdint>
#include <vector>

#include "parallel/choice/choice_table.h"

namespace espalier::parallel {

struct ErrorBudget {
  int uniform = 0;          ///< the choice whose error defines the budget
  double alpha = 1;         ///< 0 … 1e6, factor on that error
  int64_t states = 10'000;  ///< 2 … 2^23
};

struct BitChoice {
  std::vector<int> choice;    ///< [layers]
  double error = 0;           ///< L2 norm of the error of all layers together
  int64_t bytes = 0;          ///< of all layers
  double exposed = 0;         ///< seconds, of least_exposed
  bool within_budget = true;  ///< false: none exists; holds the most precise choices
  bool exact = true;          ///< no state was dropped
};

/// One choice for all layers.
BitChoice uniform_choice(const ChoiceTable& table, int choice);
BitChoice least_bytes(const ChoiceTable& table, const ErrorBudget& budget);
BitChoice least_exposed(const ChoiceTable& table, const ExchangeTimes& times,
                        const ErrorBudget& budget);

}  // namespace espalier::parallel
