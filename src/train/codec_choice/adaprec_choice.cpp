#include "src/train/codec_choice/adaprec_choice.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "src/core/error.h"

namespace espalier::train {
namespace {

using Candidates = std::span<const PrecisionCandidate>;

constexpr double kSameValue = 0.1;  // values within this many deviations count as equal
constexpr double kMinLoss = 0;
constexpr double kFaster = 1.25;  // less precise candidates must be this much faster

void check_round(const PrecisionRound& round) {
  check(!round.candidates.empty(), "a choice of precision needs at least one candidate");
  check(round.phase_steps > 0, "the phase that a precision is chosen for has {} steps",
        round.phase_steps);
  check(std::isfinite(round.value_now), "the validation loss at step {} is {}", round.step_now,
        round.value_now);
  for (const PrecisionCandidate& candidate : round.candidates) {
    check(std::isfinite(candidate.seconds_per_step) && candidate.seconds_per_step > 0,
          "candidate \"{}\" takes {} seconds a step: measure at least one step", candidate.name,
          candidate.seconds_per_step);
  }
}

/// The element of `numbers` with the highest score; of equal ones the more precise, then the first.
template <class Score>
size_t best_of(Candidates candidates, const std::vector<size_t>& numbers, Score score) {
  return *std::ranges::max_element(numbers, [&](size_t a, size_t b) {
    const double x = score(a);
    const double y = score(b);
    return x != y ? x < y : candidates[a].bits < candidates[b].bits;
  });
}

/// Forecasts of all candidates; those of diverged ones stay empty.
std::vector<PrecisionForecast> forecasts_of(const PrecisionRound& round) {
  const Candidates candidates = round.candidates;
  std::vector<PrecisionForecast> forecasts(candidates.size());
  std::vector<std::vector<CurvePoint>> curves;
  size_t first = 0;  // first candidate that has not diverged
  for (size_t i = 0; i < candidates.size(); ++i) {
    forecasts[i].diverged = std::ranges::any_of(
        candidates[i].points, [](const CurvePoint& point) { return !std::isfinite(point.y); });
    if (forecasts[i].diverged) {
      continue;
    }
    first = curves.empty() ? i : first;
    curves.push_back(candidates[i].points);
    check(curves.back().size() == curves.front().size(),
          "candidate \"{}\" has {} points where \"{}\" has {}: evaluate all at the same steps",
          candidates[i].name, curves.back().size(), candidates[first].name, curves.front().size());
  }
  check(!curves.empty(),
        "training diverged with every precision from step {} on: lower the learning rate",
        round.step_now);
  std::vector<CurvePrediction> predicted;
  try {
    predicted =
        predict_curves(curves, static_cast<double>(round.step_now + round.phase_steps), kMinLoss);
  } catch (const Failure& failure) {
    fail("candidates of the round at step {}: {}", round.step_now, failure.what());
  }
  size_t next = 0;
  for (size_t i = 0; i < candidates.size(); ++i) {
    PrecisionForecast& one = forecasts[i];
    if (one.diverged) {
      continue;
    }
    one.mean = predicted[next].mean;
    one.deviation = predicted[next++].deviation;
    one.gain = round.value_now - one.mean;
    one.seconds = static_cast<double>(round.phase_steps) * candidates[i].seconds_per_step;
    one.rate = one.gain / one.seconds;
  }
  return forecasts;
}

nlohmann::ordered_json candidate_record(const PrecisionCandidate& candidate,
                                        const PrecisionForecast& forecast) {
  nlohmann::ordered_json record{{"name", candidate.name},
                                {"bits", candidate.bits},
                                {"seconds_per_step", candidate.seconds_per_step},
                                {"speculation_seconds", candidate.speculation_seconds},
                                {"points", nlohmann::ordered_json::array()}};
  for (const auto& [x, y] : candidate.points) {
    record["points"].push_back(nlohmann::ordered_json::array({x, y}));
  }
  if (forecast.diverged) {
    record["diverged"] = true;
  } else {
    record["predicted"] = forecast.mean;
    record["deviation"] = forecast.deviation;
    record["gain"] = forecast.gain;
    record["phase_seconds"] = forecast.seconds;
    record["rate"] = forecast.rate;
  }
  return record;
}

}  // namespace

PrecisionChoice choose_precision(const PrecisionRound& round) {
  check_round(round);
  const Candidates candidates = round.candidates;
  PrecisionChoice choice{.forecasts = forecasts_of(round)};
  const auto& forecasts = choice.forecasts;
  std::vector<size_t> left(candidates.size());
  std::iota(left.begin(), left.end(), size_t{0});
  std::erase_if(left, [&](size_t i) { return forecasts[i].diverged; });
  const size_t diverged = candidates.size() - left.size();
  const std::vector<size_t> converged = left;
  std::erase_if(left, [&](size_t i) {
    return std::ranges::any_of(converged, [&](size_t other) {
      return candidates[other].bits > candidates[i].bits &&
             candidates[other].seconds_per_step < kFaster * candidates[i].seconds_per_step;
    });
  });
  choice.chosen = best_of(candidates, left, [&](size_t i) { return forecasts[i].rate; });
  if (forecasts[choice.chosen].gain > 0) {
    choice.why = "largest predicted gain a second";
  } else {
    const auto& best =
        forecasts[best_of(candidates, left, [&](size_t i) { return forecasts[i].gain; })];
    std::erase_if(left, [&](size_t i) {
      return forecasts[i].gain < best.gain - kSameValue * best.deviation;
    });
    choice.chosen = best_of(candidates, left, [&](size_t i) { return -forecasts[i].seconds; });
    choice.why = left.size() == 1 ? "no gain is predicted: best predicted value"
                                  : "no gain is predicted: fastest of the best predicted values";
  }
  if (diverged > 0) {
    choice.why += fmt::format("; {} diverged", diverged);
  }
  for (const PrecisionCandidate& candidate : candidates) {
    choice.speculation_seconds += candidate.speculation_seconds;
  }
  choice.round_seconds =
      choice.speculation_seconds + static_cast<double>(round.phase_steps - round.trial_steps) *
                                       candidates[choice.chosen].seconds_per_step;
  return choice;
}

nlohmann::ordered_json choice_record(const PrecisionRound& round, const PrecisionChoice& choice) {
  nlohmann::ordered_json record{{"step", round.step_now},
                                {"value", round.value_now},
                                {"phase_steps", round.phase_steps},
                                {"trial_steps", round.trial_steps},
                                {"chosen", round.candidates[choice.chosen].name},
                                {"why", choice.why},
                                {"speculation_seconds", choice.speculation_seconds},
                                {"round_seconds", choice.round_seconds},
                                {"candidates", nlohmann::ordered_json::array()}};
  for (size_t i = 0; i < round.candidates.size(); ++i) {
    record["candidates"].push_back(candidate_record(round.candidates[i], choice.forecasts[i]));
  }
  return record;
}

}  // namespace espalier::train
