#pragma once
// The case table: the factors of PowerSGD; see kernel_cases.h.
#include "src/kernels/rules/low_rank.h"
#include "tests/kernels/kernel_cases_memory.h"

namespace espalier::kernels {

namespace reference {

inline double dot(const Values& x, int64_t a, int64_t b, int64_t width) {
  double sum = 0;
  for (int64_t i = 0; i < width; ++i) {
    sum += x[static_cast<size_t>(a * width + i)] * x[static_cast<size_t>(b * width + i)];
  }
  return sum;
}

/// x: rows of `width` elements.
inline void orthonormalise(Values& x, int64_t rows, int64_t width) {
  for (int64_t r = 0; r < rows; ++r) {
    const double before = std::sqrt(dot(x, r, r, width));
    for (int64_t other = 0; other < 2 * r; ++other) {
      const double along = dot(x, r, other % r, width);
      for (int64_t i = 0; i < width; ++i) {
        x[static_cast<size_t>(r * width + i)] -=
            along * x[static_cast<size_t>(other % r * width + i)];
      }
    }
    const double length = std::sqrt(dot(x, r, r, width));
    const bool dependent = std::isfinite(before) && length <= kDependent * before;
    for (int64_t i = 0; i < width; ++i) {
      double& one = x[static_cast<size_t>(r * width + i)];
      one = dependent ? 0 : one / length;
    }
  }
}

}  // namespace reference

/// Special rows: the middle row repeats the first, is zero, or contains `holds`.
struct SpecialRow {
  bool repeats = false, zero = false;
  double holds = 0;  ///< an infinity or NaN; 0: none
  std::string text() const {
    return repeats ? "_repeats" : zero ? "_zero" : holds != 0 ? fmt::format("_{}", holds) : "";
  }
  void write(Operand& x) const {
    const int64_t width = x.shape.cols();
    const auto row = x.values.begin() + x.shape.rows() / 2 * width;
    if (repeats) {
      std::copy_n(x.values.begin(), width, row);
    } else if (zero) {
      std::fill_n(row, width, 0.0);
    } else if (holds != 0) {
      row[width / 2] = holds;
    }
  }
};

inline Case orthonormalise_case(int64_t rows, int64_t width, const SpecialRow& special = {}) {
  Case made;
  made.name = fmt::format("orthonormalise_{}x{}{}", rows, width, special.text());
  made.operands = {in_out(kFp32, {rows, width}, {1e-6, 1e-6})};
  special.write(made.operands[0]);
  made.run = [](const Kernels& kernels, Stream& stream, const Tensors& t) {
    kernels.orthonormalise(stream, {.x = t[0]});
  };
  made.reference = [=](std::vector<Values>& v) { reference::orthonormalise(v[0], rows, width); };
  made.passes_nan = rows > 0;
  return made;
}

struct FactorShape {
  int64_t rank = 1, rows = 1, cols = 1;
  DType gradient = kFp32;
};

/// One row of p or q is special.
inline Case keep_factor_case(const FactorShape& s, const SpecialRow& special = {},
                             bool of_q = false) {
  Case made;
  made.name = fmt::format("keep_factor_{}x{}x{}_{}{}{}", s.rank, s.rows, s.cols, text(s.gradient),
                          special.text(), of_q ? "_of_q" : "");
  const bool keeps = special.holds == 0;
  made.operands = {
      input(kFp32, {s.rank, s.rows}), input(kFp32, {s.rank, s.cols}),
      keeps ? output(kFp32, {s.rank, s.cols}, {}) : in_out(kFp32, {s.rank, s.cols}, {}),
      in_out(kFp32, {s.rows * s.cols}, {}), in_out(s.gradient, {s.rows * s.cols}, {})};
  special.write(made.operands[of_q ? 1 : 0]);
  constexpr uint64_t kKey = 0x123456789abcdefU;
  made.run = [](const Kernels& kernels, Stream& stream, const Tensors& t) {
    kernels.keep_factor(
        stream,
        {.p = t[0], .q = t[1], .factor = t[2], .error = t[3], .gradient = t[4], .key = kKey});
  };
  made.reference = [=](std::vector<Values>& v) {
    if (!keeps) {
      v[3].assign(v[3].size(), 0);
      v[4].assign(v[4].size(), std::nan(""));
      return;
    }
    for (int64_t i = 0; i < s.rank * s.cols; ++i) {
      const int64_t k = i / s.cols;
      const auto col = static_cast<uint64_t>(i % s.cols);
      const auto row = v[0].begin() + k * s.rows;
      const bool zero = std::all_of(row, row + s.rows, [](double x) { return x == 0; });
      const uint32_t word = philox(kKey, static_cast<uint64_t>(k), col / 4)[col % 4];
      v[2][static_cast<size_t>(i)] = zero ? 2.0 * uniform(word) - 1 : v[1][static_cast<size_t>(i)];
    }
  };
  made.passes_nan = keeps && s.rows > 0;
  return made;
}

inline void add_low_rank_cases(Cases& cases) {
  const double infinity = HUGE_VAL;
  const std::vector<SpecialRow> specials{
      {}, {.repeats = true}, {.zero = true}, {.holds = infinity}, {.holds = std::nan("")}};
  for (const auto& [rows, width] : std::vector<std::pair<int64_t, int64_t>>{
           {1, 1}, {3, 1}, {1, 37}, {4, 3}, {2, 129}, {5, 700}, {16, 33}, {3, 5001}, {20, 64}}) {
    for (const SpecialRow& special : specials) {
      if (!special.repeats || rows > 1) {
        cases.push_back(orthonormalise_case(rows, width, special));
      }
    }
  }
  for (const DType gradient : kNumbers) {
    for (const auto& [rank, rows, cols] : std::vector<std::array<int64_t, 3>>{
             {1, 1, 1}, {1, 5, 7}, {2, 0, 9}, {4, 33, 18}, {3, 300, 257}, {17, 20, 40}}) {
      const FactorShape shape{rank, rows, cols, gradient};
      cases.push_back(keep_factor_case(shape));
      for (const SpecialRow& special : specials) {
        if (special.zero || special.holds != 0) {
          if (rows > 0) {
            cases.push_back(keep_factor_case(shape, special));
          }
          cases.push_back(keep_factor_case(shape, special, true));
        }
      }
    }
  }
}

}  // namespace espalier::kernels
