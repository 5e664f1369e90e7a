#pragma once
// The case table: operation x shape x element type. Shapes include one element, odd sizes that
// leave vector tails, and sizes large enough that several threads share the work.
//
// Tolerances, fp32: elementwise operations err by a few units in the last place, 1e-6; sums of n
// terms of size 1 by about sqrt(n) 6e-8, at most n 6e-8, so 1e-5 to 1e-4 with the longest sums
// here.
#include "tests/kernels/kernel_cases_products.h"

namespace espalier::kernels {

inline Case column_sum_case(int64_t rows, int64_t cols, DType dtype, bool accumulate,
                            DType out = kFp32) {
  Case made;
  made.name =
      fmt::format("column_sum_{}x{}_{}_{}_acc{:d}", rows, cols, text(dtype), text(out), accumulate);
  const Tolerance tolerance{1e-5 + 6e-8 * static_cast<double>(rows), 1e-5};
  made.operands = {input(dtype, {rows, cols}), in_out_if(accumulate, out, {cols}, tolerance)};
  made.run = [accumulate](const Kernels& kernels, Stream& stream, const Tensors& t) {
    kernels.column_sum(stream, {.x = t[0], .out = t[1], .accumulate = accumulate});
  };
  made.reference = [accumulate](std::vector<Values>& v) {
    reference::column_sum(v[0], accumulate, v[1]);
  };
  return made;
}

inline Case layernorm_case(int64_t rows, int64_t cols, DType dtype, DType weight,
                           float epsilon = kNormEpsilon) {
  Case made;
  made.name = fmt::format("layernorm_{}x{}_{}_{}_epsilon{}", rows, cols, text(dtype), text(weight),
                          epsilon);
  made.operands = {input(kFp32, {rows, cols}, -1, 3),
                   input(weight, {cols}),
                   input(weight, {cols}),
                   output(dtype, {rows, cols}, {2e-5, 1e-5}),
                   output(kFp32, {rows}, {1e-6, 1e-6}),
                   output(kFp32, {rows}, {1e-6, 1e-5})};
  made.run = [epsilon](const Kernels& kernels, Stream& stream, const Tensors& t) {
    kernels.norm(stream, {t[0], t[1], t[2], t[3], t[4], t[5], epsilon});
  };
  made.reference = [epsilon](std::vector<Values>& v) {
    reference::layernorm(v[0], v[1], v[2], v[3], v[4], v[5], epsilon);
  };
  return made;
}

inline Case layernorm_backward_case(int64_t rows, int64_t cols, DType dtype, bool accumulate,
                                    DType out = kFp32) {
  Case made;
  made.name = fmt::format("layernorm_backward_{}x{}_{}_{}_acc{:d}", rows, cols, text(dtype),
                          text(out), accumulate);
  const Tolerance sum{2e-5 + 6e-8 * static_cast<double>(rows), 1e-5};
  const auto total = [&] { return in_out_if(accumulate, out, {cols}, sum); };
  made.operands = {input(dtype, {rows, cols}),
                   input(kFp32, {rows, cols}),
                   input(kFp32, {cols}),
                   input(kFp32, {rows}, -0.1, 0.1),
                   input(kFp32, {rows}, 1, 2),
                   in_out(kFp32, {rows, cols}, {1e-5, 1e-5}),
                   total(),
                   total(),
                   output(dtype, {rows, cols}, {1e-5, 1e-5})};
  made.run = [accumulate](const Kernels& kernels, Stream& stream, const Tensors& t) {
    kernels.norm_backward(stream,
                          {t[0], t[1], t[2], t[3], t[4], t[5], t[6], t[7], accumulate, t[8]});
  };
  made.reference = [accumulate](std::vector<Values>& v) {
    Values mean_rstd = v[3];
    mean_rstd.insert(mean_rstd.end(), v[4].begin(), v[4].end());
    reference::layernorm_backward(v[0], v[1], v[2], mean_rstd, {v[5], v[6], v[7], accumulate});
    v[8] = v[5];
  };
  return made;
}

/// `rounded` is computed in place over dy, as in a network, so a wrong order of reads and writes
/// fails.
inline Case layernorm_backward_over_dy_case(int64_t rows, int64_t cols, DType dtype) {
  Case made = layernorm_backward_case(rows, cols, dtype, false);
  made.name += "_over_dy";
  made.operands[0] = in_out(dtype, {rows, cols}, {1e-5, 1e-5});
  made.operands.pop_back();
  made.run = [](const Kernels& kernels, Stream& stream, const Tensors& t) {
    kernels.norm_backward(stream, {t[0], t[1], t[2], t[3], t[4], t[5], t[6], t[7], false, t[0]});
  };
  made.reference = [whole = made.reference](std::vector<Values>& v) {
    v.emplace_back();
    whole(v);
    v[0] = v[8];
    v.pop_back();
  };
  return made;
}

inline Case rmsnorm_case(int64_t rows, int64_t cols, DType dtype, DType weight,
                         float epsilon = kNormEpsilon) {
  Case made;
  made.name =
      fmt::format("rmsnorm_{}x{}_{}_{}_epsilon{}", rows, cols, text(dtype), text(weight), epsilon);
  made.operands = {input(kFp32, {rows, cols}, -1, 3), input(weight, {cols}),
                   output(dtype, {rows, cols}, {2e-5, 1e-5}), output(kFp32, {rows}, {1e-6, 1e-5})};
  made.run = [epsilon](const Kernels& kernels, Stream& stream, const Tensors& t) {
    kernels.norm(stream, {.x = t[0], .weight = t[1], .y = t[2], .rstd = t[3], .epsilon = epsilon});
  };
  made.reference = [epsilon](std::vector<Values>& v) {
    reference::rmsnorm(v[0], v[1], v[2], v[3], epsilon);
  };
  return made;
}

/// `over_dy`: writes `rounded` over dy, as in a network.
inline Case rmsnorm_backward_case(int64_t rows, int64_t cols, DType dtype, bool accumulate,
                                  DType out, bool over_dy = false) {
  Case made;
  made.name = fmt::format("rmsnorm_backward_{}x{}_{}_{}_acc{:d}{}", rows, cols, text(dtype),
                          text(out), accumulate, over_dy ? "_over_dy" : "");
  const Tolerance sum{2e-5 + 6e-8 * static_cast<double>(rows), 1e-5};
  made.operands = {over_dy ? in_out(dtype, {rows, cols}, {1e-5, 1e-5}) : input(dtype, {rows, cols}),
                   input(kFp32, {rows, cols}),
                   input(kFp32, {cols}),
                   input(kFp32, {rows}, 1, 2),
                   in_out(kFp32, {rows, cols}, {1e-5, 1e-5}),
                   in_out_if(accumulate, out, {cols}, sum)};
  made.run = [=](const Kernels& kernels, Stream& stream, const Tensors& t) {
    kernels.norm_backward(stream, {.dy = t[0],
                                   .x = t[1],
                                   .weight = t[2],
                                   .rstd = t[3],
                                   .dx = t[4],
                                   .dweight = t[5],
                                   .accumulate = accumulate,
                                   .rounded = over_dy ? t[0] : Tensor{}});
  };
  made.reference = [=](std::vector<Values>& v) {
    if (!accumulate) {
      v[5].assign(v[5].size(), 0);
    }
    reference::rmsnorm_backward(v[0], v[1], v[2], v[3], v[4], v[5]);
    if (over_dy) {
      v[0] = v[4];
    }
  };
  return made;
}

inline constexpr Activation kActivations[] = {Activation::none, Activation::gelu, Activation::relu,
                                              Activation::silu, Activation::gelu_erf};

/// Inputs in [-reach, reach). For large |x| the exponentials of GELU overflow; its values do not.
inline Case activation_case(Activation kind, int64_t n, DType dtype, double reach) {
  Case made;
  made.name = fmt::format("activation_{}_{}_{}_reach{}", name_of(kind), n, text(dtype), reach);
  // Relative tolerance: for very negative x GELU is x exp(2u), where the rounding of 2u (down to
  // -40) becomes 40 units. Absolute tolerance: there the reference's own 1 + tanh cancels, in
  // double.
  made.operands = {input(dtype, {n}, -reach, reach), output(dtype, {n}, {1e-14, 5e-6})};
  made.run = [kind](const Kernels& kernels, Stream& stream, const Tensors& t) {
    kernels.activation(stream, {kind, t[0], t[1]});
  };
  made.reference = [kind](std::vector<Values>& v) {
    for (size_t i = 0; i < v[0].size(); ++i) {
      v[1][i] = reference::activation(kind, v[0][i]);
    }
  };
  return made;
}

inline Case activation_backward_case(Activation kind, int64_t n, DType dtype, double reach) {
  Case made;
  const bool in_place = n % 2 == 0;
  made.name = fmt::format("activation_backward_{}_{}_{}_reach{}_in_place{:d}", name_of(kind), n,
                          text(dtype), reach, in_place);
  const Tolerance tolerance{1e-6, 5e-6};
  made.operands = {input(dtype, {n}, -reach, reach),
                   in_place ? in_out(dtype, {n}, tolerance) : input(dtype, {n})};
  if (!in_place) {
    made.operands.push_back(output(dtype, {n}, tolerance));
  }
  made.run = [kind](const Kernels& kernels, Stream& stream, const Tensors& t) {
    kernels.activation_backward(stream, {kind, t[1], t[0], t.back()});
  };
  made.reference = [kind](std::vector<Values>& v) {
    for (size_t i = 0; i < v[0].size(); ++i) {
      v.back()[i] = v[1][i] * reference::activation_slope(kind, v[0][i]);
    }
  };
  made.passes_nan = kind != Activation::none;  // the slope of `none` is 1 everywhere
  return made;
}

inline Case attention_case(const reference::Attention& s, DType dtype) {
  Case made;
  made.name =
      fmt::format("attention_{}x{}_{}x{}{}{}{}{}_{}", s.sequences, s.tokens, s.heads, s.width,
                  s.causal ? "" : "_all", s.kv_heads > 0 ? fmt::format("_kv{}", s.kv_heads) : "",
                  s.window > 0 ? fmt::format("_window{}", s.window) : "",
                  s.scale > 0 ? fmt::format("_scale{}", s.scale) : "", text(dtype));
  // Tables with products of pairs round each probability to the pair's type. Values are up to 2,
  // and probabilities sum to 1.
  const Tolerance rounded_terms{std::max(1e-5, 2 * rounding_of(dtype)), 1e-5};
  made.operands = {input(dtype, {s.sequences, s.tokens, s.qkv_columns()}, -2, 2),
                   output(dtype, {s.sequences, s.tokens, s.columns()}, rounded_terms),
                   output(kFp32, {s.sequences, s.heads, s.tokens}, {1e-5, 1e-5})};
  made.run = [s](const Kernels& kernels, Stream& stream, const Tensors& t) {
    kernels.attention(stream, {.qkv = t[0],
                               .out = t[1],
                               .lse = t[2],
                               .heads = static_cast<int>(s.heads),
                               .kv_heads = static_cast<int>(s.kv_heads),
                               .causal = s.causal,
                               .window = s.window,
                               .scale = s.scale});
  };
  made.reference = [s](std::vector<Values>& v) { reference::attention(s, v[0], v[1], v[2]); };
  return made;
}

/// Operands: qkv, out, lse, dout, dqkv.
inline auto attention_backward_run(const reference::Attention& s) {
  return [s](const Kernels& kernels, Stream& stream, const Tensors& t) {
    kernels.attention_backward(stream, {.qkv = t[0],
                                        .out = t[1],
                                        .lse = t[2],
                                        .dout = t[3],
                                        .dqkv = t[4],
                                        .heads = static_cast<int>(s.heads),
                                        .kv_heads = static_cast<int>(s.kv_heads),
                                        .causal = s.causal,
                                        .window = s.window,
                                        .scale = s.scale});
  };
}

/// out and lse of the forward pass are inputs: the reference's, rounded to their types.
inline Case attention_backward_case(const reference::Attention& s, DType dtype) {
  Case made = attention_case(s, dtype);
  made.any_inputs = false;
  made.name = "attention_backward" + made.name.substr(std::string("attention").size());
  std::vector<Values> values{made.operands[0].values, made.operands[1].values,
                             made.operands[2].values};
  made.reference(values);
  for (size_t i = 1; i < 3; ++i) {
    for (double& value : values[i]) {
      value = rounded(made.operands[i].dtype, value);
    }
    made.operands[i].values = values[i];
    made.operands[i].input = true;
    made.operands[i].output = false;
  }
  const Shape qkv = made.operands[0].shape;
  made.operands.push_back(input(dtype, made.operands[1].shape));
  // `out` is rounded, so the row sums of out * dout carry the rounding of terms of size 1. Tables
  // with products of pairs also round probabilities and gradients of scores. The latter are
  // multiplied by the scale, and the heads of a group are summed.
  const double terms = static_cast<double>(s.heads / s.groups()) *
                       std::max(1.0, s.factor() * std::sqrt(static_cast<double>(s.width)));
  const double rounding = dtype == kBf16 ? 3e-2 : dtype == kFp16 ? 4e-3 : 5e-5;
  made.operands.push_back(output(dtype, qkv, {rounding * terms, 1e-4}));
  made.run = attention_backward_run(s);
  made.reference = [s](std::vector<Values>& v) {
    reference::attention_backward(s, v[0], v[3], v[4]);
  };
  return made;
}

inline const std::vector<reference::Attention>& attention_shapes() {
  static const std::vector<reference::Attention> all{
      {1, 1, 1, 4},
      {2, 5, 3, 8},
      {1, 33, 2, 16},
      {1, 150, 2, 24},
      {2, 130, 2, 64},
      // Edges of tiles: of 64 rows and 128, of 32, 64, 96 and 128 columns.
      {3, 1, 2, 64},
      {1, 193, 1, 32},
      {1, 64, 1, 64},
      {1, 65, 1, 80},
      {1, 70, 2, 96},
      {1, 40, 1, 128},
      {1, 150, 1, 128},
      {1, 1, 1, 4, false},
      {2, 5, 3, 8, false},
      {1, 49, 2, 16, false},
      {1, 150, 2, 24, false},
      {2, 130, 2, 64, false},
      {1, 193, 1, 32, false},
      {1, 64, 1, 64, false},
      {1, 65, 1, 80, false},
      {1, 70, 2, 96, false},
      {1, 150, 1, 128, false},
      // Shared keys and values; windows within, across and beyond tiles; scales.
      {2, 1, 6, 20, true, 2},
      {2, 131, 6, 20, true, 2},
      {1, 131, 4, 64, true, 1, 1},
      {2, 70, 4, 32, false, 2, 0, 0.3F},
      {1, 131, 3, 64, true, 3, 5},
      {1, 300, 2, 20, true, 1, 37, 0.5F},
      {1, 300, 2, 64, true, 2, 128},
      {1, 290, 2, 40, true, 1, 129},
      {1, 131, 2, 128, true, 1, 1000},
      {1, 261, 2, 96, true, 0, 17}};
  return all;
}

inline void add_attention_cases(Cases& cases, DType dtype) {
  for (const reference::Attention& s : attention_shapes()) {
    cases.push_back(attention_case(s, dtype));
    cases.push_back(attention_backward_case(s, dtype));
  }
}

inline void add_math_cases(Cases& cases) {
  add_gemm_cases(cases);
  for (const DType dtype : kNumbers) {
    for (const auto& [rows, cols] : std::vector<std::pair<int64_t, int64_t>>{
             {1, 1}, {3, 5}, {17, 70}, {130, 384}, {301, 257}}) {
      for (const bool accumulate : {false, true}) {
        for (const DType out : types_beside(dtype)) {
          cases.push_back(column_sum_case(rows, cols, dtype, accumulate, out));
          cases.push_back(layernorm_backward_case(rows, cols, dtype, accumulate, out));
          cases.push_back(rmsnorm_backward_case(rows, cols, dtype, accumulate, out));
        }
      }
      cases.push_back(layernorm_backward_over_dy_case(rows, cols, dtype));
      cases.push_back(rmsnorm_backward_case(rows, cols, dtype, false, kFp32, true));
      for (const DType weight : {kFp32, dtype}) {
        cases.push_back(rmsnorm_case(rows, cols, dtype, weight));
        cases.push_back(rmsnorm_case(rows, cols, dtype, weight, 1e-2F));
      }
      cases.push_back(layernorm_case(rows, cols, dtype, kFp32));
      cases.push_back(layernorm_case(rows, cols, dtype, dtype));
      cases.push_back(layernorm_case(rows, cols, dtype, dtype, 0.5F));
    }
    for (const Activation kind : kActivations) {
      for (const int64_t n : {1, 15, 100, 50001}) {
        for (const double reach : {8.0, 100.0}) {
          if (dtype == kFp16 && reach > 8 && n > 100) {
            continue;
          }
          cases.push_back(activation_case(kind, n, dtype, reach));
          cases.push_back(activation_backward_case(kind, n, dtype, reach));
        }
      }
    }
    add_attention_cases(cases, dtype);
  }
}

}  // namespace espalier::kernels
