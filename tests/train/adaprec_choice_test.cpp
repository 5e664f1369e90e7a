// AdaPrec's choice between precisions.
#include "src/train/codec_choice/adaprec_choice.h"

#include <array>
#include <cmath>
#include <functional>
#include <limits>

#include "src/core/rng.h"
#include "tests/support/failure.h"

namespace espalier::train::adaprec_choice_test {
namespace {

constexpr int64_t kNow = 100;
constexpr int64_t kPhase = 100;

/// Loss with float.
double full(double x) { return 0.2 + 0.9 * std::pow(x, -0.4); }

/// The state at kNow and ten speculative evaluations with `part` of float's gain.
std::vector<CurvePoint> points(double part) {
  std::vector<CurvePoint> result;
  for (int i = 0; i <= 10; ++i) {
    const double x = static_cast<double>(kNow) + 2.0 * i;
    const double wobble = 0.0003 * (i % 3 - 1);
    result.push_back({x, full(kNow) + part * (full(x) - full(kNow)) + wobble});
  }
  return result;
}

PrecisionCandidate candidate(std::string name, double bits, double seconds, double part) {
  return {.name = std::move(name),
          .bits = bits,
          .seconds_per_step = seconds,
          .points = points(part),
          .speculation_seconds = 20 * seconds};
}

PrecisionRound round_of(const std::vector<PrecisionCandidate>& candidates) {
  return {
      .candidates = candidates, .value_now = full(kNow), .step_now = kNow, .phase_steps = kPhase};
}

std::string chosen(const std::vector<PrecisionCandidate>& candidates) {
  return candidates[choose_precision(round_of(candidates)).chosen].name;
}

/// Float is accurate and slow, fp8 almost as accurate and fast, one bit is fastest and gains
/// nothing.
std::vector<PrecisionCandidate> poster() {
  return {candidate("fp32", 32, 1.0, 1.0), candidate("fp8", 8, 0.4, 0.95),
          candidate("table-1", 1, 0.25, 0.0)};
}

TEST(AdaprecChoice, ChoosesTheLargestGainPerSecond) { EXPECT_EQ(chosen(poster()), "fp8"); }

TEST(AdaprecChoice, SlowNetworkAndFastNetworkDiffer) {
  std::vector<PrecisionCandidate> candidates = poster();
  // Communication is free: codes only harm.
  for (PrecisionCandidate& one : candidates) {
    one.seconds_per_step = 1;
  }
  EXPECT_EQ(chosen(candidates), "fp32");
}

TEST(AdaprecChoice, NumbersOfTheRecordAgree) {
  const auto candidates = poster();
  const PrecisionChoice choice = choose_precision(round_of(candidates));
  ASSERT_EQ(choice.forecasts.size(), candidates.size());
  std::vector<std::vector<CurvePoint>> curves;
  for (const PrecisionCandidate& one : candidates) {
    curves.push_back(one.points);
  }
  const auto predicted = predict_curves(curves, kNow + kPhase, 0);
  for (size_t i = 0; i < candidates.size(); ++i) {
    const PrecisionForecast& f = choice.forecasts[i];
    const CurvePrediction& p = predicted[i];
    EXPECT_EQ(f.mean, p.mean);
    EXPECT_EQ(f.deviation, p.deviation);
    EXPECT_DOUBLE_EQ(f.gain, full(kNow) - p.mean);
    EXPECT_DOUBLE_EQ(f.seconds, kPhase * candidates[i].seconds_per_step);
    EXPECT_DOUBLE_EQ(f.rate, f.gain / f.seconds);
  }
  EXPECT_DOUBLE_EQ(choice.speculation_seconds, 20 * (1.0 + 0.4 + 0.25));
  EXPECT_DOUBLE_EQ(choice.round_seconds, 20 * (1.0 + 0.4 + 0.25) + kPhase * 0.4);
}

TEST(AdaprecChoice, OfEqualCandidatesTheMorePreciseIsChosen) {
  const std::vector<PrecisionCandidate> same{candidate("fp8", 8, 0.5, 1.0),
                                             candidate("fp32", 32, 0.5, 1.0),
                                             candidate("bf16", 16, 0.5, 1.0)};
  EXPECT_EQ(chosen(same), "fp32");
}

/// Whatever is predicted: the best forecast of a less precise codec that saves no time is noise.
TEST(AdaprecChoice, ALessPreciseCodecMustBeFaster) {
  std::vector<PrecisionCandidate> candidates = poster();
  candidates[2] = candidate("table-1", 1, 0.33, 1.2);
  EXPECT_EQ(chosen(candidates), "fp8");
  candidates[2] = candidate("table-1", 1, 0.3, 1.2);
  EXPECT_EQ(chosen(candidates), "table-1");
  candidates[1].points.back().y = std::numeric_limits<double>::quiet_NaN();
  candidates[2].seconds_per_step = 0.95;
  EXPECT_EQ(chosen(candidates), "fp32") << "compared with those that have not diverged";
}

/// A choice by rate would prefer the one that loses slowly.
TEST(AdaprecChoice, WithoutGainTheBestValueCounts) {
  const std::vector<PrecisionCandidate> candidates{candidate("fp32", 32, 1.0, -0.2),
                                                   candidate("fp8", 8, 0.1, -0.1),
                                                   candidate("sign", 1, 5.0, -0.3)};
  const PrecisionRound round = round_of(candidates);
  const PrecisionChoice choice = choose_precision(round);
  for (const PrecisionForecast& f : choice.forecasts) {
    ASSERT_LT(f.gain, 0);
  }
  EXPECT_GT(choice.forecasts[2].rate, choice.forecasts[1].rate);
  EXPECT_EQ(choice.chosen, 1U);
  EXPECT_THAT(choice.why, HasSubstr("no gain"));
}

/// Among nearly equal values the fastest is chosen, not the marginally best.
TEST(AdaprecChoice, WithoutGainTheFastestOfEqualOnesCounts) {
  const auto lost = [](double part) {
    return std::vector{candidate("fp32", 32, 1.0, -0.1), candidate("fp8", 8, 0.4, part),
                       candidate("sign", 1, 0.1, -0.5)};
  };
  EXPECT_EQ(chosen(lost(-0.1001)), "fp8");
  EXPECT_EQ(chosen(lost(-0.3)), "fp32");
}

TEST(AdaprecChoice, DivergedCandidatesAreRejected) {
  std::vector<PrecisionCandidate> candidates = poster();
  candidates[1].points.back().y = std::numeric_limits<double>::quiet_NaN();
  const PrecisionRound round = round_of(candidates);
  const PrecisionChoice choice = choose_precision(round);
  EXPECT_EQ(candidates[choice.chosen].name, "fp32");
  EXPECT_TRUE(choice.forecasts[1].diverged);
  EXPECT_THAT(choice.why, HasSubstr("1 diverged"));
  for (PrecisionCandidate& one : candidates) {
    one.points.back().y = HUGE_VAL;
  }
  EXPECT_THAT(failure_of([&] { choose_precision(round); }),
              HasSubstr("diverged with every precision"));
}

/// Rounds of random curves with noise: gain per second of the choice relative to the best possible,
/// and the frequency of a harmful choice.
TEST(AdaprecChoice, NoisyRounds) {
  for (const double noise : {0.02, 0.1}) {  // of float's gain in the phase
    double reached = 0, best = 0, float_alone = 0;
    int harmful = 0;
    constexpr int kRounds = 200;
    for (uint64_t key = 0; key < kRounds; ++key) {
      const Philox bits = philox(mix(7, key), 0, 0);
      const double power = 0.2 + 0.6 * static_cast<double>(uniform(bits[0]));
      const double fp8 = 0.7 + 0.3 * static_cast<double>(uniform(bits[1]));
      const auto loss = [&](double x) { return 1 + 3 * std::pow(x, -power); };
      const double whole = loss(kNow) - loss(kNow + kPhase);
      const std::array parts{1.0, fp8, 0.02};
      std::vector<PrecisionCandidate> candidates = poster();
      for (size_t c = 0; c < parts.size(); ++c) {
        candidates[c].points.clear();
        for (int i = 0; i <= 8; ++i) {
          const double x = static_cast<double>(kNow) + 5.0 * i;
          const Philox draw = philox(mix(11 + c, key), 0, static_cast<uint64_t>(i));
          candidates[c].points.push_back(
              {x, loss(kNow) + parts[c] * (loss(x) - loss(kNow)) +
                      noise * whole * static_cast<double>(normal_pair(draw[0], draw[1])[0])});
        }
      }
      PrecisionRound round = round_of(candidates);
      round.value_now = loss(kNow);
      const size_t chosen = choose_precision(round).chosen;
      const auto rate = [&](size_t c) { return parts[c] * whole / candidates[c].seconds_per_step; };
      reached += rate(chosen);
      best += std::max({rate(0), rate(1), rate(2)});
      float_alone += rate(0);
      harmful += chosen == 2 ? 1 : 0;
    }
    std::printf(
        "noise %.0f %% of the gain: %.1f %% of the best rate (fp32 alone %.1f %%), harmful %d of "
        "%d\n",
        100 * noise, 100 * reached / best, 100 * float_alone / best, harmful, kRounds);
    EXPECT_GT(reached, 0.85 * best);
    EXPECT_LE(harmful, kRounds / 10);
  }
}

TEST(AdaprecChoice, RecordIsOneLineOfJson) {
  std::vector<PrecisionCandidate> candidates = poster();
  candidates[2].points.back().y = std::numeric_limits<double>::infinity();
  const PrecisionRound round = round_of(candidates);
  const PrecisionChoice choice = choose_precision(round);
  const std::string line = choice_record(round, choice).dump();
  EXPECT_EQ(line.find('\n'), std::string::npos);
  const auto read = nlohmann::json::parse(line);
  EXPECT_EQ(read["chosen"], "fp8");
  EXPECT_EQ(read["step"], kNow);
  EXPECT_EQ(read["candidates"].size(), 3U);
  EXPECT_EQ(read["candidates"][1]["points"].size(), 11U);
  EXPECT_EQ(read["candidates"][1]["predicted"].get<double>(), choice.forecasts[1].mean);
  EXPECT_EQ(read["candidates"][1]["deviation"].get<double>(), choice.forecasts[1].deviation);
  EXPECT_TRUE(read["candidates"][2]["diverged"].get<bool>());
  EXPECT_TRUE(read["candidates"][2]["points"].back()[1].is_null());
}

TEST(AdaprecChoice, RefusesInvalidRounds) {
  const auto failure =
      [](const std::function<void(std::vector<PrecisionCandidate>&, PrecisionRound&)>& spoil) {
        std::vector<PrecisionCandidate> candidates = poster();
        PrecisionRound round = round_of(candidates);
        spoil(candidates, round);
        return failure_of([&] { choose_precision(round); });
      };
  const auto has = [](const std::string& text, const char* part) {
    return text.find(part) != std::string::npos;
  };
  EXPECT_TRUE(has(failure([](auto&, auto& r) { r.candidates = {}; }), "at least one"));
  EXPECT_TRUE(has(failure([](auto&, auto& r) { r.phase_steps = 0; }), "0 steps"));
  EXPECT_TRUE(has(failure([](auto&, auto& r) { r.value_now = NAN; }), "nan"));
  EXPECT_TRUE(has(failure([](auto& c, auto&) { c[1].seconds_per_step = 0; }), "\"fp8\""));
  EXPECT_TRUE(has(failure([](auto& c, auto&) { c[2].points.resize(2); }),
                  "\"table-1\" has 2 points where \"fp32\" has 11"));
}

}  // namespace
}  // namespace espalier::train::adaprec_choice_test
