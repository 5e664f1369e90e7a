#pragma once
// Cases of rotary positions, gated activations and norms of heads. Their operands may be columns of
// wider rows, which a call must not change otherwise.
#include "tests/kernels/kernel_cases.h"

namespace espalier::kernels {

/// Columns of `wide` [sequences, tokens, …] from `first` on, as [sequences, tokens, n].
inline Tensor part_of(const Tensor& wide, int64_t first, int64_t n) {
  Tensor part = wide.column_range(first, n);
  part.shape = Shape{wide.shape[0], wide.shape[1], n};
  return part;
}

/// An output, with other columns that the call must not change if there are any, from `other` on.
inline Operand output_beside(bool others, DType dtype, const Shape& shape, Tolerance tolerance,
                             int64_t other) {
  if (!others) {
    return output(dtype, shape, tolerance);
  }
  Operand made = in_out(dtype, shape, tolerance);
  made.nan_at = other;
  return made;
}

struct RotaryCase {
  int64_t sequences, tokens, heads, head_width, width;
  bool inverse = false;
  bool positions = false;         ///< given, in any order
  int64_t before = 0, after = 0;  ///< other columns of a row
  int64_t columns() const { return before + heads * head_width + after; }
};

inline Case rotary_case(const RotaryCase& s, DType dtype) {
  Case made;
  made.name = fmt::format("rotary_{}x{}_{}x{}_of{}_{}_inverse{:d}_positions{:d}_beside{}",
                          s.sequences, s.tokens, s.heads, s.width, s.head_width, text(dtype),
                          s.inverse, s.positions, s.before + s.after);
  const int64_t positions = s.tokens + 7;
  made.operands = {in_out(dtype, {s.sequences, s.tokens, s.columns()}, {2e-7, 2e-7}),
                   input(kFp32, {positions, s.width / 2}), input(kFp32, {positions, s.width / 2})};
  made.operands[0].nan_at = s.before;
  if (s.positions) {
    made.operands.push_back(ids({s.sequences * s.tokens}, positions));
    // Elements of the tables that some row reads.
    const auto row = static_cast<int64_t>(made.operands[3].values[0]);
    made.operands[1].nan_at = made.operands[2].nan_at = row * s.width / 2;
  }
  made.run = [s](const Kernels& kernels, Stream& stream, const Tensors& t) {
    kernels.rotary(stream, {.x = part_of(t[0], s.before, s.heads * s.head_width),
                            .cosines = t[1],
                            .sines = t[2],
                            .positions = s.positions ? t[3] : Tensor{},
                            .heads = s.heads,
                            .width = s.width,
                            .inverse = s.inverse});
  };
  made.reference = [s](std::vector<Values>& v) {
    const int64_t half = s.width / 2;
    for (int64_t row = 0; row < s.sequences * s.tokens; ++row) {
      const auto position = s.positions ? static_cast<int64_t>(v[3][row]) : row % s.tokens;
      for (int64_t i = 0; i < s.heads * half; ++i) {
        const auto low =
            static_cast<size_t>(row * s.columns() + s.before + i / half * s.head_width + i % half);
        const auto high = low + static_cast<size_t>(half);
        const auto angle = static_cast<size_t>(position * half + i % half);
        const double a = v[0][low], b = v[0][high];
        const double sine = s.inverse ? -v[2][angle] : v[2][angle];
        v[0][low] = a * v[1][angle] - b * sine;
        v[0][high] = b * v[1][angle] + a * sine;
      }
    }
  };
  return made;
}

/// gate and up are columns of one matrix, with `apart` other columns after each.
struct GateCase {
  Activation kind;
  int64_t rows, cols, apart;
  int64_t row_width() const { return 2 * (cols + apart); }
  Tensor gate(const Tensor& both) const { return both.column_range(0, cols); }
  Tensor up(const Tensor& both) const { return both.column_range(cols + apart, cols); }
  size_t gate_at(int64_t i) const { return static_cast<size_t>(i / cols * row_width() + i % cols); }
  size_t up_at(int64_t i) const { return gate_at(i) + static_cast<size_t>(cols + apart); }
};

inline std::string text(const GateCase& s, DType dtype) {
  return fmt::format("{}_{}x{}_apart{}_{}", name_of(s.kind), s.rows, s.cols, s.apart, text(dtype));
}

inline Case gated_case(const GateCase& s, DType dtype) {
  Case made;
  made.name = "gated_" + text(s, dtype);
  made.operands = {input(dtype, {s.rows, s.row_width()}, -8, 8),
                   output(dtype, {s.rows, s.cols}, {1e-13, 5e-6})};
  made.run = [s](const Kernels& kernels, Stream& stream, const Tensors& t) {
    kernels.gated_activation(stream,
                             {.kind = s.kind, .gate = s.gate(t[0]), .up = s.up(t[0]), .y = t[1]});
  };
  made.reference = [s](std::vector<Values>& v) {
    for (int64_t i = 0; i < s.rows * s.cols; ++i) {
      v[1][i] = reference::activation(s.kind, v[0][s.gate_at(i)]) * v[0][s.up_at(i)];
    }
  };
  return made;
}

/// `in_place`: the gradients overwrite gate and up.
inline Case gated_backward_case(const GateCase& s, DType dtype, bool in_place) {
  Case made;
  made.name = fmt::format("gated_backward_{}_in_place{:d}", text(s, dtype), in_place);
  const Tolerance tolerance{1e-5, 5e-6};
  const Shape both{s.rows, s.row_width()};
  made.operands = {input(dtype, {s.rows, s.cols}),
                   in_place ? in_out(dtype, both, tolerance, -8, 8) : input(dtype, both, -8, 8)};
  if (!in_place) {
    made.operands.push_back(output_beside(s.apart > 0, dtype, both, tolerance, s.cols));
  }
  made.run = [s](const Kernels& kernels, Stream& stream, const Tensors& t) {
    kernels.gated_activation_backward(stream, {.kind = s.kind,
                                               .dy = t[0],
                                               .gate = s.gate(t[1]),
                                               .up = s.up(t[1]),
                                               .dgate = s.gate(t.back()),
                                               .dup = s.up(t.back())});
  };
  made.reference = [s](std::vector<Values>& v) {
    for (int64_t i = 0; i < s.rows * s.cols; ++i) {
      const double dy = v[0][i];
      const double gate = v[1][s.gate_at(i)], up = v[1][s.up_at(i)];
      v.back()[s.gate_at(i)] = dy * up * reference::activation_slope(s.kind, gate);
      v.back()[s.up_at(i)] = dy * reference::activation(s.kind, gate);
    }
  };
  return made;
}

struct HeadNormCase {
  int64_t rows, heads, width;
  int64_t before = 0;  ///< other columns of a row
  float epsilon = kNormEpsilon;
  int64_t columns() const { return before + heads * width; }
  Tensor part(const Tensor& wide) const { return wide.column_range(before, heads * width); }
  /// Element of a row of `columns()`.
  size_t at(int64_t piece, int64_t column) const {
    return static_cast<size_t>(piece / heads * columns() + before + piece % heads * width + column);
  }
};

inline std::string text(const HeadNormCase& s, DType dtype, DType weight) {
  return fmt::format("{}x{}x{}_beside{}_{}_{}_epsilon{}", s.rows, s.heads, s.width, s.before,
                     text(dtype), text(weight), s.epsilon);
}

inline Case head_norm_case(const HeadNormCase& s, DType dtype, DType weight, bool in_place) {
  Case made;
  made.name = fmt::format("head_norm_{}_in_place{:d}", text(s, dtype, weight), in_place);
  const Shape shape{s.rows, s.columns()};
  const Tolerance tolerance{2e-5, 1e-5};
  made.operands = {in_place ? in_out(dtype, shape, tolerance) : input(dtype, shape),
                   input(weight, {s.width}), output(kFp32, {s.rows * s.heads}, {1e-6, 1e-5})};
  made.operands[0].nan_at = s.before;
  if (!in_place) {
    made.operands.push_back(output_beside(s.before > 0, dtype, shape, tolerance, 0));
  }
  made.run = [=](const Kernels& kernels, Stream& stream, const Tensors& t) {
    kernels.head_norm(stream, {.x = s.part(t[0]),
                               .weight = t[1],
                               .y = s.part(in_place ? t[0] : t[3]),
                               .rstd = t[2],
                               .heads = s.heads,
                               .epsilon = s.epsilon});
  };
  made.reference = [=](std::vector<Values>& v) {
    Values& y = in_place ? v[0] : v[3];
    for (int64_t piece = 0; piece < s.rows * s.heads; ++piece) {
      double squares = 0;
      for (int64_t c = 0; c < s.width; ++c) {
        squares += std::pow(v[0][s.at(piece, c)], 2);
      }
      const double rstd = 1 / std::sqrt(squares / static_cast<double>(s.width) + s.epsilon);
      v[2][piece] = rstd;
      for (int64_t c = 0; c < s.width; ++c) {
        y[s.at(piece, c)] = v[0][s.at(piece, c)] * rstd * v[1][c];
      }
    }
  };
  return made;
}

/// dx is written over dy, or beside it.
inline Case head_norm_backward_case(const HeadNormCase& s, DType dtype, DType weight,
                                    bool accumulate, bool over_dy) {
  Case made;
  made.name = fmt::format("head_norm_backward_{}_acc{:d}_over_dy{:d}", text(s, dtype, weight),
                          accumulate, over_dy);
  const Shape shape{s.rows, s.columns()};
  const Tolerance tolerance{1e-5, 1e-5};
  const Tolerance sum{2e-5 + 6e-8 * static_cast<double>(s.rows * s.heads), 1e-5};
  made.operands = {over_dy ? in_out(dtype, shape, tolerance) : input(dtype, shape),
                   input(dtype, shape), input(weight, {s.width}),
                   input(kFp32, {s.rows * s.heads}, 1, 2),
                   in_out_if(accumulate, weight, {s.width}, sum)};
  made.operands[0].nan_at = made.operands[1].nan_at = s.before;
  if (!over_dy) {
    made.operands.push_back(output_beside(s.before > 0, dtype, shape, tolerance, 0));
  }
  made.run = [=](const Kernels& kernels, Stream& stream, const Tensors& t) {
    kernels.head_norm_backward(stream, {.dy = s.part(t[0]),
                                        .x = s.part(t[1]),
                                        .weight = t[2],
                                        .rstd = t[3],
                                        .dx = s.part(over_dy ? t[0] : t[5]),
                                        .dweight = t[4],
                                        .heads = s.heads,
                                        .accumulate = accumulate});
  };
  made.reference = [=](std::vector<Values>& v) {
    if (!accumulate) {
      v[4].assign(v[4].size(), 0);
    }
    const Values dy = v[0];
    Values& dx = over_dy ? v[0] : v[5];
    for (int64_t piece = 0; piece < s.rows * s.heads; ++piece) {
      const double rstd = v[3][piece];
      double projection = 0;
      for (int64_t c = 0; c < s.width; ++c) {
        const double normalised = v[1][s.at(piece, c)] * rstd;
        projection += dy[s.at(piece, c)] * v[2][c] * normalised;
        v[4][c] += dy[s.at(piece, c)] * normalised;
      }
      for (int64_t c = 0; c < s.width; ++c) {
        const double normalised = v[1][s.at(piece, c)] * rstd;
        dx[s.at(piece, c)] = rstd * (dy[s.at(piece, c)] * v[2][c] -
                                     normalised * projection / static_cast<double>(s.width));
      }
    }
  };
  return made;
}

inline void add_rotary_cases(Cases& cases, DType dtype) {
  for (const RotaryCase& s :
       std::vector<RotaryCase>{{1, 1, 1, 2, 2},
                               {2, 3, 3, 20, 20},
                               {2, 5, 4, 20, 6, true, true},  // a part of each head
                               {1, 131, 2, 64, 64, false, true, 64, 128},
                               {1, 131, 5, 64, 64, true, false, 64, 128},
                               {3, 17, 2, 96, 24, false, false, 3, 5},
                               {2, 300, 9, 128, 128, true, true, 128, 0}}) {
    cases.push_back(rotary_case(s, dtype));
  }
}

inline void add_transformer_cases(Cases& cases) {
  for (const DType dtype : kNumbers) {
    add_rotary_cases(cases, dtype);
    for (const Activation kind : kActivations) {
      for (const auto& [rows, cols, apart] : std::vector<std::array<int64_t, 3>>{
               {1, 1, 0}, {3, 5, 2}, {7, 64, 0}, {11, 36, 4}, {5, 5001, 3}, {40, 300, 0}}) {
        const GateCase shape{kind, rows, cols, apart};
        cases.push_back(gated_case(shape, dtype));
        cases.push_back(gated_backward_case(shape, dtype, false));
        cases.push_back(gated_backward_case(shape, dtype, true));
      }
    }
    for (const HeadNormCase& s : std::vector<HeadNormCase>{{1, 1, 1},
                                                           {3, 2, 20, 0, 1e-6F},
                                                           {131, 5, 64, 64},
                                                           {131, 3, 20, 3, 1e-2F},
                                                           {700, 2, 128},
                                                           {9, 6, 160, 12},
                                                           {5, 2, 700, 4}}) {
      for (const DType weight : types_beside(dtype)) {
        cases.push_back(head_norm_case(s, dtype, weight, false));
        cases.push_back(head_norm_case(s, dtype, weight, true));
        for (const bool accumulate : {false, true}) {
          cases.push_back(head_norm_backward_case(s, dtype, weight, accumulate, accumulate));
          cases.push_back(head_norm_backward_case(s, dtype, weight, accumulate, !accumulate));
        }
      }
    }
  }
}

}  // namespace espalier::kernels
