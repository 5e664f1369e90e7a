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
// - If no candidate gains, the rate would favour the slowest. The lowest predicted loss decides;
//   among losses within a tenth of a standard deviation of it, the fastest candidate: candidates
//   share state, batches and validation set, so their prediction errors are correlated.
// - Of equal candidates the more precise one is chosen.
// - A candidate whose steps are not a quarter faster than those of a more precise one is left out:
//   it can gain little, and forecasts are too uncertain to tell the two apart.
// - A candidate with a non-finite value in its curve has diverged and is rejected.
//
// Pure: equal numbers give equal answers. Errors: Failure for times or values out of range, and if
// all candidates diverged.
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "src/train/codec_choice/learning_curve.h"

namespace espalier::train {

struct PrecisionCandidate {
  std::string name;             ///< of the codec, e.g. "fp8-e5m2"
  double bits = 32;             ///< per value: defines "more precise"
  double seconds_per_step = 0;  ///< measured, with communication: the median
  /// x: steps since the start of training; y: validation values. The first point is the state at
  /// step_now, the others are the candidate's own. Earlier points are excluded: a change of
  /// precision bends the curve, and a smooth shape through the common past and a few flat points
  /// still predicts the past's gain.
  std::vector<CurvePoint> points;
  double speculation_seconds = 0;  ///< cost of the points: steps, evaluations, restored states
};

struct PrecisionRound {
  std::span<const PrecisionCandidate> candidates;
  double value_now = 0;     ///< validation loss at the common start
  int64_t step_now = 0;     ///< its step
  int64_t phase_steps = 0;  ///< the next phase ends at step_now + phase_steps
  int64_t trial_steps = 0;  ///< of them: steps of the chosen candidate's points
};

/// The forecast of one candidate.
struct PrecisionForecast {
  double mean = 0, deviation = 0;  ///< of the loss at the end of the phase
  double gain = 0;                 ///< value_now - mean
  double seconds = 0;              ///< of the phase
  double rate = 0;                 ///< gain per second
  bool diverged = false;           ///< its curve has a non-finite value; nothing is predicted
};

/// The result of a round.
struct PrecisionChoice {
  size_t chosen = 0;
  std::string why;
  std::vector<PrecisionForecast> forecasts;  ///< in the order of candidates
  double speculation_seconds = 0;            ///< of all candidates
  double round_seconds = 0;                  ///< speculation + the rest of the phase
};

PrecisionChoice choose_precision(const PrecisionRound& round);

/// One log line: step, value, for each candidate its points, prediction, seconds and rate; the
/// chosen name and the reason.
nlohmann::ordered_json choice_record(const PrecisionRound& round, const PrecisionChoice& choice);

}  // namespace espalier::train
