#pragma once
// Cases of dense products (GemmArgs), and helpers for all cases: types of operands and names.
#include "tests/kernels/kernel_case.h"
#include "tests/kernels/kernel_reference.h"

namespace espalier::kernels {

inline constexpr DType kFp32 = DType::fp32;
inline constexpr DType kBf16 = DType::bf16;
inline constexpr DType kFp16 = DType::fp16;
inline constexpr DType kNumbers[] = {kFp32, kBf16, kFp16};
/// Types of inputs and results of products.
inline constexpr std::pair<DType, DType> kProductTypes[] = {
    {kFp32, kFp32}, {kBf16, kFp32}, {kBf16, kBf16}, {kFp16, kFp32}, {kFp16, kFp16}};
/// Types that may be mixed with `dtype` in one call.
inline std::vector<DType> types_beside(DType dtype) {
  return dtype == kFp32 ? std::vector{kFp32, kBf16, kFp16} : std::vector{kFp32, dtype};
}
using Cases = std::vector<Case>;

inline std::string text(DType dtype) { return std::string(name_of(dtype)); }
inline std::string name_of(Activation kind) {
  return kind == Activation::gelu       ? "gelu"
         : kind == Activation::relu     ? "relu"
         : kind == Activation::silu     ? "silu"
         : kind == Activation::gelu_erf ? "gelu_erf"
                                        : "none";
}

/// Of a sum of `terms` products of numbers up to 1. `added`: with a bias, c or another matrix. A
/// table may round the sum to the type of the result before it adds them, and may round a bias.
inline Tolerance of_product(DType out, bool added, int64_t terms) {
  constexpr int64_t kInParts = 2048;  // a table may add the parts of a longer sum in the same way
  const double root = std::sqrt(static_cast<double>(terms));
  const bool twice = (added || terms > kInParts) && out != kFp32;
  const double rounding = twice ? rounding_of(out) : 0;
  return {2e-5 + 2e-6 * root + rounding * (1.5 + 0.75 * root), 1e-5 + rounding};
}

inline Case gemm_case(const GemmArgs& flags, int64_t m, int64_t n, int64_t k, DType in, DType out,
                      bool bias) {
  const reference::Gemm s{m, n, k, flags.transpose_a, flags.transpose_b, flags.accumulate};
  Case made;
  made.name = fmt::format("gemm_{}x{}x{}_{}_{}_ta{:d}_tb{:d}_acc{:d}_bias{:d}", m, n, k, text(in),
                          text(out), s.transpose_a, s.transpose_b, s.accumulate, bias);
  const Tolerance tolerance = of_product(out, bias || s.accumulate, k);
  made.operands = {input(in, s.transpose_a ? Shape{k, m} : Shape{m, k}),
                   input(in, s.transpose_b ? Shape{n, k} : Shape{k, n}),
                   in_out_if(s.accumulate, out, {m, n}, tolerance), input(kFp32, {n})};
  if (!bias) {
    made.operands.pop_back();
  }
  made.run = [flags, bias](const Kernels& kernels, Stream& stream, const Tensors& t) {
    GemmArgs args = flags;
    args.a = t[0];
    args.b = t[1];
    args.c = t[2];
    args.bias = bias ? t[3] : Tensor{};
    kernels.gemm(stream, args);
  };
  made.reference = [s, bias](std::vector<Values>& v) {
    reference::gemm(s, v[0], v[1], bias ? v[3] : Values{}, v[2]);
  };
  made.any_thread_count = false;  // oneDNN's own blocking
  return made;
}

/// A product and at most one fused operation. Libraries fuse extents that are multiples of 8.
struct GemmShape {
  int64_t m, n, k;
  DType in, out;
  std::string name(const char* what) const {
    return fmt::format("gemm_{}_{}x{}x{}_{}_{}", what, m, n, k, text(in), text(out));
  }
};

/// Adds the product to another matrix and writes a third. Rows of both end in `gap` columns of
/// another array.
inline Case gemm_addend_case(const GemmShape& s, bool bias, int64_t gap = 0) {
  const Tolerance tolerance = of_product(s.out, true, s.k);
  const Shape with_gap{s.m, s.n + gap};
  Case made;
  made.name = s.name("addend") + fmt::format("_bias{:d}_gap{}", bias, gap);
  made.operands = {input(s.in, {s.m, s.k}), input(s.in, {s.n, s.k}), input(s.out, with_gap),
                   in_out_if(gap > 0, s.out, with_gap, tolerance), input(kFp32, {s.n})};
  made.operands[3].nan_at = s.n;  // in the gap: the call reads nothing else of c
  if (!bias) {
    made.operands.pop_back();
  }
  made.run = [s, bias](const Kernels& kernels, Stream& stream, const Tensors& t) {
    kernels.gemm(stream, {.a = t[0],
                          .b = t[1],
                          .c = t[3].column_range(0, s.n),
                          .addend = t[2].column_range(0, s.n),
                          .bias = bias ? t[4] : Tensor{},
                          .transpose_b = true});
  };
  made.reference = [s, bias, gap](std::vector<Values>& v) {
    Values sum;
    for (size_t i = 0; i < v[2].size(); ++i) {
      if (static_cast<int64_t>(i) % (s.n + gap) < s.n) {
        sum.push_back(v[2][i]);
      }
    }
    reference::gemm({s.m, s.n, s.k, false, true, true}, v[0], v[1], bias ? v[4] : Values{}, sum);
    for (int64_t i = 0; i < s.m * s.n; ++i) {
      v[3][i / s.n * (s.n + gap) + i % s.n] = sum[i];
    }
  };
  made.any_thread_count = false;
  return made;
}

inline Case gemm_activated_case(const GemmShape& s, Activation f, bool accumulate) {
  const Tolerance tolerance = of_product(s.out, true, s.k);
  Case made;
  made.name = s.name("activated") + fmt::format("_{}_acc{:d}", name_of(f), accumulate);
  made.operands = {input(s.in, {s.m, s.k}), input(s.in, {s.n, s.k}), input(kFp32, {s.n}),
                   in_out_if(accumulate, s.out, {s.m, s.n}, tolerance),
                   output(s.out, {s.m, s.n}, of_stored(s.out, tolerance))};
  made.run = [f, accumulate](const Kernels& kernels, Stream& stream, const Tensors& t) {
    kernels.gemm(stream, {.a = t[0],
                          .b = t[1],
                          .c = t[3],
                          .bias = t[2],
                          .transpose_b = true,
                          .accumulate = accumulate,
                          .activation = f,
                          .activated = t[4]});
  };
  made.reference = [s, f, accumulate](std::vector<Values>& v) {
    reference::gemm({s.m, s.n, s.k, false, true, accumulate}, v[0], v[1], v[2], v[3]);
    for (size_t i = 0; i < v[3].size(); ++i) {
      v[4][i] = reference::activation(f, rounded(s.out, v[3][i]));
    }
  };
  made.any_thread_count = false;
  return made;
}

/// A product of 16 bits may be rounded twice, and a library's slope of gelu may have only 10
/// correct bits.
inline Case gemm_slope_case(const GemmShape& s, Activation f) {
  Tolerance tolerance{2e-5, 1e-5 + rounding_of(s.out)};
  if (s.out != kFp32 && f == Activation::gelu) {
    tolerance.absolute = 0x1p-10 * std::sqrt(static_cast<double>(s.k));
  }
  Case made;
  made.name = s.name("slope") + fmt::format("_{}", name_of(f));
  made.operands = {input(s.in, {s.m, s.k}), input(s.in, {s.k, s.n}),
                   input(s.out, {s.m, s.n}, -3, 3), output(s.out, {s.m, s.n}, tolerance)};
  made.run = [f](const Kernels& kernels, Stream& stream, const Tensors& t) {
    kernels.gemm(stream, {.a = t[0], .b = t[1], .c = t[3], .activation = f, .preactivation = t[2]});
  };
  made.reference = [s, f](std::vector<Values>& v) {
    reference::gemm({s.m, s.n, s.k, false, false, false}, v[0], v[1], {}, v[3]);
    for (size_t i = 0; i < v[3].size(); ++i) {
      v[3][i] *= reference::activation_slope(f, v[2][i]);
    }
  };
  made.any_thread_count = false;
  return made;
}

/// dW and db. A call's sums of about 4 sqrt(k) may be rounded to 16 bits before they are added.
inline Case gemm_sums_case(const GemmShape& s, DType sums, bool accumulate) {
  const Tolerance tolerance = of_product(s.out, accumulate, s.k);
  const bool twice = accumulate && s.out != kFp32 && sums == s.out;
  const Tolerance of_sums{
      2e-5 + (twice ? rounding_of(sums) * 4 * std::sqrt(static_cast<double>(s.k)) : 0), 1e-5};
  Case made;
  made.name = s.name("sums") + fmt::format("_{}_acc{:d}", text(sums), accumulate);
  made.operands = {input(s.in, {s.k, s.m}), input(s.in, {s.k, s.n}),
                   in_out_if(accumulate, s.out, {s.m, s.n}, tolerance),
                   in_out_if(accumulate, sums, {s.m}, of_sums)};
  made.run = [accumulate](const Kernels& kernels, Stream& stream, const Tensors& t) {
    kernels.gemm(stream, {.a = t[0],
                          .b = t[1],
                          .c = t[2],
                          .transpose_a = true,
                          .accumulate = accumulate,
                          .row_sums = t[3],
                          .accumulate_sums = accumulate});
  };
  made.reference = [s, accumulate](std::vector<Values>& v) {
    reference::gemm({s.m, s.n, s.k, true, false, accumulate}, v[0], v[1], {}, v[2]);
    reference::column_sum(v[0], accumulate, v[3]);
  };
  made.any_thread_count = false;
  return made;
}

inline void add_gemm_extra_cases(Cases& cases, DType in, DType out) {
  for (const GemmShape& shape : {GemmShape{33, 65, 17, in, out}, GemmShape{24, 40, 16, in, out}}) {
    for (const Activation f : {Activation::gelu, Activation::relu}) {
      cases.push_back(gemm_activated_case(shape, f, false));
      cases.push_back(gemm_slope_case(shape, f));
    }
    cases.push_back(gemm_activated_case(shape, Activation::gelu, true));
    cases.push_back(gemm_addend_case(shape, false));
    cases.push_back(gemm_addend_case(shape, true));
    cases.push_back(gemm_addend_case(shape, true, 8));
    for (const DType sums : {kFp32, in == kFp32 ? kBf16 : in}) {
      cases.push_back(gemm_sums_case(shape, sums, false));
      cases.push_back(gemm_sums_case(shape, sums, true));
    }
  }
}

inline void add_gemm_cases(Cases& cases) {
  for (const auto& [in, out] : kProductTypes) {
    for (int flags = 0; flags < 16; ++flags) {
      const GemmArgs args{.transpose_a = (flags & 1) != 0,
                          .transpose_b = (flags & 2) != 0,
                          .accumulate = (flags & 4) != 0};
      cases.push_back(gemm_case(args, 33, 65, 17, in, out, (flags & 8) != 0));
      if (in != kFp32 && (flags & 8) == 0) {  // odd extents that a table may divide
        cases.push_back(gemm_case(args, 3, 2115, 16, in, out, false));
        cases.push_back(gemm_case(args, 3, 24, 2121, in, out, false));
      }
    }
    cases.push_back(gemm_case({}, 1, 1, 1, in, out, false));
    cases.push_back(gemm_case({.transpose_b = true}, 128, 96, 64, in, out, true));
    add_gemm_extra_cases(cases, in, out);
  }
}

}  // namespace espalier::kernels
