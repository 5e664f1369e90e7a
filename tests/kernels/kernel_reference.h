#pragma once
// The reference of every kernel in double, written for simplicity. Tests compare the tables against
// it. Arguments are whole operands as doubles, already rounded to the element type of their
// tensors.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <numeric>
#include <vector>

#include "src/core/rng.h"
#include "src/kernels/kernels.h"

namespace espalier::kernels::reference {

using Values = std::vector<double>;

struct Gemm {
  int64_t m, n, k;
  bool transpose_a, transpose_b, accumulate;
};

inline void gemm(const Gemm& s, const Values& a, const Values& b, const Values& bias, Values& c) {
  for (int64_t i = 0; i < s.m; ++i) {
    for (int64_t j = 0; j < s.n; ++j) {
      double sum = bias.empty() ? 0 : bias[j];
      for (int64_t l = 0; l < s.k; ++l) {
        sum += a[s.transpose_a ? l * s.m + i : i * s.k + l] *
               b[s.transpose_b ? j * s.k + l : l * s.n + j];
      }
      c[i * s.n + j] = sum + (s.accumulate ? c[i * s.n + j] : 0);
    }
  }
}

inline void column_sum(const Values& x, bool accumulate, Values& out) {
  const size_t cols = out.size();
  for (size_t c = 0; c < cols; ++c) {
    double sum = accumulate ? out[c] : 0;
    for (size_t i = c; i < x.size(); i += cols) {
      sum += x[i];
    }
    out[c] = sum;
  }
}

inline void layernorm(const Values& x, const Values& weight, const Values& bias, Values& y,
                      Values& mean, Values& rstd, double epsilon = 1e-5) {
  const size_t cols = weight.size();
  for (size_t r = 0; r < mean.size(); ++r) {
    double sum = 0;
    double squares = 0;
    for (size_t c = 0; c < cols; ++c) {
      sum += x[r * cols + c];
    }
    mean[r] = sum / static_cast<double>(cols);
    for (size_t c = 0; c < cols; ++c) {
      squares += std::pow(x[r * cols + c] - mean[r], 2);
    }
    rstd[r] = 1 / std::sqrt(squares / static_cast<double>(cols) + epsilon);
    for (size_t c = 0; c < cols; ++c) {
      y[r * cols + c] = (x[r * cols + c] - mean[r]) * rstd[r] * weight[c] + bias[c];
    }
  }
}

struct LayerNormGradients {
  Values &dx, &dweight, &dbias;
  bool accumulate;
};

inline void layernorm_backward(const Values& dy, const Values& x, const Values& weight,
                               const Values& mean_rstd, const LayerNormGradients& out) {
  const size_t cols = weight.size();
  const size_t rows = x.size() / cols;
  if (!out.accumulate) {
    out.dweight.assign(cols, 0);
    out.dbias.assign(cols, 0);
  }
  for (size_t r = 0; r < rows; ++r) {
    const double mean = mean_rstd[r];
    const double rstd = mean_rstd[rows + r];
    double sum = 0;
    double projection = 0;
    for (size_t c = 0; c < cols; ++c) {
      const double normalised = (x[r * cols + c] - mean) * rstd;
      sum += dy[r * cols + c] * weight[c];
      projection += dy[r * cols + c] * weight[c] * normalised;
      out.dweight[c] += dy[r * cols + c] * normalised;
      out.dbias[c] += dy[r * cols + c];
    }
    for (size_t c = 0; c < cols; ++c) {
      const double normalised = (x[r * cols + c] - mean) * rstd;
      out.dx[r * cols + c] += rstd * (dy[r * cols + c] * weight[c] -
                                      (sum + normalised * projection) / static_cast<double>(cols));
    }
  }
}

inline void rmsnorm(const Values& x, const Values& weight, Values& y, Values& rstd,
                    double epsilon = 1e-5) {
  const size_t cols = weight.size();
  for (size_t r = 0; r < rstd.size(); ++r) {
    double squares = 0;
    for (size_t c = 0; c < cols; ++c) {
      squares += x[r * cols + c] * x[r * cols + c];
    }
    rstd[r] = 1 / std::sqrt(squares / static_cast<double>(cols) + epsilon);
    for (size_t c = 0; c < cols; ++c) {
      y[r * cols + c] = x[r * cols + c] * rstd[r] * weight[c];
    }
  }
}

/// Adds to dx and dweight.
inline void rmsnorm_backward(const Values& dy, const Values& x, const Values& weight,
                             const Values& rstd, Values& dx, Values& dweight) {
  const size_t cols = weight.size();
  for (size_t r = 0; r < rstd.size(); ++r) {
    double projection = 0;
    for (size_t i = r * cols; i < (r + 1) * cols; ++i) {
      const double normalised = x[i] * rstd[r];
      projection += dy[i] * weight[i - r * cols] * normalised / static_cast<double>(cols);
      dweight[i - r * cols] += dy[i] * normalised;
    }
    for (size_t i = r * cols; i < (r + 1) * cols; ++i) {
      dx[i] += rstd[r] * (dy[i] * weight[i - r * cols] - x[i] * rstd[r] * projection);
    }
  }
}

inline double normal_distribution(double x) { return 0.5 * std::erfc(-x / std::sqrt(2.0)); }

inline double activation(Activation kind, double x) {
  switch (kind) {
    case Activation::gelu:
      return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    case Activation::relu:
      return x > 0 ? x : 0;
    case Activation::silu:
      return x / (1 + std::exp(-x));
    case Activation::gelu_erf:
      return x * normal_distribution(x);
    case Activation::none:
      break;
  }
  return x;
}

inline double activation_slope(Activation kind, double x) {
  switch (kind) {
    case Activation::gelu: {
      const double root = std::sqrt(2 / M_PI);
      const double t = std::tanh(root * (x + 0.044715 * x * x * x));
      return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * root * (1 + 3 * 0.044715 * x * x);
    }
    case Activation::relu:
      return x > 0 ? 1 : 0;
    case Activation::silu: {
      const double s = 1 / (1 + std::exp(-x));
      return s + x * s * (1 - s);
    }
    case Activation::gelu_erf:
      return normal_distribution(x) + x * std::exp(-0.5 * x * x) / std::sqrt(2 * M_PI);
    case Activation::none:
      break;
  }
  return 1;
}

/// B sequences, T tokens, H heads of width D; of k and v, K heads (0: H).
struct Attention {
  int64_t sequences, tokens, heads, width;
  bool causal = true;
  int64_t kv_heads = 0;
  int64_t window = 0;
  float scale = 0;
  /// Whether query t sees key j.
  bool sees(int64_t t, int64_t j) const {
    return !causal || (j <= t && (window == 0 || j > t - window));
  }
  /// One after the last key that query t sees.
  int64_t seen(int64_t t) const { return causal ? t + 1 : tokens; }
  double factor() const { return scale > 0 ? scale : 1 / std::sqrt(static_cast<double>(width)); }
  int64_t groups() const { return kv_heads == 0 ? heads : kv_heads; }
  int64_t columns() const { return heads * width; }
  int64_t qkv_columns() const { return (heads + 2 * groups()) * width; }
  /// Element d of q (part 0), or of k (1) or v (2) of query head h.
  size_t at(int64_t b, int64_t t, int part, int64_t h, int64_t d) const {
    const int64_t head = part == 0 ? h : heads + (part - 1) * groups() + h / (heads / groups());
    return static_cast<size_t>((b * tokens + t) * qkv_columns() + head * width + d);
  }
  size_t out_at(int64_t b, int64_t t, int64_t h, int64_t d) const {
    return static_cast<size_t>((b * tokens + t) * columns() + h * width + d);
  }
};

/// Probabilities of query t over the keys that it sees; returns the log of the sum of exponentials.
inline double attention_row(const Attention& s, const Values& qkv, int64_t b, int64_t h, int64_t t,
                            Values& p) {
  double top = -INFINITY;
  double sum = 0;
  p.assign(static_cast<size_t>(s.seen(t)), 0);
  for (int64_t j = 0; j < s.seen(t); ++j) {
    for (int64_t d = 0; d < s.width; ++d) {
      p[j] += qkv[s.at(b, t, 0, h, d)] * qkv[s.at(b, j, 1, h, d)] * s.factor();
    }
    p[j] = s.sees(t, j) ? p[j] : -INFINITY;
    top = std::fmax(top, p[j]);
  }
  for (double& value : p) {
    value = std::exp(value - top);
    sum += value;
  }
  for (double& value : p) {
    value /= sum;
  }
  return top + std::log(sum);
}

/// body(b, h, t) for all rows of all heads.
template <class Body>
void for_attention_rows(const Attention& s, const Body& body) {
  for (int64_t b = 0; b < s.sequences; ++b) {
    for (int64_t h = 0; h < s.heads; ++h) {
      for (int64_t t = 0; t < s.tokens; ++t) {
        body(b, h, t);
      }
    }
  }
}

inline void attention(const Attention& s, const Values& qkv, Values& out, Values& lse) {
  Values p;
  for_attention_rows(s, [&](int64_t b, int64_t h, int64_t t) {
    lse[(b * s.heads + h) * s.tokens + t] = attention_row(s, qkv, b, h, t, p);
    for (int64_t d = 0; d < s.width; ++d) {
      double sum = 0;
      for (int64_t j = 0; j < s.seen(t); ++j) {
        sum += p[j] * qkv[s.at(b, j, 2, h, d)];
      }
      out[s.out_at(b, t, h, d)] = sum;
    }
  });
}

inline void attention_backward(const Attention& s, const Values& qkv, const Values& dout,
                               Values& dqkv) {
  Values p;
  dqkv.assign(qkv.size(), 0);
  for_attention_rows(s, [&](int64_t b, int64_t h, int64_t t) {
    attention_row(s, qkv, b, h, t, p);
    Values dp(p.size(), 0);
    double delta = 0;
    for (int64_t j = 0; j < s.seen(t); ++j) {
      for (int64_t d = 0; d < s.width; ++d) {
        const double g = dout[s.out_at(b, t, h, d)];
        dp[j] += g * qkv[s.at(b, j, 2, h, d)];
        dqkv[s.at(b, j, 2, h, d)] += p[j] * g;
      }
      delta += p[j] * dp[j];
    }
    for (int64_t j = 0; j < s.seen(t); ++j) {
      const double ds = p[j] * (dp[j] - delta) * s.factor();
      for (int64_t d = 0; d < s.width; ++d) {
        dqkv[s.at(b, t, 0, h, d)] += ds * qkv[s.at(b, j, 1, h, d)];
        dqkv[s.at(b, j, 1, h, d)] += ds * qkv[s.at(b, t, 0, h, d)];
      }
    }
  });
}

inline void cross_entropy(const Values& logits, const Values& targets, double scale, Values& losses,
                          Values* dlogits, double smoothing = 0) {
  const size_t rows = losses.size();
  const size_t cols = logits.size() / rows;
  for (size_t r = 0; r < rows; ++r) {
    const double* x = logits.data() + r * cols;
    const auto target = static_cast<size_t>(targets[r]);
    double top = -INFINITY;
    double sum = 0;
    for (size_t c = 0; c < cols; ++c) {
      top = std::fmax(top, x[c]);
    }
    for (size_t c = 0; c < cols; ++c) {
      sum += std::exp(x[c] - top);
    }
    losses[r] = top + std::log(sum);
    for (size_t c = 0; c < cols; ++c) {
      const double wanted =
          (c == target ? 1 - smoothing : 0) + smoothing / static_cast<double>(cols);
      losses[r] -= wanted > 0 ? wanted * x[c] : 0;
      if (dlogits != nullptr) {
        (*dlogits)[r * cols + c] = scale * (std::exp(x[c] - top) / sum - wanted);
      }
    }
  }
}

/// The place of each target in a stable sort by descending logits, NaN first.
inline void target_ranks(const Values& logits, const Values& targets, Values& ranks) {
  const size_t cols = logits.size() / ranks.size();
  for (size_t r = 0; r < ranks.size(); ++r) {
    const double* x = logits.data() + r * cols;
    const double at_target = x[static_cast<size_t>(targets[r])];
    std::vector<size_t> order(cols);
    std::iota(order.begin(), order.end(), size_t{0});
    std::ranges::stable_sort(order, std::greater(), [x](size_t c) {
      return std::isnan(x[c]) ? std::numeric_limits<double>::infinity() : x[c];
    });
    const auto place = std::ranges::find(order, static_cast<size_t>(targets[r]));
    ranks[r] = static_cast<double>(std::isnan(at_target) ? cols : place - order.begin());
  }
}

inline Values softmax(const double* x, size_t cols, double temperature) {
  const double top = *std::max_element(x, x + cols);
  Values p(cols);
  double sum = 0;
  for (size_t c = 0; c < cols; ++c) {
    sum += p[c] = std::exp((x[c] - top) / temperature);
  }
  for (double& one : p) {
    one /= sum;
  }
  return p;
}

/// DistillationArgs; returns dlogits.
inline Values distillation(const Values& logits, const Values& teacher, const Values& targets,
                           const DistillationArgs& by, Values& losses, Values& teacher_losses) {
  const double a = static_cast<double>(by.weight), t = static_cast<double>(by.temperature);
  const size_t rows = losses.size(), cols = logits.size() / rows;
  Values dlogits;
  for (size_t r = 0; r < rows; ++r) {
    const auto target = static_cast<size_t>(targets[r]);
    const Values own = softmax(logits.data() + r * cols, cols, 1);
    const Values p = softmax(logits.data() + r * cols, cols, t);
    const Values q = softmax(teacher.data() + r * cols, cols, t);
    losses[r] = -std::log(own[target]);
    teacher_losses[r] = 0;
    for (size_t c = 0; c < cols; ++c) {
      teacher_losses[r] += t * t * q[c] * std::log(q[c] / p[c]);
      dlogits.push_back(static_cast<double>(by.scale) *
                        ((1 - a) * (own[c] - (c == target ? 1 : 0)) + a * t * (p[c] - q[c])));
    }
  }
  return dlogits;
}

inline double dropout(const DropoutArgs& args, int64_t i, double x) {
  const auto element = static_cast<uint64_t>(i + args.offset);
  const uint32_t word = philox(args.key, 0, element / 4)[element % 4];
  return uniform(word) >= args.probability ? x / (1.0 - args.probability) : 0;
}

}  // namespace espalier::kernels::reference
