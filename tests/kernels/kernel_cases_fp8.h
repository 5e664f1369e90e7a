#pragma once
// Cases of products in 8 bits (GemmArgs::round_a, round_b).
//
// Tolerances: tensor cores may add with 13 bits of the largest term, so sums of k terms of size 1
// err by k 2^-13; other rounding of operands would change them by about sqrt(k) 2^-5. Products with
// an identity show the rounded operands exactly.
#include "tests/kernels/kernel_cases.h"

namespace espalier::kernels {

struct Fp8Shape {
  int64_t m, n, k;
  DType in = kFp32, out = kFp32;
  bool transpose_a = false, transpose_b = false;
  Float8 a = Float8::e4m3, b = Float8::e4m3;
  bool accumulate = false, bias = false;
  int64_t before =
      0;  ///< columns in a's memory before its own: rows are strided and may begin at any address
  bool beside = false;  ///< adds a matrix beside c

  std::string name() const {
    return fmt::format("fp8_{}x{}x{}_{}_{}_ta{:d}_tb{:d}_{}{}_acc{:d}_bias{:d}_before{}_beside{:d}",
                       m, n, k, text(in), text(out), transpose_a, transpose_b,
                       a == Float8::e5m2 ? 5 : 4, b == Float8::e5m2 ? 5 : 4, accumulate, bias,
                       before, beside);
  }
  Shape a_shape() const { return transpose_a ? Shape{k, before + m} : Shape{m, before + k}; }
  Shape b_shape() const { return transpose_b ? Shape{n, k} : Shape{k, n}; }
  GemmArgs args(const Tensors& t) const {
    return {.a = t[0].column_range(before, t[0].cols() - before),
            .b = t[1],
            .c = t[2],
            .addend = beside ? t.back() : Tensor{},
            .bias = bias ? t[3] : Tensor{},
            .transpose_a = transpose_a,
            .transpose_b = transpose_b,
            .accumulate = accumulate,
            .round_a = a,
            .round_b = b};
  }
};

inline Values without_columns(const Values& values, const Shape& shape, int64_t before) {
  Values rest;
  for (int64_t i = 0; i < shape.count(); ++i) {
    if (i % shape.cols() >= before) {
      rest.push_back(values[static_cast<size_t>(i)]);
    }
  }
  return rest;
}

inline Case fp8_case(const Fp8Shape& s, Tolerance tolerance = {}) {
  if (tolerance.absolute == 0 && tolerance.relative == 0) {
    tolerance = {2e-5 + 0x1p-13 * static_cast<double>(s.k), 1e-5};
    tolerance.absolute += of_product(s.out, s.bias || s.accumulate || s.beside, s.k).absolute;
    // A library may add them in two steps: sums of about 8 are rounded before the bias is added.
    tolerance.absolute += s.bias && s.out == kBf16 && (s.accumulate || s.beside) ? 0x1p-6 : 0;
  }
  Case made;
  made.name = s.name();
  made.operands = {input(s.in, s.a_shape()), input(s.in, s.b_shape()),
                   in_out_if(s.accumulate, s.out, {s.m, s.n}, tolerance)};
  made.operands[0].nan_at = s.before;
  if (s.bias) {
    made.operands.push_back(input(kFp32, {s.n}));
  }
  if (s.beside) {
    made.operands.push_back(input(s.out, {s.m, s.n}));
  }
  made.run = [s](const Kernels& kernels, Stream& stream, const Tensors& t) {
    kernels.gemm(stream, s.args(t));
  };
  made.reference = [s](std::vector<Values>& v) {
    v[2] = s.beside ? v.back() : v[2];
    const Values a = reference::rounded_to_fp8(s.a, without_columns(v[0], s.a_shape(), s.before));
    const Values b = reference::rounded_to_fp8(s.b, v[1]);
    reference::gemm({s.m, s.n, s.k, s.transpose_a, s.transpose_b, s.accumulate || s.beside}, a, b,
                    s.bias ? v[3] : Values{}, v[2]);
  };
  made.any_thread_count = false;  // oneDNN's own blocking
  return made;
}

/// Numbers of many magnitudes, some below the smallest one representable.
inline void spread(Operand& operand) {
  for (size_t i = 0; i < operand.values.size(); ++i) {
    operand.values[i] = std::ldexp(operand.values[i], -static_cast<int>(i * 7 % 24));
  }
}

/// Product of one operand and an identity: its rounded elements, up to an fp32 rounding.
inline Case fp8_identity_case(Fp8Shape s, bool of_a) {
  (of_a ? s.n : s.m) = s.k;
  Case made = fp8_case(s, {1e-38, 1e-6});
  made.name += of_a ? "_identity_b" : "_identity_a";
  Operand& identity = made.operands[of_a ? 1 : 0];
  for (int64_t i = 0; i < identity.shape.count(); ++i) {
    const int64_t size = identity.shape.cols();
    identity.values[static_cast<size_t>(i)] = i / size == i % size - s.before ? 1 : 0;
  }
  spread(made.operands[of_a ? 0 : 1]);
  return made;
}

/// Multiplies all elements of one operand by `factor`: 0, or a factor that makes them tiny or huge.
inline Case fp8_scaled_case(const Fp8Shape& s, size_t operand, double factor) {
  Case made = fp8_case(s);
  made.name += fmt::format("_{}_times_{}", operand, factor);
  for (double& value : made.operands[operand].values) {
    value = rounded(s.in, value * factor);
  }
  made.operands[2].tolerance.absolute *= std::fabs(factor);
  made.operands[2].tolerance.absolute += 1e-38;
  made.any_inputs = factor < 1e30;
  return made;
}

/// Extents that the library supports in 8 bits, over several tiles, and others.
inline void add_fp8_cases(Cases& cases) {
  const std::pair<DType, DType> types[] = {{kFp32, kFp32}, {kBf16, kFp32}, {kBf16, kBf16}};
  for (const auto& [in, out] : types) {
    for (const Fp8Shape extents : {Fp8Shape{32, 80, 48}, Fp8Shape{33, 65, 17}}) {
      for (int flags = 0; flags < 16; ++flags) {
        Fp8Shape s = extents;
        s.in = in;
        s.out = out;
        s.transpose_a = (flags & 1) != 0;
        s.transpose_b = (flags & 2) != 0;
        s.accumulate = (flags & 4) != 0;
        s.bias = (flags & 8) != 0;
        s.a = flags % 4 == 2 ? Float8::e4m3 : Float8::e5m2;
        cases.push_back(fp8_case(s));
      }
    }
    for (const Fp8Shape extents :
         {Fp8Shape{1, 1, 1}, Fp8Shape{24, 32, 48}, Fp8Shape{32, 40, 48}, Fp8Shape{32, 48, 56}}) {
      Fp8Shape s = extents;
      s.in = in;
      s.out = out;
      cases.push_back(fp8_case(s));
      s.beside = true;
      cases.push_back(fp8_case(s));
    }
    for (const int64_t before : {3, 16}) {
      for (const bool transposed : {false, true}) {
        cases.push_back(fp8_case({.m = 48,
                                  .n = 32,
                                  .k = 64,
                                  .in = in,
                                  .out = out,
                                  .transpose_a = transposed,
                                  .before = before}));
      }
    }
  }
  for (const DType in : {kFp32, kBf16}) {
    for (const int64_t k : {160, 47}) {
      for (int flags = 0; flags < 8; ++flags) {
        const Fp8Shape s{.m = 80,
                         .n = 80,
                         .k = k,
                         .in = in,
                         .transpose_a = (flags & 1) != 0,
                         .transpose_b = (flags & 1) != 0,
                         .a = (flags & 2) != 0 ? Float8::e5m2 : Float8::e4m3};
        cases.push_back(fp8_identity_case(s, (flags & 4) != 0));
      }
    }
    for (const int64_t n : {32, 31}) {
      const Fp8Shape s{.m = 16, .n = n, .k = 48, .in = in, .transpose_b = true, .a = Float8::e5m2};
      for (const double factor : {0.0, 1e-30, 1e30}) {
        cases.push_back(fp8_scaled_case(s, 0, factor));
        cases.push_back(fp8_scaled_case(s, 1, factor));
      }
    }
  }
  // Scales below the smallest normal number are raised to it.
  for (const int64_t n : {32, 31}) {
    cases.push_back(fp8_scaled_case({.m = 16, .n = n, .k = 48}, 0, 1e-37));
  }
}

}  // namespace espalier::kernels
