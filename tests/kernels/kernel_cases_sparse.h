#pragma once
// Cases of the sparse products: odd shapes, densities from 0 to 1, both forms of positions,
// activations, sums, biases, strided rows. Rows of a strided operand have kMargin extra elements on
// both sides; calls must not change the margins.
//
// Tolerance: sums of n terms of size 1 in fp32, in any order: n 6e-8, plus a few units in the last
// place for slopes.
#include <algorithm>
#include <numeric>

#include "tests/kernels/kernel_cases.h"
#include "tests/kernels/kernel_cases_memory.h"

namespace espalier::kernels {

struct SparseShape {
  int64_t tokens, rows, cols;
  double density;
};

/// Options of a case besides its shape.
struct SparseVariant {
  Form form = Form::bitmap;
  DType in = kFp32;
  DType out = kFp32;
  Activation activation = Activation::none;
  bool accumulate = false;
  bool bias = false;
  bool strided = false;
  bool lists = false;  ///< the matrix comes with its Csr
};

inline constexpr int64_t kMargin = 5;

/// Kept elements by rows and by columns.
struct KeptLists {
  int64_t rows, cols;
  std::vector<int32_t> row_begin, column, column_begin, row, order;

  KeptLists(int64_t height, int64_t width, const Kept& kept) : rows(height), cols(width) {
    auto begins = [](int64_t lines, const std::vector<int32_t>& line_of) {
      std::vector<int32_t> begin(static_cast<size_t>(lines) + 1, 0);
      for (const int32_t line : line_of) {
        ++begin[static_cast<size_t>(line) + 1];
      }
      std::partial_sum(begin.begin(), begin.end(), begin.begin());
      return begin;
    };
    for (const int32_t position : kept.list) {
      row.push_back(static_cast<int32_t>(position / cols));
      column.push_back(static_cast<int32_t>(position % cols));
      order.push_back(static_cast<int32_t>(order.size()));
    }
    row_begin = begins(rows, row);
    column_begin = begins(cols, column);
    std::ranges::stable_sort(order, {}, [&](int32_t k) { return column[static_cast<size_t>(k)]; });
    std::vector<int32_t> by_columns;
    for (const int32_t k : order) {
      by_columns.push_back(row[static_cast<size_t>(k)]);
    }
    row = by_columns;
  }
  Csr csr(Stream& stream, std::unique_ptr<Prepared>& prepared) const {
    return {.row_begin = reach_.of(stream, row_begin),
            .column = reach_.of(stream, column),
            .column_begin = reach_.of(stream, column_begin),
            .row = reach_.of(stream, row),
            .order = reach_.of(stream, order),
            .prepared = &prepared};
  }

 private:
  Reach reach_;
};

/// A [tokens, features] operand, optionally with margins.
struct Rows {
  int64_t tokens, features, margin;

  Rows(int64_t t, int64_t f, bool strided)
      : tokens(t), features(f), margin(strided ? kMargin : 0) {}
  Shape shape() const { return {tokens, features + 2 * margin}; }
  Tensor view(const Tensor& t) const { return t.column_range(margin, features); }
  size_t at(int64_t token, int64_t feature) const {
    return static_cast<size_t>(token * (features + 2 * margin) + margin + feature);
  }
};

/// One product and its kept elements.
struct SparseProblem {
  SparseShape shape;
  SparseVariant variant;
  std::shared_ptr<const Kept> kept;
  std::shared_ptr<const KeptLists> lists;

  SparseProblem(const SparseShape& s, const SparseVariant& v)
      : shape(s),
        variant(v),
        kept(std::make_shared<const Kept>(v.form, s.rows * s.cols, s.density)),
        lists(std::make_shared<const KeptLists>(s.rows, s.cols, *kept)) {}

