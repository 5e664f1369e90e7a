// The model of our exchange against a piecewise simulation of the machine, its limits and closed
// forms; bytes of codecs by name; the fit of a link.
#include "src/communication_cost/exchange_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "src/core/error.h"

namespace espalier::cost::exchange_model_test {
namespace {

constexpr std::string_view kReductions[] = {"sra", "ring", "all-to-all"};

/// Simulates the machine of exchange_model.h piece by piece.
double simulated_step(const ComputeTimes& compute, std::span<const GradientBucket> buckets,
                      const ExchangeModel& model) {
  const ReductionCost cost = cost_of(model.reduction, model.ranks);
  double processor = compute.forward_s;
  double computed = 0;  // of backward
  double link = 0;
  std::vector<std::pair<double, double>> pieces;  // arrives, time to decode
  for (const GradientBucket& bucket : buckets) {
    processor += bucket.ready_s - computed;
    computed = bucket.ready_s;
    for (int piece = 0; piece < model.pieces; ++piece) {
      const double values = static_cast<double>(bucket.values) / model.pieces;
      processor += cost.encoded * values / model.encode_per_s;
      link = std::max(link, processor) +
             cost.link * bucket.bytes / model.pieces / model.link.bytes_per_s;
      pieces.emplace_back(link + cost.latencies * model.link.latency_s,
                          cost.decoded * values / model.decode_per_s);
    }
  }
  processor += compute.backward_s - computed;
  for (const auto& [arrives, decode] : pieces) {
    processor = std::max(processor, arrives) + decode;
  }
  return processor + compute.optimizer_s;
}

/// A random problem: buckets of several sizes, and rates from far too slow to far too fast.
struct Problem {
  ComputeTimes compute;
  std::vector<GradientBucket> buckets;
  ExchangeModel model;
};

Problem any_problem(uint32_t seed) {
  std::mt19937 random(seed);
  auto between = [&](double low, double high) {
    return low * std::pow(high / low, std::uniform_real_distribution<double>(0, 1)(random));
  };
  Problem problem{.compute = {between(1e-3, 0.1), between(1e-2, 0.2), between(1e-4, 1e-2)}};
  const int count = std::uniform_int_distribution<int>(0, 9)(random);
  for (int i = 0; i < count; ++i) {
    const auto values = static_cast<int64_t>(between(1, 4e6));
    problem.buckets.push_back(
        {problem.compute.backward_s * std::uniform_real_distribution<double>(0, 1)(random), values,
         static_cast<double>(values) * between(0.1, 4)});
  }
  std::sort(problem.buckets.begin(), problem.buckets.end(),
            [](const auto& a, const auto& b) { return a.ready_s < b.ready_s; });
  problem.model = {.ranks = std::uniform_int_distribution<int>(1, 9)(random),
                   .reduction = kReductions[seed % 3],
                   .link = {between(1e-6, 1e-2), between(1e6, 1e10)},
                   .encode_per_s = between(1e7, 1e10),
                   .decode_per_s = between(1e7, 1e10),
                   .pieces = std::uniform_int_distribution<int>(1, 20)(random)};
  return problem;
}

TEST(ExchangeModel, EqualsTheMachinePieceByPiece) {
  for (uint32_t seed = 0; seed < 3000; ++seed) {
    const auto [compute, buckets, model] = any_problem(seed);
    const ExchangePrediction found = predict(compute, buckets, model);
    const double step = simulated_step(compute, buckets, model);
    ASSERT_NEAR(found.step_s, step, 1e-9 * step) << seed;
    const double computing = compute.forward_s + compute.backward_s + compute.optimizer_s;
    ASSERT_NEAR(found.exposed_s, step - computing, 1e-9 * step) << seed;
    ASSERT_NEAR(found.codec_s + found.waiting_s, found.exposed_s, 1e-9 * step) << seed;
    ASSERT_NEAR(found.speedup, model.ranks * computing / step, 1e-9 * model.ranks) << seed;
  }
}

/// Uncompressed fp32.
const auto kFloats = [](int64_t values) { return 4.0 * static_cast<double>(values); };

TEST(ExchangeModel, Limits) {
  const ComputeTimes compute{.forward_s = 0.05, .backward_s = 0.1, .optimizer_s = 0.01};
  const std::vector<GradientBucket> buckets =
      cut({.values = 10'000'000, .backward_s = compute.backward_s}, kFloats);
  for (const std::string_view reduction : kReductions) {
    // One rank exchanges nothing, however slow its link is.
    const ExchangePrediction alone = predict(
        compute, buckets,
        {.ranks = 1, .reduction = reduction, .link = {1, 1}, .encode_per_s = 1, .decode_per_s = 1});
    EXPECT_DOUBLE_EQ(alone.step_s, 0.16);
    EXPECT_DOUBLE_EQ(alone.speedup, 1);
    EXPECT_EQ(alone.bytes, 0);
    // An infinitely fast link: p-fold, less the codec's time.
    const ExchangePrediction free = predict(compute, buckets, {.ranks = 6, .reduction = reduction});
    EXPECT_DOUBLE_EQ(free.speedup, 6);
    EXPECT_DOUBLE_EQ(free.exposed_s, 0);
    const ExchangePrediction coded =
        predict(compute, buckets,
                {.ranks = 6, .reduction = reduction, .encode_per_s = 1e9, .decode_per_s = 1e9});
    EXPECT_NEAR(coded.exposed_s, coded.codec_s, 1e-12);
    EXPECT_NEAR(coded.codec_s, (cost_of(reduction, 6).decoded + 1) * 0.01, 1e-9);
    EXPECT_NEAR(coded.waiting_s, 0, 1e-12);
    // A slow link: its own time, after the first bucket is ready.
    const ExchangePrediction slow =
        predict(compute, buckets, {.ranks = 6, .reduction = reduction, .link = {0, 1e6}});
    EXPECT_NEAR(slow.step_s,
                0.05 + buckets[0].ready_s + cost_of(reduction, 6).link * 4e7 / 1e6 + 0.01, 1e-9);
    EXPECT_DOUBLE_EQ(slow.bytes, cost_of(reduction, 6).link * 4e7);
  }
  // No gradient: nothing to wait for. Nothing overlaps: all of the link's time is seen.
  EXPECT_DOUBLE_EQ(predict(compute, {}, {.ranks = 3, .link = {1, 1}}).speedup, 3);
  const auto late =
      cut({.values = 1000, .backward_s = compute.backward_s, .overlap = false}, kFloats);
  EXPECT_NEAR(predict(compute, late, {.ranks = 2, .link = {0.001, 4000}}).step_s, 0.16 + 1.002,
              1e-12);
}

TEST(ExchangeModel, ReductionsHaveTheCostsOfTheirFormulas) {
  for (const int ranks : {2, 3, 4, 7}) {
    const double p = ranks;
    EXPECT_DOUBLE_EQ(cost_of("sra", ranks).link, 2 * (p - 1) / p);
    EXPECT_DOUBLE_EQ(cost_of("ring", ranks).link, 2 * (p - 1) / p);
    EXPECT_DOUBLE_EQ(cost_of("all-to-all", ranks).link, p - 1);
    EXPECT_EQ(cost_of("sra", ranks).latencies, 2);
    EXPECT_EQ(cost_of("ring", ranks).latencies, 2 * (p - 1));
    EXPECT_EQ(cost_of("all-to-all", ranks).latencies, 1);
  }
  EXPECT_THROW(cost_of("tree", 2), Failure);
}

TEST(ExchangeModel, BucketsCoverTheGradientInOrder) {
  for (const bool overlap : {true, false}) {
    const auto buckets =
        cut({.values = 2500, .bucket_values = 1000, .backward_s = 0.5, .overlap = overlap},
            [](int64_t n) { return static_cast<double>((3 * n + 7) / 8 + 8 * ((n + 511) / 512)); });
    ASSERT_EQ(buckets.size(), 3U);
    EXPECT_EQ(buckets[0].values + buckets[1].values + buckets[2].values, 2500);
    EXPECT_DOUBLE_EQ(buckets[0].ready_s, overlap ? 0.2 : 0.5);
    EXPECT_DOUBLE_EQ(buckets[2].ready_s, 0.5);
    EXPECT_EQ(buckets[0].bytes, 375 + 2 * 8);
    EXPECT_EQ(buckets[2].bytes, 188 + 8);
  }
  EXPECT_TRUE(cut({.values = 0}, kFloats).empty());
  EXPECT_THROW(cut({.values = int64_t{1} << 60U, .bucket_values = 1}, kFloats), Failure);
}

TEST(ExchangeModel, ImpossibleTimesAreRefused) {
  const ComputeTimes compute{.forward_s = 1, .backward_s = 1};
  const std::vector<GradientBucket> late{{.ready_s = 1.5, .values = 1, .bytes = 4}};
  const std::vector<GradientBucket> back{{.ready_s = 0.5, .values = 1, .bytes = 4},
                                         {.ready_s = 0.4, .values = 1, .bytes = 4}};
  EXPECT_THROW(predict(compute, late, {}), Failure);
  EXPECT_THROW(predict(compute, back, {}), Failure);
  EXPECT_THROW(predict({}, {}, {}), Failure);
  EXPECT_THROW(predict({.forward_s = -1}, {}, {}), Failure);
  EXPECT_THROW(predict(compute, {}, {.ranks = 0}), Failure);
  EXPECT_THROW(predict(compute, {}, {.link = {0, 0}}), Failure);
  EXPECT_THROW(predict(compute, {}, {.link = {-1, 1}}), Failure);
  EXPECT_THROW(predict(compute, {}, {.encode_per_s = std::nan("")}), Failure);
  EXPECT_THROW(predict(compute, {}, {.pieces = 0}), Failure);
}

// --- the link ---

std::vector<LinkSample> measured(const Link& link, std::initializer_list<double> sizes) {
  std::vector<LinkSample> samples;
  for (const double bytes : sizes) {
    samples.push_back({.bytes = bytes, .seconds = link.seconds(bytes)});
  }
  return samples;
}

TEST(LinkFit, FindsTheParametersOfExactTimes) {
  for (const double latency : {0.0, 1e-6, 5e-5, 2e-3}) {
    for (const double gbit : {0.1, 1.0, 200.0}) {
      const Link link{latency, gbit_bytes(gbit)};
      const LinkFit fit = fit_link(measured(link, {1, 100, 1e4, 1e6, 1e8}));
      EXPECT_NEAR(fit.link.bytes_per_s, link.bytes_per_s, 1e-6 * link.bytes_per_s);
      EXPECT_NEAR(fit.link.latency_s, latency, 1e-6 * link.seconds(1));
      EXPECT_LT(fit.worst, 1e-6);
    }
  }
}

TEST(LinkFit, NoiseMovesItLittle) {
  const Link link{1e-4, gbit_bytes(1)};
  std::vector<LinkSample> samples;
  std::mt19937 random(5);
  for (int i = 0; i < 200; ++i) {
    const double bytes = std::pow(10.0, 1 + i % 7);
    const double noise = std::uniform_real_distribution<double>(0.9, 1.1)(random);
    samples.push_back({bytes, link.seconds(bytes) * noise});
  }
  const LinkFit fit = fit_link(samples);
  EXPECT_NEAR(fit.link.latency_s, link.latency_s, 0.03 * link.latency_s);
  EXPECT_NEAR(fit.link.bytes_per_s, link.bytes_per_s, 0.03 * link.bytes_per_s);
  EXPECT_GT(fit.worst, 0.05);
  EXPECT_LT(fit.worst, 0.15);
  // No other pair has smaller squares.
  const auto squares = [&](const Link& tried) {
    double sum = 0;
    for (const auto& [bytes, seconds] : samples) {
      sum += std::pow((tried.seconds(bytes) - seconds) / seconds, 2);
    }
    return sum;
  };
  for (const double change : {0.999, 1.001}) {
    EXPECT_GT(squares({fit.link.latency_s * change, fit.link.bytes_per_s}), squares(fit.link));
    EXPECT_GT(squares({fit.link.latency_s, fit.link.bytes_per_s * change}), squares(fit.link));
  }
}

TEST(LinkFit, LatencyIsNeverNegative) {
  const LinkFit fit = fit_link(std::vector<LinkSample>{{1000, 0.5e-3}, {2000, 2e-3}, {4000, 6e-3}});
  EXPECT_EQ(fit.link.latency_s, 0);
  EXPECT_GT(fit.link.bytes_per_s, 0);
}

TEST(LinkFit, RefusesSamplesWithoutABandwidth) {
  EXPECT_THROW(fit_link({}), Failure);
  EXPECT_THROW(fit_link(std::vector<LinkSample>{{8, 1}, {8, 2}}), Failure);
  EXPECT_THROW(fit_link(std::vector<LinkSample>{{8, 2}, {16, 1}}), Failure);
  EXPECT_THROW(fit_link(std::vector<LinkSample>{{8, 0}, {16, 1}}), Failure);
  EXPECT_THROW(fit_link(std::vector<LinkSample>{{-8, 1}, {16, 1}}), Failure);
  EXPECT_THROW(fit_link(std::vector<LinkSample>{{std::nan(""), 1}, {16, 2}}), Failure);
}

}  // namespace
}  // namespace espalier::cost::exchange_model_test
