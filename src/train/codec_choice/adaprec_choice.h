#pragma once
// Which precision should training go on with? AdaPrec's round (Y. Oyama, "adaptive communication
// precision", poster, 2017) as a pure function. Each candidate has trained a few steps from the
// same state; their curves are continued together (learning_curve.h, predict_curves) to the end of
// the next phase, and
//
//   rate = gain / (phase_steps * seconds_per_step),   gain = how much better than value_now (mean)
//
// is largest for the chosen one. Where no candidate gains anything a rate would prefer the slowest:
// then the best value is chosen, or the fastest whose value is within a tenth of the deviation of
// it: candidates share state, batches and validation set, so that their predictions err alike.
// Equal ones: the more precise.
//
// A candidate whose curve holds a value that is no number has diverged and is not chosen.
//
// Not in the poster, off by default: a candidate is rejected if by its prediction it ends worse
// than the most precise one that is left by more than `tolerance` with a probability above
// `most_risk`,
//   P = Phi((loss of value - tolerance) / sd),  sd^2 = a^2 + b^2 - 2 correlation a b,
// a, b the two deviations. Candidates that share state, batches and validation set err alike: with
// correlation 0 two noisy curves that are almost equal reject each other.
//
// Also the rules to compare with: always the same, and the fastest. No files, no ranks: the answer
// is the same wherever the same numbers are given. Errors: Failure for times or values that make no
// sense, and where all candidates diverged.
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "src/train/codec_choice/learning_curve.h"

namespace espalier::train {

enum class PrecisionRule {
  fixed,    ///< the candidate `fixed` names
  fastest,  ///< least seconds a step
  adaprec,  ///< largest predicted gain a second
};

struct PrecisionCandidate {
  std::string name;             ///< of the codec, e.g. "fp8-e5m2"
  double bits = 32;             ///< a value: what "more precise" means
  double seconds_per_step = 0;  ///< measured, with communication
  /// x in steps from the start of training, y validation values: the state at step_now, then the
  /// candidate's own. Not what came before: a change of precision bends the curve, and a smooth
  /// shape through the common past and a few flat points still promises the past's gain. Only
  /// adaprec reads them.
  std::vector<CurvePoint> points;
  double speculation_seconds = 0;  ///< spent to get the points: steps, evaluations, restored states
};

struct RiskLimit {
  double tolerance = 0;     ///< in units of the value
  double most_risk = 0.05;  ///< probability
  double correlation = 0;   ///< of the errors of two predictions, in [0, 1)
};

struct PrecisionOptions {
  PrecisionRule rule = PrecisionRule::adaprec;
  std::string fixed;             ///< for PrecisionRule::fixed
  bool higher_is_better = true;  ///< accuracy; false for a loss
  std::optional<RiskLimit> risk;
  /// Adds the seconds of this round's speculation to those of the phase in every rate: the gain for
  /// each second of the whole round, which favours the fastest less.
  bool count_speculation = false;
  CurveOptions curve;
};

struct PrecisionRound {
  std::span<const PrecisionCandidate> candidates;
  double value_now = 0;     ///< validation value at the state from which they started
  int64_t step_now = 0;     ///< its step
  int64_t phase_steps = 0;  ///< the next phase ends at step_now + phase_steps
};

/// What was thought of one candidate.
struct PrecisionForecast {
  double mean = 0, deviation = 0;  ///< of the value at the end of the phase
  double gain = 0;                 ///< of the mean over value_now, positive is better
  double seconds = 0;              ///< of the phase
  double rate = 0;                 ///< gain a second
  double risk = 0;                 ///< of ending worse than the most precise; 0 without a limit
  bool diverged = false;           ///< a value of its curve is no number: nothing is predicted
  bool rejected = false;           ///< diverged, or too much risk
};

/// A round as it can be logged.
struct PrecisionChoice {
  size_t chosen = 0;
  std::string why;
  std::vector<PrecisionForecast> forecasts;  ///< in the order of candidates; empty unless adaprec
  double speculation_seconds = 0;            ///< of all candidates
  double round_seconds = 0;                  ///< speculation + the phase with the chosen one
};

PrecisionChoice choose_precision(const PrecisionRound& round, const PrecisionOptions& options);

/// One line for a log: step, value, each candidate with points, prediction, seconds, rate, risk;
/// the chosen name and why.
nlohmann::ordered_json choice_record(const PrecisionRound& round, const PrecisionOptions& options,
                                     const PrecisionChoice& choice);

}  // namespace espalier::train
