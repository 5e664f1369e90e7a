#pragma once
// Cases of the products with a weight W [rows, cols] that stores only its kept elements: sparse
// matrices (kernel_cases_sparse.h) and matrices of blocks (kernel_cases_block.h).
//   spmm             y  (+)= x Wᵀ (+ bias), activated = f(y)
//   spmm_transposed  dx (+)= dy W f'(preactivation)
//   sddmm            values (+)= dyᵀ x at the kept elements
// Activations may be part of wider rows, whose other columns a call must not change.
#include "tests/kernels/kernel_cases.h"

namespace espalier::kernels {

/// The kept elements of a weight.
template <class Matrix>
struct WeightPattern {
  int64_t rows = 0, cols = 0;
  std::vector<int64_t> positions;  ///< row cols + column of each value, in storage order

  virtual ~WeightPattern() = default;
  /// `prepared` must outlive the call.
  virtual Matrix matrix(Stream& stream, const Tensor& values,
                        std::unique_ptr<Prepared>& prepared) const = 0;
  virtual std::string text() const = 0;
  /// Of sums of `terms` products in fp32, in any order.
  virtual Tolerance tolerance(int64_t terms) const = 0;

  int64_t kept() const { return static_cast<int64_t>(positions.size()); }
  /// Row and column of each value.
  struct Place {
    int32_t row, column;
  };
  std::vector<Place> places() const {
    std::vector<Place> all;
    for (const int64_t position : positions) {
      all.push_back({static_cast<int32_t>(position / cols), static_cast<int32_t>(position % cols)});
    }
    return all;
  }
  /// Of the first value; for a call that computes nothing, the corner.
  Place first(int64_t tokens) const {
    return kept() > 0 && tokens > 0 ? places().front() : Place{0, 0};
  }
};
template <class Matrix>
using PatternPointer = std::shared_ptr<const WeightPattern<Matrix>>;

/// Options of a product's call.
struct WeightCall {
  int64_t tokens = 1;
  DType in = kFp32, out = kFp32;
  Activation activation = Activation::none;
  bool extra = false;  ///< forward: activated; transposed: preactivation
  bool bias = false;   ///< forward
  bool accumulate = false;
  int64_t margin = 0;  ///< columns before those of activations
  std::string text() const {
    return fmt::format("{}tokens_{}_{}_{}_extra{:d}_bias{:d}_acc{:d}_margin{}", tokens,
                       kernels::text(in), kernels::text(out), name_of(activation), extra, bias,
                       accumulate, margin);
  }
};

/// A [tokens, features] operand. Rows with margins are padded to multiples of the margin: with
/// margins of 8, every row in 16 bits is aligned to 16 bytes, for any number of features.
struct Activations {
  int64_t tokens, features, margin;
  Activations(const WeightCall& call, int64_t f)
      : tokens(call.tokens), features(f), margin(call.margin) {}

