// Prediction of learning curves: published shapes are recovered, and stated deviations are correct.
#include "src/train/codec_choice/learning_curve.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "src/core/rng.h"
#include "tests/support/failure.h"

namespace espalier::train::learning_curve_test {
namespace {

using Function = std::function<double(double)>;

struct Published {
  std::string name;
  Function accuracy;
};

/// Table 1 of Domhan et al.: rising curves with typical values of an accuracy.
std::vector<Published> published() {
  using std::exp, std::log, std::pow;
  return {
      {"vap", [](double x) { return exp(-0.6 - 0.5 / x + 0.04 * log(x)); }},
      {"ilog2", [](double x) { return 0.78 - 0.43 / log(x + 1); }},
      {"weibull", [](double x) { return 0.7 - (0.7 - 0.1) * exp(-pow(0.06 * x, 0.7)); }},
      {"pow3", [](double x) { return 0.84 - 0.52 * pow(x, -0.4); }},
      {"pow4", [](double x) { return 0.9 - pow(3 * x + 2, -0.3); }},
      {"loglog", [](double x) { return log(0.2 * log(x) + 1.1); }},
      {"mmf", [](double x) { return 0.7 - (0.7 - 0.1) / (1 + pow(0.1 * x, 1.2)); }},
      {"janoschek", [](double x) { return 0.73 - (0.73 - 0.07) * exp(-0.2 * pow(x, 0.6)); }},
      {"hill3", [](double x) { return 0.77 * pow(x, 0.6) / (pow(2.5, 0.6) + pow(x, 0.6)); }},
      {"logpower", [](double x) { return 0.77 / (1 + pow(x / exp(2.0), -0.7)); }},
      {"exp4", [](double x) { return 0.7 - exp(-0.5 * pow(x, 0.4) + 0.1); }},
  };
}

std::vector<CurvePoint> sampled(const Function& f, int count, double first = 1, double step = 1) {
  std::vector<CurvePoint> points;
  for (int i = 0; i < count; ++i) {
    const double x = first + step * i;
    points.push_back({x, f(x)});
  }
  return points;
}

/// Independent standard normal numbers of stream `key`.
double normal(uint64_t key, uint64_t i) {
  const Philox bits = philox(key, 0, i);
  return static_cast<double>(normal_pair(bits[0], bits[1])[0]);
}

std::vector<CurvePoint> noisy(std::vector<CurvePoint> points, double deviation, uint64_t key) {
  for (size_t i = 0; i < points.size(); ++i) {
    points[i].y += deviation * normal(key, i);
  }
  return points;
}

CurvePrediction predict_curve(const std::vector<CurvePoint>& points, double x) {
  return predict_curves({{points}}, x).front();
}

TEST(LearningCurve, RecoversEachPublishedShapeAtThreeTimesTheHorizon) {
  for (const auto& [name, accuracy] : published()) {
    const double truth = accuracy(90);
    const CurvePrediction rising = predict_curve(sampled(accuracy, 30), 90);
    EXPECT_NEAR(rising.mean, truth, 0.01 * truth) << name;
    EXPECT_NEAR(rising.mean, truth, 2 * rising.deviation) << name;
    const auto loss = [&accuracy = accuracy](double x) { return 3 * (1 - accuracy(x)); };
    const CurvePrediction falling = predict_curve(sampled(loss, 30), 90);
    EXPECT_NEAR(falling.mean, loss(90), 0.02 * loss(90)) << name << " as a loss";
    EXPECT_NEAR(falling.mean, loss(90), 2 * falling.deviation) << name << " as a loss";
  }
}

TEST(LearningCurve, DeviationGrowsWithHorizonAndNoise) {
  const auto clean = sampled(published()[3].accuracy, 24);
  double last = 0;
  for (const double noise : {0.0, 0.005, 0.02, 0.05}) {
    const auto points = noisy(clean, noise, 7);
    const auto deviation = [&](double x) { return predict_curve(points, x).deviation; };
    EXPECT_GT(deviation(48), last) << noise;
    EXPECT_GT(deviation(48), noise);
    last = deviation(48);
    EXPECT_LT(deviation(26), deviation(36));
    EXPECT_LT(deviation(36), deviation(72));
    EXPECT_LT(deviation(72), deviation(240));
  }
}

TEST(LearningCurve, SameBitsAgainAndUnitsDoNotMatter) {
  const auto points = noisy(sampled(published()[6].accuracy, 17), 0.01, 3);
  const CurvePrediction p = predict_curve(points, 40);
  const CurvePrediction again = predict_curve(points, 40);
  EXPECT_EQ(p.mean, again.mean);
  EXPECT_EQ(p.deviation, again.deviation);
  auto seconds = points;
  for (CurvePoint& point : seconds) {
    point.x *= 0.037;
  }
  const CurvePrediction other = predict_curve(seconds, 40 * 0.037);
  EXPECT_NEAR(other.mean, p.mean, 1e-6);
  EXPECT_NEAR(other.deviation, p.deviation, 1e-6);
}

TEST(LearningCurve, FewPointsAreUncertain) {
  const Function accuracy = published()[3].accuracy;
  double last = std::numeric_limits<double>::infinity();
  for (const int count : {3, 4, 5, 12, 30}) {
    // The same part of the curve with more and more evaluations.
    const auto points = sampled(accuracy, count, 10, 20.0 / (count - 1));
    const CurvePrediction p = predict_curve(points, 60);
    EXPECT_NEAR(p.mean, accuracy(60), 2 * p.deviation) << count;
    EXPECT_GT(p.deviation, 0) << count;
    EXPECT_LT(p.deviation, last) << count;
    last = p.deviation;
  }
}

TEST(LearningCurve, ConstantStaysConstant) {
  for (const double value : {2.5, 0.1, 0.0, -1.0}) {
    const CurvePrediction p = predict_curve(sampled([&](double) { return value; }, 10), 20);
    EXPECT_NEAR(p.mean, value, 1e-4);
    EXPECT_LT(p.deviation, 1e-3);
    EXPECT_GE(p.deviation, 0);
  }
}

TEST(LearningCurve, NoiseAloneIsNotExtrapolated) {
  int inside = 0;
  constexpr int kCases = 50;
  for (uint64_t key = 0; key < kCases; ++key) {
    const auto points = noisy(sampled([](double) { return 2.0; }, 25, 100, 10), 0.1, 100 + key);
    const CurvePrediction p = predict_curve(points, 500);
    EXPECT_NEAR(p.mean, 2, 0.2) << key;
    EXPECT_GT(p.deviation, 0.06) << key;
    EXPECT_LT(p.deviation, 0.4) << key;
    inside += std::abs(p.mean - 2) < 2 * p.deviation ? 1 : 0;
  }
  EXPECT_GE(inside, 48);
}

/// The loss diverges after its minimum.
TEST(LearningCurve, DivergenceIsNotMistakenForProgress) {
  const auto loss = [](double x) { return 2 + 2 / x + 0.05 * x; };
  const CurvePrediction p = predict_curve(sampled(loss, 30), 45);
  EXPECT_GT(p.mean, loss(30) - 0.05);
}

/// The first steps of a training fall so fast that unbounded shapes continue below 0.
TEST(LearningCurve, StaysAboveItsBound) {
  const std::vector<CurvePoint> loss{{1, 2.55},  {5, 2.46},  {9, 2.17},
                                     {13, 1.95}, {17, 1.59}, {21, 1.30}};
  const auto bounded = [&](double x, double least) {
    return predict_curves({{loss}}, x, least).front().mean;
  };
  ASSERT_LT(predict_curve(loss, 150).mean, 0);
  EXPECT_GE(bounded(150, 0), 0);
  EXPECT_LT(bounded(150, 0), 1.3);
  // A bound that no draw exceeds changes nothing; if all exceed it, the prediction is the bound.
  EXPECT_NEAR(bounded(22, -1e9), predict_curve(loss, 22).mean, 1e-9);
  EXPECT_NEAR(bounded(150, 1.299), 1.299, 1e-12);
  EXPECT_THROW(bounded(22, 2), Failure);
}

/// Two codecs with almost the same curve, and one with half the gain: noise of a few points changes
/// the single predictions by more than their differences, but not their order.
TEST(LearningCurve, CurvesOfOneStateKeepTheirOrder) {
  const auto loss = [](double x) { return 1.5 + 4 * std::pow(x, -0.3); };
  int ordered = 0;
  double apart = 0;
  double apart_alone = 0;
  constexpr int kTrials = 40;
  for (uint64_t trial = 0; trial < kTrials; ++trial) {
    std::vector<std::vector<CurvePoint>> curves(3);
    for (int i = 0; i <= 5; ++i) {
      const double x = 400 + 20.0 * i;
      const double common = 0.003 * normal(trial, static_cast<uint64_t>(i));
      const double gain = loss(400) - loss(x);
      curves[0].push_back({x, loss(400) - gain + common});
      curves[1].push_back({x, loss(400) - 0.99 * gain + common});
      curves[2].push_back({x, loss(400) - 0.5 * gain + common + 0.0005 * normal(trial + 1000, i)});
    }
    const auto together = predict_curves(curves, 800);
    ASSERT_EQ(together.size(), 3U);
    ordered += together[0].mean < together[2].mean && together[1].mean < together[2].mean ? 1 : 0;
    apart += std::abs(together[0].mean - together[1].mean);
    apart_alone +=
        std::abs(predict_curve(curves[0], 800).mean - predict_curve(curves[1], 800).mean);
  }
  EXPECT_GE(ordered, kTrials * 9 / 10);
  EXPECT_LE(apart, apart_alone * 1.05);
  // Equal curves are predicted as if alone.
  std::vector<CurvePoint> one;
  for (int i = 0; i < 8; ++i) {
    one.push_back({10.0 + i, loss(10.0 + i)});
  }
  const double alone = predict_curve(one, 30).mean;
  EXPECT_NEAR(predict_curves({{one, one}}, 30)[1].mean, alone, 1e-9);
  EXPECT_THROW(predict_curves({{one, {one.begin() + 1, one.end()}}}, 30), Failure);
}

TEST(LearningCurve, RefusesInvalidPoints) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const auto failure = [](std::vector<CurvePoint> points, double x = 9) {
    return failure_of([&] { predict_curve(points, x); });
  };
  EXPECT_THAT(failure({{1, 2}, {2, 1}}), HasSubstr("at least 3 points"));
  EXPECT_THAT(failure({{1, 2}, {2, nan}, {3, 1}}), HasSubstr("point 1"));
  EXPECT_THAT(failure({{1, 2}, {2, 1}, {3, HUGE_VAL}}), HasSubstr("point 2"));
  EXPECT_THAT(failure({{0, 2}, {2, 1}, {3, 1}}), HasSubstr("above 0"));
  EXPECT_THAT(failure({{1, 2}, {3, 1}, {3, 1}}), HasSubstr("ascend"));
  EXPECT_THAT(failure({{1, 2}, {2, 1}, {3, 1}}, nan), HasSubstr("nan"));
  EXPECT_EQ(failure({{1, 2}, {2, 1}, {3, 1}}), "");
}

/// Curves of the family with random parameters, and curves outside it: two time scales, a sum of a
/// power and a line of ln x, a rate halved on the way.
Function random_curve(uint64_t key) {
  const Philox bits = philox(mix(99, key), 0, 0);
  const auto u = [&](size_t i) { return static_cast<double>(uniform(bits[i])); };
  const double end = 1 + u(0);
  const double fall = 1 + 2 * u(1);
  const double rate = 0.02 + 0.1 * u(2);
  const double power = 0.3 + u(3);
  switch (key % 8) {
    case 0:
      return [=](double x) { return end + fall * std::pow(x, -power); };
    case 1:
      return [=](double x) { return end + fall * std::exp(-std::pow(rate * x, power)); };
    case 2:
      return [=](double x) { return end + fall / (1 + std::pow(rate * x, power)); };
    case 3:
      return [=](double x) { return end + fall * std::pow(1 + rate * x, -power); };
    case 4:
      return
          [=](double x) { return std::exp(std::log(end) + fall / (x + 1) - 0.05 * std::log(x)); };
    case 5:
      return [=](double x) {
        return end + 0.6 * fall * std::exp(-4 * rate * x) + 0.4 * fall * std::exp(-rate * x / 3);
      };
    case 6:
      return [=](double x) { return end + fall * std::pow(x, -1.0) - 0.1 * std::log(x); };
    default:
      return
          [=](double x) { return end + fall * std::pow(std::min(x, 20 + (x - 20) / 2), -power); };
  }
}

/// By least squares through the second half of the points.
double line_at(const std::vector<CurvePoint>& points, double x) {
  double n = 0, sx = 0, sy = 0, sxx = 0, sxy = 0;
  for (size_t i = points.size() / 2; i < points.size(); ++i) {
    n += 1;
    sx += points[i].x;
    sy += points[i].y;
    sxx += points[i].x * points[i].x;
    sxy += points[i].x * points[i].y;
  }
  const double slope = (n * sxy - sx * sy) / (n * sxx - sx * sx);
  return sy / n + slope * (x - sx / n);
}

struct Coverage {
  double error = 0, last_error = 0, line_error = 0, deviation = 0;
  int within_1 = 0, within_2 = 0, cases = 0;
};

Coverage coverage(int first, int count, double noise, double x) {
  Coverage sum;
  for (uint64_t key = 0; key < 240; ++key) {
    const Function curve = random_curve(key);
    const auto points = noisy(sampled(curve, count, first), noise, 1000 + key);
    const CurvePrediction p = predict_curve(points, x);
    const double error = std::abs(p.mean - curve(x));
    sum.error += error;
    sum.last_error += std::abs(points.back().y - curve(x));
    sum.line_error += std::abs(line_at(points, x) - curve(x));
    sum.deviation += p.deviation;
    sum.within_1 += error <= p.deviation ? 1 : 0;
    sum.within_2 += error <= 2 * p.deviation ? 1 : 0;
    ++sum.cases;
  }
  return sum;
}

/// The noise-free truth lies within two deviations in most cases, and the mean is better than both
/// simple guesses.
TEST(LearningCurve, CalibratedOnRandomCurves) {
  for (const auto& [first, count] : {std::pair{1, 30}, {1, 10}, {20, 10}, {8, 4}}) {
    for (const double noise : {0.003, 0.03}) {
      const int last = first + count - 1;
      const Coverage c = coverage(first, count, noise, 2 * last);
      std::printf(
          "%2d points to x = %2d, noise %.3f: error %.4f, last value %.4f, line %.4f; "
          "deviation %.4f, within 1: %.1f %%, within 2: %.1f %%\n",
          count, last, noise, c.error / c.cases, c.last_error / c.cases, c.line_error / c.cases,
          c.deviation / c.cases, 100.0 * c.within_1 / c.cases, 100.0 * c.within_2 / c.cases);
      EXPECT_GE(c.within_2, 0.9 * c.cases);
      EXPECT_GE(c.within_1, 0.6 * c.cases);
      EXPECT_LT(c.error, c.last_error);
      EXPECT_LT(c.error, c.line_error);
    }
  }
}

}  // namespace
}  // namespace espalier::train::learning_curve_test
