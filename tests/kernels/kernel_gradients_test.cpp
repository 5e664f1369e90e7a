// References of backward kernels against central differences of the forward references, in double.
// kernels_test.cpp compares all tables with the references.
#include <gtest/gtest.h>

#include "tests/kernels/kernel_cases.h"
#include "tests/kernels/kernel_cases_batch_norm.h"
#include "tests/kernels/kernel_cases_local_norm.h"
#include "tests/kernels/kernel_cases_memory.h"
#include "tests/kernels/kernel_cases_transformer.h"

namespace espalier::kernels::kernel_gradients_test {
namespace {

/// d sum(weights * output) / d input of a case, by central differences.
Values differences(const Case& forward, size_t input, size_t output, const Values& weights) {
  const double step = 1e-5;
  Case at = forward;
  const auto loss = [&] {
    const Values y = expected(at)[output];
    double sum = 0;
    for (size_t i = 0; i < y.size(); ++i) {
      sum += weights[i] * y[i];
    }
    return sum;
  };
  Values gradient;
  for (double& x : at.operands[input].values) {
    const double centre = x;
    x = centre + step;
    const double above = loss();
    x = centre - step;
    gradient.push_back((above - loss()) / (2 * step));
    x = centre;
  }
  return gradient;
}

void expect_close(const Values& got, const Values& want, const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_NEAR(got[i], want[i], 2e-7 + 2e-7 * std::fabs(want[i])) << what << " " << i;
  }
}

/// Results of a backward case, with some operands replaced; operands that it adds to begin at zero.
std::vector<Values> backward_of(Case backward, const std::map<size_t, Values>& operands) {
  for (Operand& operand : backward.operands) {
    if (operand.input && operand.output) {
      operand.values.assign(operand.values.size(), 0);
    }
  }
  for (const auto& [number, values] : operands) {
    backward.operands[number].values = values;
  }
  return expected(backward);
}

constexpr int64_t kRows = 3, kCols = 21;

TEST(Gradients, layernorm) {
  const Case forward = layernorm_case(kRows, kCols, kFp32, kFp32);
  const std::vector<Values> f = expected(forward);
  const std::vector<Values> b = backward_of(layernorm_backward_case(kRows, kCols, kFp32, false),
                                            {{1, f[0]}, {2, f[1]}, {3, f[4]}, {4, f[5]}});
  expect_close(b[5], differences(forward, 0, 3, b[0]), "dx");
  expect_close(b[6], differences(forward, 1, 3, b[0]), "dweight");
  expect_close(b[7], differences(forward, 2, 3, b[0]), "dbias");
}

TEST(Gradients, rmsnorm) {
  const Case forward = rmsnorm_case(kRows, kCols, kFp32, kFp32);
  const std::vector<Values> f = expected(forward);
  const std::vector<Values> b = backward_of(
      rmsnorm_backward_case(kRows, kCols, kFp32, false, kFp32), {{1, f[0]}, {2, f[1]}, {3, f[3]}});
  expect_close(b[4], differences(forward, 0, 2, b[0]), "dx");
  expect_close(b[5], differences(forward, 1, 2, b[0]), "dweight");
}

/// Statistics and normalisation together.
TEST(Gradients, batch_norm) {
  const BatchNormCase shape{.rows = 7, .channels = 5};
  Case forward = batch_norm_case(shape, true, true);
  const Case statistics = batch_norm_statistics_case(shape, 0);
  forward.reference = [=, normalise = forward.reference](std::vector<Values>& v) {
    std::vector<Values> found{v[0], v[1], v[2]};
    statistics.reference(found);
    v[1] = found[1];
    v[2] = found[2];
    normalise(v);
  };
  const std::vector<Values> f = expected(forward);
  const Case sums_case = batch_norm_sums_case(shape, true, false);
  const Values& dy = sums_case.operands[3].values;
  const std::vector<Values> sums =
      backward_of(sums_case, {{0, f[0]}, {1, f[1]}, {2, f[2]}, {3, dy}, {7, f[5]}});
  const std::vector<Values> b =
      backward_of(batch_norm_backward_case(shape, false, 1),
                  {{0, f[0]}, {1, f[1]}, {2, f[2]}, {3, f[3]}, {4, sums[4]}, {5, sums[3]}});
  expect_close(b.back(), differences(forward, 0, 5, dy), "dx");
  expect_close(sums[5], differences(forward, 3, 5, dy), "dweight");
  expect_close(sums[6], differences(forward, 4, 5, dy), "dbias");
  expect_close(sums[3], differences(forward, 6, 5, dy), "daddend");
}

TEST(Gradients, local_norm) {
  for (const int64_t extent : {1, 5, 31}) {
    const LocalNormCase shape{.rows = 2, .channels = 23, .norm = {.extent = extent}};
    const Case forward = local_norm_case(shape);
    const std::vector<Values> b =
        backward_of(local_norm_backward_case(shape), {{1, forward.operands[0].values}});
    expect_close(b[2], differences(forward, 0, 1, b[0]), "dx");
  }
}

TEST(Gradients, activation) {
  for (const Activation kind : kActivations) {
    const Case forward = activation_case(kind, 101, kFp32, 8);
    const std::vector<Values> b = backward_of(activation_backward_case(kind, 101, kFp32, 8),
                                              {{0, forward.operands[0].values}});
    expect_close(b[2], differences(forward, 0, 1, b[1]), name_of(kind));
  }
}

TEST(Gradients, attention) {
  for (const reference::Attention& shape : {reference::Attention{2, 17, 2, 6},
                                            {2, 17, 2, 6, false},
                                            {2, 9, 4, 6, true, 2},
                                            {1, 9, 4, 6, false, 1},
                                            {1, 17, 3, 6, true, 1, 4, 0.7F}}) {
    const Case forward = attention_case(shape, kFp32);
    const std::vector<Values> f = expected(forward);
    const std::vector<Values> b =
        backward_of(attention_backward_case(shape, kFp32), {{0, f[0]}, {1, f[1]}, {2, f[2]}});
    expect_close(b[4], differences(forward, 0, 1, b[3]), forward.name);
  }
}

/// The inverse rotation of the result's gradient.
TEST(Gradients, rotary) {
  const RotaryCase shape{2, 3, 2, 10, 6, false, true, 3, 1};
  RotaryCase inverse = shape;
  inverse.inverse = true;
  const Case forward = rotary_case(shape, kFp32);
  Case backward = rotary_case(inverse, kFp32);
  const Values dy = backward.operands[0].values;
  for (const size_t i : {1U, 2U, 3U}) {
    backward.operands[i].values = forward.operands[i].values;
  }
  expect_close(expected(backward)[0], differences(forward, 0, 0, dy), "dx");
}

TEST(Gradients, gated_activation) {
  for (const Activation kind : kActivations) {
    const GateCase shape{kind, 5, 7, 2};
    const Case forward = gated_case(shape, kFp32);
    const std::vector<Values> b =
        backward_of(gated_backward_case(shape, kFp32, false), {{1, forward.operands[0].values}});
    expect_close(b[2], differences(forward, 0, 1, b[0]), name_of(kind));
  }
}

TEST(Gradients, head_norm) {
  const HeadNormCase shape{3, 2, 11, 2, 1e-3F};
  const Case forward = head_norm_case(shape, kFp32, kFp32, false);
  const std::vector<Values> f = expected(forward);
  Case backward = head_norm_backward_case(shape, kFp32, kFp32, false, false);
  backward.operands[1].values = f[0];
  backward.operands[2].values = f[1];
  backward.operands[3].values = f[2];
  // Other columns of the gradient stay, and those of the result do not depend on x.
  Values& dx = backward.operands[5].values;
  dx.assign(dx.size(), 0);
  const std::vector<Values> b = expected(backward);
  expect_close(b[5], differences(forward, 0, 3, b[0]), "dx");
  expect_close(b[4], differences(forward, 1, 3, b[0]), "dweight");
}

TEST(Gradients, cross_entropy) {
  for (const float smoothing : {0.0F, 0.1F, 0.9F}) {
    const Case forward = cross_entropy_case(7, 33, kFp32, Gradient::absent, smoothing);
    const std::vector<Values> b =
        backward_of(cross_entropy_case(7, 33, kFp32, Gradient::beside, smoothing),
                    {{0, forward.operands[0].values}, {1, forward.operands[1].values}});
    expect_close(b[3], differences(forward, 0, 2, Values(7, 0.25)), "dlogits");
  }
}

/// The gradient is that of (1 - weight) losses + weight teacher_losses.
TEST(Gradients, distillation) {
  const DistillationArgs by{.weight = 0.3F, .temperature = 2, .scale = 1};
  const Case one = distillation_case(7, 33, kFp32, false, by);
  const std::vector<Values> found = expected(one);
  const Values targets = differences(one, 0, 3, Values(7, 1 - 0.3));
  const Values teacher = differences(one, 0, 4, Values(7, 0.3));
  Values both(targets.size());
  std::ranges::transform(targets, teacher, both.begin(), std::plus());
  expect_close(found[5], both, "dlogits");
}

TEST(Gradients, embedding) {
  const Case forward = embedding_case({2, 3, 5}, 4, kFp32);
  const std::vector<Values> b =
      backward_of(embedding_backward_case({2, 3, 5}, 4), {{0, forward.operands[0].values}});
  expect_close(b[2], differences(forward, 1, 3, b[1]), "dtoken");
  expect_close(b[3], differences(forward, 2, 3, b[1]), "dposition");
}

}  // namespace
}  // namespace espalier::kernels::kernel_gradients_test
