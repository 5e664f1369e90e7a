#include "src/train/codec_choice/adaprec_choice.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "src/core/error.h"

namespace espalier::train {
namespace {

using Candidates = std::span<const PrecisionCandidate>;

constexpr double kSameValue = 0.1;  // values within this many deviations count as equal

void check_round(const PrecisionRound& round, const PrecisionOptions& options) {
  check(!round.candidates.empty(), "a choice of precision needs at least one candidate");
  check(round.phase_steps > 0, "the phase that a precision is chosen for has {} steps",
        round.phase_steps);
  check(round.step_now >= 0, "step {} is before the start of training", round.step_now);
  check(std::isfinite(round.value_now), "the validation value at step {} is {}", round.step_now,
        round.value_now);
  for (const PrecisionCandidate& candidate : round.candidates) {
    check(std::isfinite(candidate.seconds_per_step) && candidate.seconds_per_step > 0,
          "candidate \"{}\" takes {} seconds a step: measure at least one step", candidate.name,
          candidate.seconds_per_step);
    check(std::isfinite(candidate.speculation_seconds) && candidate.speculation_seconds >= 0,
          "candidate \"{}\" spent {} seconds on speculation", candidate.name,
          candidate.speculation_seconds);
    check(std::isfinite(candidate.bits) && candidate.bits > 0,
          "candidate \"{}\" has {} bits a value", candidate.name, candidate.bits);
  }
  if (options.risk) {
    const auto& [tolerance, most_risk, correlation] = *options.risk;
    check(tolerance >= 0 && most_risk > 0 && most_risk < 1 && correlation >= 0 && correlation < 1,
          "risk: tolerance {} must be at least 0, most_risk {} in (0, 1), correlation {} in [0, 1)",
          tolerance, most_risk, correlation);
  }
}

/// The element of `numbers` with the highest score; of equal ones the more precise, then the first.
template <class Numbers, class Score>
size_t best_of(Candidates candidates, const Numbers& numbers, Score score) {
  return *std::ranges::max_element(numbers, [&](size_t a, size_t b) {
    const double x = score(a);
    const double y = score(b);
    return x != y ? x < y : candidates[a].bits < candidates[b].bits;
  });
}

std::vector<size_t> numbers_of(Candidates candidates) {
  std::vector<size_t> numbers(candidates.size());
  for (size_t i = 0; i < numbers.size(); ++i) {
    numbers[i] = i;
  }
  return numbers;
}

double speculation_of(Candidates candidates) {
  double sum = 0;
  for (const PrecisionCandidate& candidate : candidates) {
    sum += candidate.speculation_seconds;
  }
  return sum;
}

/// Forecasts of all candidates; those of diverged ones stay empty.
std::vector<PrecisionForecast> forecasts_of(const PrecisionRound& round,
                                            const PrecisionOptions& options) {
  const Candidates candidates = round.candidates;
  std::vector<PrecisionForecast> forecasts(candidates.size());
  std::vector<std::vector<CurvePoint>> curves;
  size_t first = 0;  // first candidate that has not diverged
  for (size_t i = 0; i < candidates.size(); ++i) {
    const bool diverged = std::ranges::any_of(
        candidates[i].points, [](const CurvePoint& point) { return !std::isfinite(point.y); });
    forecasts[i].diverged = forecasts[i].rejected = diverged;
    if (diverged) {
      continue;
    }
    first = curves.empty() ? i : first;
    curves.push_back(candidates[i].points);
    check(curves.back().size() == curves.front().size(),
          "candidate \"{}\" has {} points where \"{}\" has {}: evaluate all at the same steps",
          candidates[i].name, curves.back().size(), candidates[first].name, curves.front().size());
  }
  if (curves.empty()) {
    return forecasts;
  }
  std::vector<CurvePrediction> predicted;
  try {
    predicted = predict_curves(curves, static_cast<double>(round.step_now + round.phase_steps),
                               options.curve);
  } catch (const Failure& failure) {
    fail("candidates of the round at step {}: {}", round.step_now, failure.what());
  }
  const double better = options.higher_is_better ? 1 : -1;
  const double speculation = options.count_speculation ? speculation_of(candidates) : 0;
  size_t next = 0;
  for (size_t i = 0; i < candidates.size(); ++i) {
    PrecisionForecast& one = forecasts[i];
    if (one.diverged) {
      continue;
    }
    one.mean = predicted[next].mean;
    one.deviation = predicted[next++].deviation;
    one.gain = better * (one.mean - round.value_now);
    one.seconds = static_cast<double>(round.phase_steps) * candidates[i].seconds_per_step;
    one.rate = one.gain / (one.seconds + speculation);
  }
  return forecasts;
}

/// P(normal > 0); with deviation 0 it is 0 or 1.
double positive(double mean, double deviation) {
  return deviation > 0 ? 0.5 * std::erfc(-mean / deviation / std::numbers::sqrt2)
                       : static_cast<double>(mean > 0);
}

void reject(const RiskLimit& limit, size_t reference, std::vector<PrecisionForecast>& forecasts) {
  const PrecisionForecast best = forecasts[reference];
  for (size_t i = 0; i < forecasts.size(); ++i) {
    PrecisionForecast& one = forecasts[i];
    if (i != reference && !one.diverged) {
      const double a = best.deviation;
      const double b = one.deviation;
      const double variance = a * a + b * b - 2 * limit.correlation * a * b;
      one.risk = positive(best.gain - one.gain - limit.tolerance, std::sqrt(variance));
      one.rejected = one.risk > limit.most_risk;
    }
  }
}

void choose_adaprec(const PrecisionRound& round, const PrecisionOptions& options,
                    PrecisionChoice& choice) {
  const Candidates candidates = round.candidates;
  choice.forecasts = forecasts_of(round, options);
  auto& forecasts = choice.forecasts;
  const auto not_rejected = [&] {
    std::vector<size_t> numbers = numbers_of(candidates);
    std::erase_if(numbers, [&](size_t i) { return forecasts[i].rejected; });
    return numbers;
  };
  std::vector<size_t> left = not_rejected();
  check(!left.empty(),
        "training diverged with every precision from step {} on: lower the learning rate",
        round.step_now);
  const size_t reference = best_of(candidates, left, [](size_t) { return 0.0; });
  const size_t diverged = candidates.size() - left.size();
  if (options.risk) {
    reject(*options.risk, reference, forecasts);
    left = not_rejected();
  }
  const size_t risky = candidates.size() - diverged - left.size();
  const size_t by_rate = best_of(candidates, left, [&](size_t i) { return forecasts[i].rate; });
  if (forecasts[by_rate].gain > 0) {
    choice.chosen = by_rate;
    choice.why = "largest predicted gain a second";
  } else {
    const auto best =
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
  if (risky > 0) {
    choice.why += fmt::format("; {} rejected as riskier than {} against \"{}\"", risky,
                              options.risk->most_risk, candidates[reference].name);
  }
}

size_t find_fixed(Candidates candidates, const std::string& name) {
  const auto found = std::ranges::find(candidates, name, &PrecisionCandidate::name);
  check(found != candidates.end(), "the fixed precision \"{}\" is not among the candidates", name);
  return static_cast<size_t>(found - candidates.begin());
}

nlohmann::ordered_json candidate_record(const PrecisionCandidate& candidate,
                                        const PrecisionForecast* forecast) {
  nlohmann::ordered_json record{{"name", candidate.name},
                                {"bits", candidate.bits},
                                {"seconds_per_step", candidate.seconds_per_step},
                                {"speculation_seconds", candidate.speculation_seconds}};
  auto points = nlohmann::ordered_json::array();
  for (const auto& [x, y] : candidate.points) {
    points.push_back(nlohmann::ordered_json::array({x, y}));
  }
  record["points"] = points;
  if (forecast != nullptr && forecast->diverged) {
    record["diverged"] = true;
  } else if (forecast != nullptr) {
    record["predicted"] = forecast->mean;
    record["deviation"] = forecast->deviation;
    record["gain"] = forecast->gain;
    record["phase_seconds"] = forecast->seconds;
    record["rate"] = forecast->rate;
    record["risk"] = forecast->risk;
    record["rejected"] = forecast->rejected;
  }
  return record;
}

constexpr std::array kRules{"fixed", "fastest", "adaprec"};

}  // namespace

PrecisionChoice choose_precision(const PrecisionRound& round, const PrecisionOptions& options) {
  check_round(round, options);
  const Candidates candidates = round.candidates;
  PrecisionChoice choice;
  switch (options.rule) {
    case PrecisionRule::fixed:
      choice.chosen = find_fixed(candidates, options.fixed);
      choice.why = "fixed";
      break;
    case PrecisionRule::fastest:
      choice.chosen = best_of(candidates, numbers_of(candidates),
                              [&](size_t i) { return -candidates[i].seconds_per_step; });
      choice.why = "least seconds a step";
      break;
    case PrecisionRule::adaprec:
      choose_adaprec(round, options, choice);
      break;
  }
  choice.speculation_seconds = speculation_of(candidates);
  choice.round_seconds =
      choice.speculation_seconds +
      static_cast<double>(round.phase_steps) * candidates[choice.chosen].seconds_per_step;
  return choice;
}

nlohmann::ordered_json choice_record(const PrecisionRound& round, const PrecisionOptions& options,
                                     const PrecisionChoice& choice) {
  nlohmann::ordered_json record{{"step", round.step_now},
                                {"value", round.value_now},
                                {"phase_steps", round.phase_steps},
                                {"rule", kRules[static_cast<size_t>(options.rule)]},
                                {"chosen", round.candidates[choice.chosen].name},
                                {"why", choice.why},
                                {"speculation_seconds", choice.speculation_seconds},
                                {"round_seconds", choice.round_seconds}};
  auto list = nlohmann::ordered_json::array();
  for (size_t i = 0; i < round.candidates.size(); ++i) {
    list.push_back(candidate_record(round.candidates[i],
                                    choice.forecasts.empty() ? nullptr : &choice.forecasts[i]));
  }
  record["candidates"] = list;
  return record;
}

}  // namespace espalier::train
