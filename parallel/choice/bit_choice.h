#pragma once
// Algorithms that choose the bits of each layer's gradient. They are pure functions of measured
// tables (error_table.h); one rank calls them and broadcasts the result.
//
//   least_bytes    L-GreCo: the fewest bytes with an error of at most alpha times that of one
//                  choice for all layers
//   least_exposed  the same budget, but the least time that communication adds to a step; the
//                  smallest error where that time is hidden anyway
//   fastest        AdaPrec's "Fastest": each layer by its measured time alone
//
// Errors. A table holds squared L2 norms, e² = |gradient - decoded|², or relative errors, which are
// fractions of squares and add up like them (error_table.h).
// - ErrorSum::squares (default): the budget is sum e² <= alpha² sum u², u of the uniform choice. It
//   bounds the L2 error of the whole gradient, which convergence analyses use and whose square is a
//   sum over layers.
// - ErrorSum::norms: L-GreCo's published form adds plain norms, sum e <= alpha sum u. It bounds the
//   whole only by alpha sqrt(layers) times the uniform error, since one layer may have all the
//   error.
//
// Both budgeted choices are one dynamic programme over layers. It keeps the Pareto front of pairs
// (error, end): pairs that no other choice beats in both (choice_front.h).
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
  int uniform = 0;   ///< the choice whose error defines the budget
  double alpha = 1;  ///< 0 … 1e6, factor on that error
  ErrorSum sum = ErrorSum::squares;
  int64_t states = 10'000;  ///< 2 … 2^23
  double equal_within = 0;  ///< seconds of exposed time that are treated as equal: the smaller
                            ///< error wins
};

struct BitChoice {
  std::vector<int> choice;    ///< [layers]
  double error = 0;           ///< L2 norm of the error of all layers together
  int64_t bytes = 0;          ///< of all layers
  double exposed = 0;         ///< seconds, of least_exposed
  bool within_budget = true;  ///< false: none exists; holds the most precise choices
  bool exact = true;          ///< no state was dropped
};

/// One choice for all layers that are not fixed.
BitChoice uniform_choice(const ChoiceTable& table, int choice);
BitChoice least_bytes(const ChoiceTable& table, const ErrorBudget& budget);
BitChoice least_exposed(const ChoiceTable& table, const ExchangeTimes& times,
                        const ErrorBudget& budget);
/// seconds [layers][choices]. Ties take fewer bytes. Needs no errors: they may be empty.
BitChoice fastest(const ChoiceTable& table, std::span<const double> seconds);

}  // namespace espalier::parallel
