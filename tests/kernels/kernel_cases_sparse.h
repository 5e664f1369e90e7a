#pragma once
// Cases of the products with a sparse matrix: odd shapes, densities from 0 to 1, both forms of
// positions, activations, sums, biases, strided rows; and its lists by rows and by columns.
#include <algorithm>
#include <numeric>

#include "tests/kernels/kernel_cases_memory.h"
#include "tests/kernels/kernel_cases_weights.h"

namespace espalier::kernels {

struct SparseShape {
  int64_t tokens, rows, cols;
  double density;
};

/// Options of a case besides its shape.
struct SparseVariant {
  Form form = Form::bitmap;
  Activation activation = Activation::none;
  bool accumulate = false;
  bool bias = false;
  bool strided = false;
  bool lists = false;  ///< the matrix comes with its Csr
};

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
    std::ranges::stable_sort(order, {}, [&](int32_t k) { return column[k]; });
    std::vector<int32_t> by_columns;
    for (const int32_t k : order) {
      by_columns.push_back(row[k]);
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

/// A random mask in one form, with or without its lists.
struct SparsePattern final : WeightPattern<SparseMatrix> {
  Kept elements;
  KeptLists lists;
  bool with_lists;

  SparsePattern(const SparseShape& s, Form form, bool listed)
      : elements(form, s.rows * s.cols, s.density),
        lists(s.rows, s.cols, elements),
        with_lists(listed) {
    rows = s.rows;
    cols = s.cols;
    positions.assign(elements.list.begin(), elements.list.end());
  }
  SparseMatrix matrix(Stream& stream, const Tensor& values,
                      std::unique_ptr<Prepared>& prepared) const override {
    return {rows, cols, values, elements.positions(stream),
            with_lists ? lists.csr(stream, prepared) : Csr{}};
  }
  std::string text() const override {
    return fmt::format("{}x{}_{}_{}{}", rows, cols, name_of(elements.form), kept(),
                       with_lists ? "_lists" : "");
  }
  Tolerance tolerance(int64_t terms) const override {
    return {3e-6 + 1e-7 * static_cast<double>(terms), 1e-5};
  }
};

/// Operands: the five lists.
inline Case csr_case(const SparseShape& shape, Form form) {
  const auto p = std::make_shared<const SparsePattern>(shape, form, false);
  Case made;
  made.name = "csr_" + p->text();
  const std::vector<int32_t>* lists[] = {&p->lists.row_begin, &p->lists.column,
                                         &p->lists.column_begin, &p->lists.row, &p->lists.order};
  for (const std::vector<int32_t>* list : lists) {
    made.operands.push_back(output(DType::int32, {static_cast<int64_t>(list->size())}, {}));
  }
  made.run = [p](const Kernels& kernels, Stream& stream, const Tensors& t) {
    kernels.csr(stream, {.rows = p->rows,
                         .cols = p->cols,
                         .positions = p->elements.positions(stream),
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

inline void add_sparse_cases(Cases& cases, const SparseShape& shape, const SparseVariant& v) {
  const auto w = std::make_shared<const SparsePattern>(shape, v.form, v.lists);
  const std::pair<DType, DType> types[] = {
      {kFp32, kFp32}, {kBf16, kFp32}, {kBf16, kBf16}, {kFp16, v.accumulate ? kFp32 : kFp16}};
  for (const auto& [in, out] : types) {
    add_weight_products<SparseMatrix>(cases, w,
                                      {.tokens = shape.tokens,
                                       .in = in,
                                       .out = out,
                                       .activation = v.activation,
                                       .extra = v.activation != Activation::none,
                                       .bias = v.bias,
                                       .accumulate = v.accumulate,
                                       .margin = v.strided ? 5 : 0});
  }
}

inline void add_sparse_cases(Cases& cases) {
  // Rows and columns of one tile and of several, with partial bytes, words, vectors, panels and
  // groups of rows; tokens that fill a block or not, and those of several passes of a matrix unit.
  const SparseShape shapes[] = {
      {1, 1, 1, 1},         {3, 5, 7, 0.5},     {0, 6, 9, 0.5},      {17, 64, 64, 0},
      {64, 128, 128, 0.1},  {65, 130, 70, 0.1}, {33, 33, 259, 0.01}, {130, 601, 200, 0.1},
      {131, 140, 530, 0.5}, {9, 66, 129, 1},    {600, 300, 96, 0.3}, {2100, 40, 64, 0.4},
  };
  for (const SparseShape& shape : shapes) {
    for (const Form form : {Form::list, Form::bitmap}) {
      add_sparse_cases(cases, shape, {.form = form, .accumulate = form == Form::list});
      add_sparse_cases(cases, shape,
                       {.form = form, .accumulate = form == Form::list, .lists = true});
      cases.push_back(csr_case(shape, form));
    }
  }
  cases.push_back(csr_case({70, 140, 200, 1}, Form::all));
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
