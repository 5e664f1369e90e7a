#pragma once
// Cases of convolutions with a sparse matrix: odd images, windows, strides and paddings, groups of
// channels beside others, from one image to several blocks of strips. The reference sums the kept
// elements over all windows.
#include "tests/kernels/kernel_cases_sparse.h"
#include "tests/kernels/kernel_cases_window.h"

namespace espalier::kernels {

struct SparseConvolutionCase {
  WindowCase images;  ///< all pixels; `others` beside the channels of both sides
  int64_t out = 1;
  double density = 0.5;
  Form form = Form::bitmap;
  DType in = kFp32, result = kFp32;
  bool extra = false;  ///< forward: bias; weight: adds to the values
};

inline Case sparse_convolution_case(const SparseConvolutionCase& s, Convolved which) {
  const WindowCase& images = s.images;
  const int64_t others = images.others;
  const auto w = std::make_shared<const SparsePattern>(
      SparseShape{images.out_rows(), s.out, images.window.area() * images.channels, s.density},
      s.form, false);
  Case made;
  made.name =
      fmt::format("sparse_convolution_{}_{}_{}_beside{}_{}_{}_extra{:d}", static_cast<int>(which),
                  images.text(), w->text(), others, text(s.in), text(s.result), s.extra);
  made.has_rows = [](const Kernels& kernels) { return kernels.sparse_convolution != nullptr; };
  const int64_t terms = which == Convolved::forward ? w->cols
                        : which == Convolved::input ? images.window.area() * s.out
                                                    : images.out_rows();
  const auto tensor = [&](Convolved computed, const Shape& shape) {
    const DType dtype = which == computed ? s.result : s.in;
    const Tolerance tolerance = w->tolerance(terms);
    // A result that a call adds to, or writes only in part, is an input as well.
    return which != computed ? input(dtype, shape)
           : computed == Convolved::weight
               ? (s.extra ? in_out(dtype, shape, tolerance) : output(dtype, shape, tolerance))
           : others > 0 ? in_out(dtype, shape, tolerance)
                        : output(dtype, shape, tolerance);
  };
  made.operands = {tensor(Convolved::input, {images.rows(), images.channels + others}),
                   tensor(Convolved::weight, {w->kept()}),
                   tensor(Convolved::forward, {images.out_rows(), s.out + others})};
  if (which == Convolved::forward && s.extra) {
    made.operands.push_back(input(kFp32, {s.out}));
  }
  // Elements of x, W and y of each product.
  std::vector<int64_t> kept(static_cast<size_t>(w->rows * w->cols), -1);
  for (int64_t k = 0; k < w->kept(); ++k) {
    kept[w->positions[k]] = k;
  }
  std::vector<std::array<int64_t, 3>> products;
  reference::for_windows(
      images.window, images.images, [&](int64_t y, int64_t place, int64_t pixel) {
        for (int64_t o = 0; pixel >= 0 && o < s.out; ++o) {
          for (int64_t c = 0; c < images.channels; ++c) {
            const int64_t position = o * w->cols + place * images.channels + c;
            const int64_t k = kept[position];
            if (k >= 0) {
              products.push_back(
                  {pixel * (images.channels + others) + c, k, y * (s.out + others) + o});
            }
          }
        }
      });
  for (size_t i = 0; i < 3 && !products.empty(); ++i) {
    made.operands[i].nan_at = products.front()[i];
  }
  if (which != Convolved::weight && others > 0) {  // the result: a column that stays
    const bool input = which == Convolved::input;
    made.operands[input ? 0 : 2].nan_at = input ? images.channels : s.out;
  }
  made.passes_nan = !products.empty();
  made.run = [=](const Kernels& kernels, Stream& stream, const Tensors& t) {
    std::unique_ptr<Prepared> prepared;
    const Tensor x = t[0].column_range(0, images.channels);
    const Tensor y = t[2].column_range(0, s.out);
    const SparseMatrix weight = w->matrix(stream, t[1], prepared);
    const Window& window = images.window;
    switch (which) {
      case Convolved::forward:
        return kernels.sparse_convolution(stream, {.window = window,
                                                   .weight = weight,
                                                   .x = x,
                                                   .bias = s.extra ? t[3] : Tensor{},
                                                   .y = y});
      case Convolved::input:
        return kernels.sparse_convolution_input(
            stream, {.window = window, .weight = weight, .dy = y, .dx = x});
      case Convolved::weight:
        return kernels.sparse_convolution_weight(
            stream, {.window = window, .weight = weight, .dy = y, .x = x, .accumulate = s.extra});
    }
  };
  made.reference = [=](std::vector<Values>& v) {
    const size_t computed = which == Convolved::input ? 0 : which == Convolved::weight ? 1 : 2;
    const int64_t columns = computed == 0 ? images.channels : s.out;
    for (size_t i = 0; i < v[computed].size(); ++i) {
      const int64_t column = static_cast<int64_t>(i) % (columns + others);
      if (computed == 1 ? !s.extra : column < columns) {
        v[computed][i] = computed == 2 && s.extra ? v[3][column] : 0;
      }
    }
    for (const auto& product : products) {
      const size_t a = computed == 0 ? 1 : 0;
      const size_t b = computed == 2 ? 1 : 2;
      v[computed][product[computed]] += v[a][product[a]] * v[b][product[b]];
    }
  };
  return made;
}

/// In fp32, bf16 and fp16, with results of that type or fp32.
inline void add_sparse_convolutions(Cases& cases, SparseConvolutionCase s) {
  for (const DType in : kNumbers) {
    s.in = in;
    s.result = s.extra ? kFp32 : in;
    for (const Convolved which : {Convolved::forward, Convolved::input, Convolved::weight}) {
      cases.push_back(sparse_convolution_case(s, which));
    }
  }
}

inline void add_sparse_convolution_cases(Cases& cases) {
  // Outputs and channels of one tile and of several; blocks of strips that are full or not.
  // Windows: height, width, extent, stride, padding.
  const SparseConvolutionCase all[] = {
      {.images = {.window = {}}, .density = 1, .form = Form::all},
      {.images = {.window = {3, 5, 3, 1, 1}, .images = 2, .channels = 3}, .out = 5},
      {.images = {.window = {7, 6, 2, 2}, .images = 3, .channels = 33}, .out = 9, .density = 0.1},
      {.images = {.window = {9, 9, 3, 2, 1}, .images = 3, .channels = 64},
       .out = 70,
       .density = 0.1},
      {.images = {.window = {11, 8, 7, 3, 3}, .images = 2, .channels = 4}, .out = 6},
      {.images = {.window = {12, 5, 5, 1, 4}, .images = 1, .channels = 7}, .out = 17},
      // Pixels that no window covers.
      {.images = {.window = {5, 5, 1, 2}, .images = 70, .channels = 5}, .out = 4},
      {.images = {.window = {4, 4, 2, 3}, .images = 2, .channels = 6}, .out = 3},
      {.images = {.window = {4, 4, 4}, .images = 5, .channels = 140}, .out = 2, .density = 0.02},
      {.images = {.window = {2, 2, 3, 1, 1}, .images = 2, .channels = 130},
       .out = 530,
       .density = 0.05},
      {.images = {.window = {16, 16, 3, 1, 1}, .images = 9, .channels = 8},
       .out = 12,
       .density = 0.2},
      {.images = {.window = {6, 7, 3, 1, 1}, .images = 3, .channels = 8, .others = 4}, .out = 8},
      // No kept element, no image.
      {.images = {.window = {3, 3, 2}, .images = 2, .channels = 3}, .out = 4, .density = 0},
      {.images = {.window = {3, 3, 2}, .images = 0, .channels = 3}, .out = 4},
  };
  for (SparseConvolutionCase one : all) {
    one.images.n = one.images.out_rows();
    add_sparse_convolutions(cases, one);
    one.form = one.form == Form::all ? one.form : Form::list;
    one.extra = true;
    add_sparse_convolutions(cases, one);
  }
}

}  // namespace espalier::kernels
