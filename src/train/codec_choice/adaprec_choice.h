#pragma once
// Chooses the precision of the next training phase: AdaPrec's round (Y. Oyama, "adaptive
// communication precision", poster, 2017) as a pure function. Each candidate has trained a few
// steps from the same state. Their curves are extrapolated together (learning_curve.h,
// predict_curves) to the end of the next phase. The chosen candidate has the largest
//
//   rate = gain / (phase_steps * seconds_per_step),
//   gain = improvement of the predicted mean over value_now
//
// Exceptions:
// - If no candidate gains, a rate would favour the slowest. Then the best value decides, or the
//   fastest candidate whose value is within a tenth of the deviation of the best: candidates share
//   state, batches and validation set, so their prediction errors are correlated.
// - Of equal candidates the more precise one is chosen.
// - A candidate with a non-finite value in its curve has diverged and is rejected.
//
// Risk limit (not in the poster, off by default): a candidate is rejected if its predicted value is
// worse than that of the most precise remaining candidate by more than `tolerance` with a
// probability above `most_risk`,
//   P = Phi((loss of value - tolerance) / sd),  sd^2 = a^2 + b^2 - 2 correlation a b,
// a, b the two deviations. With correlation 0, two noisy curves that are almost equal would reject
// each other.
//
// Two baseline rules: a fixed precision, and the fastest. Without files and ranks: equal numbers
// give equal answers. Errors: Failure for times or values out of range, and if all candidates
// diverged.
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "src/train/codec_choice/learning_curve.h"

namespace espalier::train {

enum class PrecisionRule {
  fixed,    ///< the candidate `fixed` names
  fastest,  ///< least seconds per step
  adaprec,  ///< largest predicted gain per second
};

struct PrecisionCandidate {
  std::string name;             ///< of the codec, e.g. "fp8-e5m2"
  double bits = 32;             ///< per value: defines "more precise"
  double seconds_per_step = 0;  ///< measured, with communication
  /// x: steps since the start of training; y: validation values. The first point is the state at
  /// step_now, the others are the candidate's own. Earlier points are excluded: a change of
  /// precision bends the curve, and a smooth shape through the common past and a few flat points
  /// still predicts the past's gain. Only `adaprec` reads the points.
  std::vector<CurvePoint> points;
  double speculation_seconds = 0;  ///< cost of the points: steps, evaluations, restored states
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
  /// Adds the seconds of this round's speculation to those of the phase in every rate. The rate is
  /// then the gain per second of the whole round, which favours the fastest less.
  bool count_speculation = false;
  CurveOptions curve;
};

struct PrecisionRound {
  std::span<const PrecisionCandidate> candidates;
  double value_now = 0;     ///< validation value at the common start
  int64_t step_now = 0;     ///< its step
  int64_t phase_steps = 0;  ///< the next phase ends at step_now + phase_steps
};

/// The forecast of one candidate.
struct PrecisionForecast {
  double mean = 0, deviation = 0;  ///< of the value at the end of the phase
  double gain = 0;                 ///< of the mean over value_now, positive is better
  double seconds = 0;              ///< of the phase
  double rate = 0;                 ///< gain per second
  double risk = 0;        ///< probability of ending worse than the most precise; 0 without a limit
  bool diverged = false;  ///< its curve has a non-finite value; nothing is predicted
  bool rejected = false;  ///< diverged, or risk above the limit
};

/// The result of a round, for the log.
struct PrecisionChoice {
  size_t chosen = 0;
  std::string why;
  std::vector<PrecisionForecast> forecasts;  ///< in the order of candidates; empty unless adaprec
  double speculation_seconds = 0;            ///< of all candidates
  double round_seconds = 0;                  ///< speculation + the phase with the chosen candidate
};

PrecisionChoice choose_precision(const PrecisionRound& round, const PrecisionOptions& options);

/// One log line: step, value, for each candidate its points, prediction, seconds, rate and risk;
/// the chosen name and the reason.
nlohmann::ordered_json choice_record(const PrecisionRound& round, const PrecisionOptions& options,
                                     const PrecisionChoice& choice);

}  // namespace espalier::train