  Rows inputs(int64_t features) const { return {shape.tokens, features, variant.strided}; }
  int64_t row(size_t k) const { return kept->list[k] / shape.cols; }
  int64_t col(size_t k) const { return kept->list[k] % shape.cols; }
  Tolerance tolerance(int64_t terms) const {
    return {3e-6 + 1e-7 * static_cast<double>(terms), 1e-5};
  }
  /// `prepared` must outlive the call.
  SparseMatrix weight(Stream& stream, const Tensor& values,
                      std::unique_ptr<Prepared>& prepared) const {
    return {shape.rows, shape.cols, values, kept->positions(stream),
            variant.lists ? lists->csr(stream, prepared) : Csr{}};
  }
  bool empty() const { return kept->count() == 0 || shape.tokens == 0; }
  std::string name(const char* op) const {
    return fmt::format("{}_{}x{}x{}_{}_{}_{}_{}_{}_acc{:d}_bias{:d}_strided{:d}{}", op,
                       shape.tokens, shape.rows, shape.cols, name_of(variant.form), kept->count(),
                       text(variant.in), text(variant.out), name_of(variant.activation),
                       variant.accumulate, variant.bias, variant.strided,
                       variant.lists ? "_lists" : "");
  }
};

/// Operands: values, x, y, then bias, then activated.
inline Case spmm_case(const SparseProblem& p) {
  const auto& [tokens, rows, cols, density] = p.shape;
  const SparseVariant v = p.variant;
  const Rows x = p.inputs(cols);
  const Rows y = p.inputs(rows);
  const Tolerance tolerance = p.tolerance(cols);
  const bool activated = v.activation != Activation::none;
  Case made;
  made.name = p.name("spmm");
  made.operands = {input(v.in, {p.kept->count()}), input(v.in, x.shape()),
                   in_out_if(v.accumulate || v.strided, v.out, y.shape(), tolerance)};
  if (v.bias) {
    made.operands.push_back(input(kFp32, {rows}));
  }
  if (activated) {
    const Tolerance twice = of_stored(v.out, tolerance);
    made.operands.push_back(in_out_if(v.strided, v.in, y.shape(), twice));
  }
  made.run = [=](const Kernels& kernels, Stream& stream, const Tensors& t) {
    std::unique_ptr<Prepared> prepared;
    kernels.spmm(stream, {.weight = p.weight(stream, t[0], prepared),
                          .x = x.view(t[1]),
                          .y = y.view(t[2]),
                          .bias = v.bias ? t[3] : Tensor{},
                          .activation = v.activation,
                          .activated = activated ? y.view(t.back()) : Tensor{},
                          .accumulate = v.accumulate});
  };
  made.reference = [=](std::vector<Values>& t) {
    for (int64_t r = 0; r < p.shape.tokens; ++r) {
      for (int64_t n = 0; n < p.shape.rows; ++n) {
        double& to = t[2][y.at(r, n)];
        to = (v.accumulate ? to : 0) + (v.bias ? t[3][static_cast<size_t>(n)] : 0);
      }
      for (size_t k = 0; k < p.kept->list.size(); ++k) {
        t[2][y.at(r, p.row(k))] += t[0][k] * t[1][x.at(r, p.col(k))];
      }
      for (int64_t n = 0; activated && n < p.shape.rows; ++n) {
        t.back()[y.at(r, n)] =
            reference::activation(v.activation, rounded(v.out, t[2][y.at(r, n)]));
      }
    }
  };
  made.passes_nan = !p.empty() && !v.strided;
  made.operands[1].nan_at = p.empty() ? 0 : p.col(0);
  return made;
}

/// Operands: values, dy, dx, then preactivation.
inline Case spmm_transposed_case(const SparseProblem& p) {
  const auto& [tokens, rows, cols, density] = p.shape;
  const SparseVariant v = p.variant;
  const Rows dy = p.inputs(rows);
  const Rows dx = p.inputs(cols);
  const Tolerance tolerance = p.tolerance(rows);
  const bool sloped = v.activation != Activation::none;
  Case made;
  made.name = p.name("spmm_transposed");
  made.operands = {input(v.in, {p.kept->count()}), input(v.in, dy.shape()),
                   in_out_if(v.accumulate || v.strided, v.out, dx.shape(), tolerance)};
  if (sloped) {
    made.operands.push_back(input(v.in, dx.shape(), -3, 3));
  }
  made.run = [=](const Kernels& kernels, Stream& stream, const Tensors& t) {
    std::unique_ptr<Prepared> prepared;
    kernels.spmm_transposed(stream, {.weight = p.weight(stream, t[0], prepared),
                                     .dy = dy.view(t[1]),
                                     .dx = dx.view(t[2]),
                                     .activation = v.activation,
                                     .preactivation = sloped ? dx.view(t[3]) : Tensor{},
                                     .accumulate = v.accumulate});
  };
  made.reference = [=](std::vector<Values>& t) {
    for (int64_t r = 0; r < p.shape.tokens; ++r) {
      Values product(static_cast<size_t>(p.shape.cols), 0);
      for (size_t k = 0; k < p.kept->list.size(); ++k) {
        product[static_cast<size_t>(p.col(k))] += t[0][k] * t[1][dy.at(r, p.row(k))];
      }
      for (int64_t c = 0; c < p.shape.cols; ++c) {
        const size_t at = dx.at(r, c);
        const double slope = sloped ? reference::activation_slope(v.activation, t[3][at]) : 1;
        t[2][at] = (v.accumulate ? t[2][at] : 0) + product[static_cast<size_t>(c)] * slope;
      }
    }
  };
  made.passes_nan = !p.empty() && !v.strided;
  made.operands[1].nan_at = p.empty() ? 0 : p.row(0);
  return made;
}

/// Operands: values, dy, x. The values have type `out`.
inline Case sddmm_case(const SparseProblem& p) {
  const auto& [tokens, rows, cols, density] = p.shape;
  const SparseVariant v = p.variant;
  const Rows dy = p.inputs(rows);
  const Rows x = p.inputs(cols);
  const Shape count{p.kept->count()};
  Case made;
  made.name = p.name("sddmm");
  made.operands = {in_out_if(v.accumulate, v.out, count, p.tolerance(tokens)),
                   input(v.in, dy.shape()), input(v.in, x.shape())};
  made.run = [=](const Kernels& kernels, Stream& stream, const Tensors& t) {
    std::unique_ptr<Prepared> prepared;
    kernels.sddmm(stream, {.weight = p.weight(stream, t[0], prepared),
                           .dy = dy.view(t[1]),
                           .x = x.view(t[2]),
                           .accumulate = v.accumulate});
  };
  made.reference = [=](std::vector<Values>& t) {
    for (size_t k = 0; k < t[0].size(); ++k) {
      double sum = v.accumulate ? t[0][k] : 0;
      for (int64_t r = 0; r < p.shape.tokens; ++r) {
        sum += t[1][dy.at(r, p.row(k))] * t[2][x.at(r, p.col(k))];
      }
      t[0][k] = sum;
    }
  };
  made.passes_nan = !p.empty() && !v.strided;
  made.operands[1].nan_at = p.empty() ? 0 : p.row(0);
  made.operands[2].nan_at = p.empty() ? 0 : p.col(0);
  return made;
}

/// Operands: the five lists.
inline Case csr_case(const SparseProblem& p) {
  Case made;
  made.name = p.name("csr");
  const std::vector<int32_t>* lists[] = {&p.lists->row_begin, &p.lists->column,
                                         &p.lists->column_begin, &p.lists->row, &p.lists->order};
  for (const std::vector<int32_t>* list : lists) {
    made.operands.push_back(output(DType::int32, {static_cast<int64_t>(list->size())}, {}));
  }
  made.run = [p](const Kernels& kernels, Stream& stream, const Tensors& t) {
    kernels.csr(stream, {.rows = p.shape.rows,
                         .cols = p.shape.cols,
                         .positions = p.kept->positions(stream),
                         .row_begin = t[0],
                         .column = t[1],
                         .column_begin = t[2],
                         .row = t[3],
                         .order = t[4]});
  };
  made.reference = [p, lists = std::to_array(lists)](std::vector<Values>& t) {
    for (size_t i = 0; i < t.size(); ++i) {
      t[i].assign(lists[i]->begin(), lists[i]->end());
    }
  };
  made.passes_nan = false;
  return made;
}

inline void add_sparse_cases(Cases& cases, const SparseShape& shape, SparseVariant variant) {
  const std::pair<DType, DType> types[] = {
      {kFp32, kFp32}, {kBf16, kFp32}, {kBf16, kBf16}, {kFp16, variant.accumulate ? kFp32 : kFp16}};
  for (const auto& [in, out] : types) {
    variant.in = in;
    variant.out = out;
    const SparseProblem problem(shape, variant);
    cases.push_back(spmm_case(problem));
    cases.push_back(spmm_transposed_case(problem));
    cases.push_back(sddmm_case(problem));
  }
}

inline void add_sparse_cases(Cases& cases) {
  // Rows and columns of one tile and of several, with partial bytes, words, vectors, panels and
  // groups of rows; tokens that fill a block or not.
  const SparseShape shapes[] = {
      {1, 1, 1, 1},         {3, 5, 7, 0.5},     {0, 6, 9, 0.5},      {17, 64, 64, 0},
      {64, 128, 128, 0.1},  {65, 130, 70, 0.1}, {33, 33, 259, 0.01}, {130, 601, 200, 0.1},
      {131, 140, 530, 0.5}, {9, 66, 129, 1},
  };
  for (const SparseShape& shape : shapes) {
    for (const Form form : {Form::list, Form::bitmap}) {
      add_sparse_cases(cases, shape, {.form = form, .accumulate = form == Form::list});
      add_sparse_cases(cases, shape,
                       {.form = form, .accumulate = form == Form::list, .lists = true});
      cases.push_back(csr_case({shape, {.form = form}}));
    }
  }
  cases.push_back(csr_case({{70, 140, 200, 1}, {.form = Form::all}}));
  for (const bool lists : {false, true}) {
    add_sparse_cases(cases, {70, 140, 200, 1}, {.form = Form::all, .lists = lists});
    for (const Activation kind : {Activation::none, Activation::gelu, Activation::relu}) {
      for (const bool strided : {false, true}) {
        add_sparse_cases(cases, {71, 90, 150, 0.1},
                         {.activation = kind, .bias = true, .strided = strided, .lists = lists});
        add_sparse_cases(cases, {129, 47, 85, 0.2},
                         {.form = Form::list,
                          .activation = kind,
                          .accumulate = true,
                          .strided = strided,
                          .lists = lists});
      }
    }
  }
}

}  // namespace espalier::kernels
