// Backward kernels against central differences of the forward formulas in double.
#include <gtest/gtest.h>

#include "tests/kernels/all_kernel_cases.h"
#include "tests/kernels/kernel_memory.h"

namespace espalier::kernels {
namespace {

/// d sum(weights * f(x)) / dx by central differences; f maps inputs to outputs in double.
Values numeric_gradient(Values x, const Values& weights,
                        const std::function<Values(const Values&)>& f) {
  const double step = 1e-5;
  const auto loss = [&](const Values& at) {
    double sum = 0;
    const Values y = f(at);
    for (size_t i = 0; i < y.size(); ++i) {
      sum += weights[i] * y[i];
    }
    return sum;
  };
  Values gradient(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    const double centre = x[i];
    x[i] = centre + step;
    const double above = loss(x);
    x[i] = centre - step;
    gradient[i] = (above - loss(x)) / (2 * step);
    x[i] = centre;
  }
  return gradient;
}

Values values_of(const Tensor& t) {
  Values all;
  for (int64_t i = 0; i < t.count(); ++i) {
    all.push_back(read(t, i));
  }
  return all;
}

/// fp32 kernels against differences of the forward reference: rounding of sums of about 100 terms.
void expect_close(const Values& got, const Values& want, const std::string& what) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_NEAR(got[i], want[i], 2e-5 + 2e-5 * std::fabs(want[i])) << what << " " << i;
  }
}

TEST(Gradients, layernorm) {
  const int64_t rows = 3;
  const int64_t cols = 21;
  Case one = layernorm_backward_case(rows, cols, kFp32, false);
  const Values& dy = one.operands[0].values;
  const Values& x = one.operands[1].values;
  const Values& weight = one.operands[2].values;
  const Values bias(cols, 0.5);
  const auto forward = [&](const Values& at, const Values& w, const Values& b) {
    Values y(x.size()), mean(rows), rstd(rows);
    reference::layernorm(at, w, b, y, mean, rstd);
    return y;
  };
  Values y(x.size()), mean(rows), rstd(rows);
  reference::layernorm(x, weight, bias, y, mean, rstd);
  one.operands[3].values = mean;
  one.operands[4].values = rstd;
  one.operands[5].values.assign(x.size(), 0);
  for (const Kernels* table : computing_tables()) {
    const Memories memories(one);
    run(one, *table, 2, memories);
    const Tensors& t = memories.tensors();
    const auto by = [&](const Values& at, auto f) { return numeric_gradient(at, dy, f); };
    expect_close(values_of(t[5]), by(x, [&](const Values& v) { return forward(v, weight, bias); }),
                 "dx");
    expect_close(values_of(t[6]), by(weight, [&](const Values& v) { return forward(x, v, bias); }),
                 "dweight");
    expect_close(values_of(t[7]), by(bias, [&](const Values& v) { return forward(x, weight, v); }),
                 "dbias");
  }
}

TEST(Gradients, rmsnorm) {
  const int64_t rows = 3;
  const int64_t cols = 21;
  Case one = rmsnorm_backward_case(rows, cols, kFp32, false, kFp32);
  const Values& dy = one.operands[0].values;
  const Values& x = one.operands[1].values;
  const Values& weight = one.operands[2].values;
  const auto forward = [&](const Values& at, const Values& w) {
    Values y(x.size()), rstd(rows);
    reference::rmsnorm(at, w, y, rstd);
    return y;
  };
  Values y(x.size()), rstd(rows);
  reference::rmsnorm(x, weight, y, rstd);
  one.operands[3].values = rstd;
  one.operands[4].values.assign(x.size(), 0);
  for (const Kernels* table : computing_tables()) {
    const Memories memories(one);
    run(one, *table, 2, memories);
    const auto by = [&](const Values& at, auto f) { return numeric_gradient(at, dy, f); };
    expect_close(values_of(memories.tensors()[4]),
                 by(x, [&](const Values& v) { return forward(v, weight); }), "dx");
    expect_close(values_of(memories.tensors()[5]),
                 by(weight, [&](const Values& v) { return forward(x, v); }), "dweight");
  }
}

TEST(Gradients, activation) {
  for (const Activation kind : {Activation::none, Activation::gelu, Activation::relu}) {
    const Case one = activation_backward_case(kind, 100, kFp32, 8);
    const auto forward = [&](const Values& x) {
      Values y;
      for (const double value : x) {
        y.push_back(reference::activation(kind, value));
      }
      return y;
    };
    const Values want = numeric_gradient(one.operands[0].values, one.operands[1].values, forward);
    for (const Kernels* table : computing_tables()) {
      const Memories memories(one);
      run(one, *table, 2, memories);
      expect_close(values_of(memories.tensors()[1]), want, name_of(kind));
    }
  }
}

TEST(Gradients, attention) {
  const reference::Attention shape{2, 37, 2, 6};
  const Case one = attention_backward_case(shape, kFp32);
  const auto forward = [&](const Values& qkv) {
    Values out(qkv.size() / 3), lse(qkv.size());
    reference::attention(shape, qkv, out, lse);
    return out;
  };
  const Values want = numeric_gradient(one.operands[0].values, one.operands[3].values, forward);
  for (const Kernels* table : computing_tables()) {
    const Memories memories(one);
    run(one, *table, 2, memories);
    expect_close(values_of(memories.tensors()[4]), want, "dqkv");
  }
}

TEST(Gradients, cross_entropy) {
  const Case one = cross_entropy_case(7, 33, kFp32, Gradient::in_place);
  const auto forward = [&](const Values& logits) {
    Values losses(7);
    reference::cross_entropy(logits, one.operands[1].values, 1, losses, nullptr);
    return losses;
  };
  const Values want = numeric_gradient(one.operands[0].values, Values(7, 0.25), forward);
  for (const Kernels* table : computing_tables()) {
    const Memories memories(one);
    run(one, *table, 2, memories);
    expect_close(values_of(memories.tensors()[0]), want, "dlogits");
  }
}

TEST(Gradients, embedding) {
  Case one = embedding_backward_case({2, 3, 5}, 4);
  one.operands[2].values.assign(one.operands[2].values.size(), 0);
  one.operands[3].values.assign(one.operands[3].values.size(), 0);
  const Case forward_case = embedding_case({2, 3, 5}, 4, kFp32);
  const auto forward = [&](const Values& token) {
    std::vector<Values> v{one.operands[0].values, token, Values(25), Values(30)};
    forward_case.reference(v);
    return v[3];
  };
  const Values want = numeric_gradient(Values(20), one.operands[1].values, forward);
  for (const Kernels* table : computing_tables()) {
    const Memories memories(one);
    run(one, *table, 2, memories);
    expect_close(values_of(memories.tensors()[2]), want, "dtoken");
  }
}

}  // namespace
}  // namespace espalier::kernels
