#pragma once
// Who decides how many bits each layer's gradient gets. Pure functions of tables that were measured
// elsewhere (error_table.h); one rank calls them and tells the others.
//
//   least_bytes    L-GreCo: the fewest bytes with an error of at most alpha times that of one
//                  choice for all layers
//   least_exposed  the same budget, but the least time that communication adds to a step; where it
//                  is hidden anyway, the smallest error
//   fastest        AdaPrec's "Fastest": each layer by its measured time alone
//
// Errors. A table holds squared L2 norms, e² = |gradient - decoded|², or relative ones, which are
// shares of squares and add up like them (error_table.h). With ErrorSum::squares (the
// default) the budget is sum e² <= alpha² sum u², u of the uniform choice: a bound of the L2 error
// of the whole gradient, which is what analyses of convergence take, and whose square is a sum over
// layers. L-GreCo's published form adds plain norms, sum e <= alpha sum u (ErrorSum::norms): it
// bounds the whole only by alpha sqrt(layers) times the uniform error, since it lets one layer have
// all the error.
//
// Both are one dynamic programme over layers that keeps the pairs (error, end) that no other way to
// choose beats in both (choice_front.h). It is exact while there are at most `states` of them;
// otherwise the answer is at least as good as the best one within (1 - 2 layers / states) of the
// budget. The budget itself is never exceeded, and the answer is never worse than the uniform
// choice where that is within it. Equal results take the smaller error, then the earlier choice.
// Cost: layers × choices × choices × states comparisons, 4 bytes a layer and state: 148 layers with
// 10 choices take 0.1 s, and come within 0.01 % of the Lagrangian bound.
//
// A choice whose error is not finite is not taken. A layer that has no other keeps the uniform
// choice and counts as free of error; where only the uniform one is such, the layer's best stands
// for it in the budget.
//
// Sources: Alimohammadi, Markov, Frantar, Alistarh, "L-GreCo", MLSys 2024 (the programme over bins
// of the error); Oyama, AdaPrec, 2017 (Fastest).
#include <cstdint>
#include <span>
#include <vector>

#include "parallel/choice/choice_table.h"
#include "parallel/choice/exchange_times.h"

namespace espalier::parallel {

enum class ErrorSum : uint8_t { squares, norms };

struct ErrorBudget {
  int uniform = 0;   ///< the choice that the budget is measured by
  double alpha = 1;  ///< 0 … 1e6, of its error
  ErrorSum sum = ErrorSum::squares;
  int64_t states = 10'000;  ///< 2 … 2^23
  double equal_within = 0;  ///< seconds of exposed time that are not worth any precision
};

struct BitChoice {
  std::vector<int> choice;    ///< [layers]
  double error = 0;           ///< L2 norm of what all layers lose together
  int64_t bytes = 0;          ///< of all layers
  double exposed = 0;         ///< seconds, of least_exposed
  bool within_budget = true;  ///< false: no choice is; these are the most precise ones
  bool exact = true;          ///< no state had to be dropped
};

/// One choice for all layers that are not fixed.
BitChoice uniform_choice(const ChoiceTable& table, int choice);
BitChoice least_bytes(const ChoiceTable& table, const ErrorBudget& budget);
BitChoice least_exposed(const ChoiceTable& table, const ExchangeTimes& times,
                        const ErrorBudget& budget);
/// seconds [layers][choices]. Equal times take the fewer bytes. Asks for no errors: they may be
/// empty.
BitChoice fastest(const ChoiceTable& table, std::span<const double> seconds);

}  // namespace espalier::parallel