  int64_t stride() const {
    return margin == 0 ? features : (features + 3 * margin - 1) / margin * margin;
  }
  Shape shape() const { return {tokens, stride()}; }
  Tensor view(const Tensor& t) const { return t.column_range(margin, features); }
  size_t at(int64_t token, int64_t feature) const {
    return static_cast<size_t>(token * stride() + margin + feature);
  }
  /// `nan_at`: a feature on which results depend.
  Operand input(DType dtype, int64_t nan_at, double low = -1, double high = 1) const {
    Operand made = kernels::input(dtype, shape(), low, high);
    made.nan_at = nan_at + margin;
    return made;
  }
  /// Calls must not change the margins, so outputs with margins are compared as a whole.
  Operand output(DType dtype, Tolerance tolerance, bool accumulate) const {
    Operand made = in_out_if(accumulate || margin > 0, dtype, shape(), tolerance);
    made.nan_at = margin;
    made.input = accumulate;
    return made;
  }
};

template <class Matrix>
std::string weight_case_name(const char* name, const WeightPattern<Matrix>& w,
                             const WeightCall& call) {
  return fmt::format("{}{}_{}_{}", std::is_same_v<Matrix, BlockMatrix> ? "block_" : "", name,
                     w.text(), call.text());
}

/// Operands: values, x, y, then bias, then activated.
template <class Matrix>
Case spmm_case_of(const PatternPointer<Matrix>& w, const WeightCall& call) {
  const Activations x(call, w->cols), y(call, w->rows);
  const Tolerance tolerance = w->tolerance(w->cols);
  const bool works = w->kept() > 0 && call.tokens > 0;
  Case made;
  made.name = weight_case_name("spmm", *w, call);
  made.operands = {input(call.in, {w->kept()}), x.input(call.in, w->first(call.tokens).column),
                   y.output(call.out, tolerance, call.accumulate)};
  if (call.bias) {
    made.operands.push_back(input(kFp32, {w->rows}));
  }
  if (call.extra) {
    made.operands.push_back(y.output(call.in, of_stored(call.out, tolerance), false));
  }
  made.run = [=](const Kernels& kernels, Stream& stream, const Tensors& t) {
    std::unique_ptr<Prepared> prepared;
    const SpmmOf<Matrix> args{.weight = w->matrix(stream, t[0], prepared),
                              .x = x.view(t[1]),
                              .y = y.view(t[2]),
                              .bias = call.bias ? t[3] : Tensor{},
                              .activation = call.activation,
                              .activated = call.extra ? y.view(t.back()) : Tensor{},
                              .accumulate = call.accumulate};
    if constexpr (std::is_same_v<Matrix, BlockMatrix>) {
      kernels.block_spmm(stream, args);
    } else {
      kernels.spmm(stream, args);
    }
  };
  made.reference = [=](std::vector<Values>& t) {
    const auto places = w->places();
    for (int64_t r = 0; r < call.tokens; ++r) {
      for (int64_t n = 0; n < w->rows; ++n) {
        double& to = t[2][y.at(r, n)];
        to = (call.accumulate ? to : 0) + (call.bias ? t[3][n] : 0);
      }
      for (size_t k = 0; k < places.size(); ++k) {
        t[2][y.at(r, places[k].row)] += t[0][k] * t[1][x.at(r, places[k].column)];
      }
      for (int64_t n = 0; call.extra && n < w->rows; ++n) {
        t.back()[y.at(r, n)] =
            reference::activation(call.activation, rounded(call.out, t[2][y.at(r, n)]));
      }
    }
  };
  made.passes_nan = works;
  return made;
}

/// Operands: values, dy, dx, then preactivation.
template <class Matrix>
Case spmm_transposed_case_of(const PatternPointer<Matrix>& w, const WeightCall& call) {
  const Activations dy(call, w->rows), dx(call, w->cols);
  const bool works = w->kept() > 0 && call.tokens > 0;
  Case made;
  made.name = weight_case_name("spmm_transposed", *w, call);
  Tolerance tolerance = w->tolerance(w->rows);
  tolerance.relative += call.extra ? rounding_of(call.out) : 0;  // a product may be rounded before
  made.operands = {input(call.in, {w->kept()}), dy.input(call.in, w->first(call.tokens).row),
                   dx.output(call.out, tolerance, call.accumulate)};
  if (call.extra) {
    made.operands.push_back(dx.input(call.in, 0, -3, 3));
  }
  made.run = [=](const Kernels& kernels, Stream& stream, const Tensors& t) {
    std::unique_ptr<Prepared> prepared;
    const SpmmTransposedOf<Matrix> args{.weight = w->matrix(stream, t[0], prepared),
                                        .dy = dy.view(t[1]),
                                        .dx = dx.view(t[2]),
                                        .activation = call.activation,
                                        .preactivation = call.extra ? dx.view(t[3]) : Tensor{},
                                        .accumulate = call.accumulate};
    if constexpr (std::is_same_v<Matrix, BlockMatrix>) {
      kernels.block_spmm_transposed(stream, args);
    } else {
      kernels.spmm_transposed(stream, args);
    }
  };
  made.reference = [=](std::vector<Values>& t) {
    const auto places = w->places();
    for (int64_t r = 0; r < call.tokens; ++r) {
      Values product(static_cast<size_t>(w->cols), 0);
      for (size_t k = 0; k < places.size(); ++k) {
        product[places[k].column] += t[0][k] * t[1][dy.at(r, places[k].row)];
      }
      for (int64_t c = 0; c < w->cols; ++c) {
        const size_t at = dx.at(r, c);
        const double slope =
            call.extra ? reference::activation_slope(call.activation, t[3][at]) : 1;
        t[2][at] = (call.accumulate ? t[2][at] : 0) + product[c] * slope;
      }
    }
  };
  // The slope of `none` is 1 everywhere, so a NaN preactivation does not reach the result.
  made.passes_nan = works && (!call.extra || call.activation != Activation::none);
  return made;
}

/// Operands: values, dy, x. The values have type `out`.
template <class Matrix>
Case sddmm_case_of(const PatternPointer<Matrix>& w, const WeightCall& call) {
  const Activations dy(call, w->rows), x(call, w->cols);
  const bool works = w->kept() > 0 && call.tokens > 0;
  Case made;
  made.name = weight_case_name("sddmm", *w, call);
  made.operands = {in_out_if(call.accumulate, call.out, {w->kept()}, w->tolerance(call.tokens)),
                   dy.input(call.in, w->first(call.tokens).row),
                   x.input(call.in, w->first(call.tokens).column)};
  made.run = [=](const Kernels& kernels, Stream& stream, const Tensors& t) {
    std::unique_ptr<Prepared> prepared;
    const SddmmOf<Matrix> args{.weight = w->matrix(stream, t[0], prepared),
                               .dy = dy.view(t[1]),
                               .x = x.view(t[2]),
                               .accumulate = call.accumulate};
    if constexpr (std::is_same_v<Matrix, BlockMatrix>) {
      kernels.block_sddmm(stream, args);
    } else {
      kernels.sddmm(stream, args);
    }
  };
  made.reference = [=](std::vector<Values>& t) {
    const auto places = w->places();
    for (size_t k = 0; k < t[0].size(); ++k) {
      double sum = call.accumulate ? t[0][k] : 0;
      for (int64_t r = 0; r < call.tokens; ++r) {
        sum += t[1][dy.at(r, places[k].row)] * t[2][x.at(r, places[k].column)];
      }
      t[0][k] = sum;
    }
  };
  made.passes_nan = works;
  return made;
}

/// All three products.
template <class Matrix>
void add_weight_products(Cases& cases, const PatternPointer<Matrix>& w, const WeightCall& call) {
  cases.push_back(spmm_case_of<Matrix>(w, call));
  cases.push_back(spmm_transposed_case_of<Matrix>(w, call));
  cases.push_back(sddmm_case_of<Matrix>(w, call));
}

}  // namespace espalier::kernels
