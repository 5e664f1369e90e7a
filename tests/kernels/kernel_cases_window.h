#pragma once
// The case table, windows over images; see kernel_cases.h. The references visit all windows and
// places, and skip the padding.
#include "tests/kernels/kernel_cases.h"

namespace espalier::kernels {

namespace reference {

/// Calls body(output pixel, place, input pixel) for each pixel of each window of `images` images;
/// input pixel -1: padding.
template <class Body>
void for_windows(const Window& w, int64_t images, const Body& body) {
  int64_t out = 0;
  for (int64_t image = 0; image < images; ++image) {
    for (int64_t top = -w.padding; top + w.extent <= w.height + w.padding; top += w.stride) {
      for (int64_t left = -w.padding; left + w.extent <= w.width + w.padding; left += w.stride) {
        for (int64_t place = 0; place < w.extent * w.extent; ++place) {
          const int64_t row = top + place / w.extent;
          const int64_t column = left + place % w.extent;
          const bool inside = row >= 0 && row < w.height && column >= 0 && column < w.width;
          body(out, place, inside ? (image * w.height + row) * w.width + column : int64_t{-1});
        }
        ++out;
      }
    }
  }
}

}  // namespace reference

/// The shape of a case: `images` of `channels`; patches of output pixels [first, first + n).
struct WindowCase {
  Window window;
  int64_t images = 1, channels = 1;
  int64_t first = 0, n = 0;
  int64_t others = 0;  ///< channels of another group beside these

  int64_t rows() const { return images * window.pixels(); }
  int64_t out_rows() const { return images * window.out_pixels(); }
  std::string text() const {
    return fmt::format("{}x{}x{}x{}_window{}_stride{}_padding{}", images, window.height,
                       window.width, channels, window.extent, window.stride, window.padding);
  }
  /// Calls body(element of patches, element of the images, or -1).
  template <class Body>
  void for_patches(const Body& body) const {
    reference::for_windows(window, images, [&](int64_t out, int64_t place, int64_t pixel) {
      for (int64_t c = 0; out >= first && out < first + n && c < channels; ++c) {
        body(((out - first) * window.area() + place) * channels + c,
             pixel < 0 ? int64_t{-1} : pixel * (channels + others) + c);
      }
    });
  }
};

inline Case patches_case(const WindowCase& s, DType dtype) {
  Case made;
  made.name =
      fmt::format("patches_{}_{}_{}+{}_beside{}", s.text(), text(dtype), s.first, s.n, s.others);
  made.operands = {input(dtype, {s.rows(), s.channels + s.others}),
                   output(dtype, {s.n, s.window.area() * s.channels}, {})};
  s.for_patches([&](int64_t, int64_t from) {
    made.operands[0].nan_at = from < 0 ? made.operands[0].nan_at : from;
  });
  made.run = [s](const Kernels& kernels, Stream& stream, const Tensors& t) {
    kernels.patches(stream, {.window = s.window,
                             .x = t[0].column_range(0, s.channels),
                             .patches = t[1],
                             .first = s.first});
  };
  made.reference = [s](std::vector<Values>& v) {
    s.for_patches([&](int64_t to, int64_t from) { v[1][to] = from < 0 ? 0 : v[0][from]; });
  };
  return made;
}

inline Case patch_sum_case(const WindowCase& s, DType dtype) {
  Case made;
  made.name =
      fmt::format("patch_sum_{}_{}_{}+{}_beside{}", s.text(), text(dtype), s.first, s.n, s.others);
  made.operands = {input(dtype, {s.n, s.window.area() * s.channels}),
                   in_out(kFp32, {s.rows(), s.channels + s.others}, {2e-5, 1e-6})};
  s.for_patches([&](int64_t patch, int64_t to) {
    made.operands[0].nan_at = to < 0 ? made.operands[0].nan_at : patch;
  });
  made.run = [s](const Kernels& kernels, Stream& stream, const Tensors& t) {
    kernels.patch_sum(stream, {.window = s.window,
                               .patches = t[0],
                               .sum = t[1].column_range(0, s.channels),
                               .first = s.first});
  };
  made.reference = [s](std::vector<Values>& v) {
    s.for_patches([&](int64_t patch, int64_t to) {
      if (to >= 0) {
        v[1][to] += v[0][patch];
      }
    });
  };
  return made;
}

/// Calls body(element of x, element of W, element of y) for each product of a convolution with
/// `out` channels.
template <class Body>
void for_products(const WindowCase& s, int64_t out, const Body& body) {
  reference::for_windows(s.window, s.images, [&](int64_t y, int64_t place, int64_t pixel) {
    for (int64_t o = 0; pixel >= 0 && o < out; ++o) {
      for (int64_t c = 0; c < s.channels; ++c) {
        body(pixel * s.channels + c, (o * s.window.area() + place) * s.channels + c, y * out + o);
      }
    }
  });
}

/// An element that a window covers: those of x may be in none.
inline int64_t covered_element(const WindowCase& s) {
  int64_t found = 0;
  for_products(s, 1, [&](int64_t x, int64_t, int64_t) { found = x; });
  return found;
}

enum class Convolved : uint8_t { forward, input, weight };

inline Case convolution_case(const WindowCase& s, int64_t out, Convolved which, DType dtype) {
  Case made;
  made.name = fmt::format("convolution_{}_{}_out{}_{}", static_cast<int>(which), s.text(), out,
                          text(dtype));
  const Shape x{s.rows(), s.channels};
  const Shape weight{out, s.window.area() * s.channels};
  const Shape y{s.out_rows(), out};
  const double terms = static_cast<double>(which == Convolved::forward ? weight.cols()
                                           : which == Convolved::input ? s.window.area() * out
                                                                       : y.rows());
  const bool bias = which == Convolved::forward && out % 2 == 1;
  const Tolerance tolerance = of_product(dtype, bias, static_cast<int64_t>(terms));
  const auto operand = [&](Convolved computed, const Shape& shape) {
    return which == computed
               ? output(computed == Convolved::weight ? kFp32 : dtype, shape, tolerance)
               : input(dtype, shape);
  };
  made.operands = {operand(Convolved::input, x), operand(Convolved::weight, weight),
                   operand(Convolved::forward, y)};
  made.operands[0].nan_at = covered_element(s);
  for_products(s, 1, [&](int64_t, int64_t w, int64_t) { made.operands[1].nan_at = w; });
  if (bias) {
    made.operands.push_back(input(kFp32, {out}));
  }
  made.run = [=](const Kernels& kernels, Stream& stream, const Tensors& t) {
    switch (which) {
      case Convolved::forward:
        return kernels.convolution(stream, {.window = s.window,
                                            .x = t[0],
                                            .weight = t[1],
                                            .bias = bias ? t[3] : Tensor{},
                                            .y = t[2]});
      case Convolved::input:
        return kernels.convolution_input(
            stream, {.window = s.window, .dy = t[2], .weight = t[1], .dx = t[0]});
      case Convolved::weight:
        return kernels.convolution_weight(
            stream, {.window = s.window, .x = t[0], .dy = t[2], .dweight = t[1]});
    }
  };
  made.reference = [=](std::vector<Values>& v) {
    const size_t computed = which == Convolved::input ? 0 : which == Convolved::weight ? 1 : 2;
    v[computed].assign(v[computed].size(), 0);
    for_products(s, out, [&](int64_t i, int64_t w, int64_t j) {
      const std::array<int64_t, 3> at{i, w, j};
      const size_t a = computed == 0 ? 1 : 0;
      const size_t b = computed == 2 ? 1 : 2;
      v[computed][at[computed]] += v[a][at[a]] * v[b][at[b]];
    });
    for (size_t k = 0; bias && k < v[2].size(); ++k) {
      v[2][k] += v[3][k % static_cast<size_t>(out)];
    }
  };
  made.any_thread_count = false;  // the library divides sums by threads
  return made;
}

inline Case pool_case(const WindowCase& s, Pool kind, DType dtype) {
  Case made;
  made.name =
      fmt::format("pool_{}_{}_{}", kind == Pool::max ? "max" : "mean", s.text(), text(dtype));
  const Shape out{s.out_rows(), s.channels};
  made.operands = {input(dtype, {s.rows(), s.channels}), output(dtype, out, {1e-5, 1e-6})};
  if (kind == Pool::max) {
    made.operands.push_back(output(DType::uint8, out, {}));
  }
  made.run = [s, kind](const Kernels& kernels, Stream& stream, const Tensors& t) {
    kernels.pool(stream, {.window = s.window,
                          .kind = kind,
                          .x = t[0],
                          .y = t[1],
                          .from = kind == Pool::max ? t[2] : Tensor{}});
  };
  made.reference = [s, kind](std::vector<Values>& v) {
    std::fill(v[1].begin(), v[1].end(), kind == Pool::max ? -HUGE_VAL : 0);
    reference::for_windows(s.window, s.images, [&](int64_t window, int64_t place, int64_t pixel) {
      for (int64_t c = 0; pixel >= 0 && c < s.channels; ++c) {
        const double x = v[0][pixel * s.channels + c];
        double& y = v[1][window * s.channels + c];
        if (kind == Pool::mean) {
          y += x / static_cast<double>(s.window.area());
        } else if (x > y || std::isnan(x)) {
          y = x;
          v[2][window * s.channels + c] = static_cast<double>(place);
        }
      }
    });
  };
  return made;
}

/// `from` are the places that `pool` finds in random images.
inline Case pool_backward_case(const WindowCase& s, Pool kind, DType dtype) {
  Case made;
  made.name = fmt::format("pool_backward_{}_{}_{}", kind == Pool::max ? "max" : "mean", s.text(),
                          text(dtype));
  const Shape out{s.out_rows(), s.channels};
  made.operands = {input(dtype, out), output(dtype, {s.rows(), s.channels}, {1e-5, 1e-6})};
  if (kind == Pool::max) {
    std::vector<Values> forward = expected(pool_case(s, kind, dtype));
    Operand from = input(DType::uint8, out, 0, 1);
    from.values = forward[2];
    made.operands.push_back(from);
    made.any_inputs = false;
  }
  // With stride > extent no pixel may be in two windows, and some in none.
  made.run = [s, kind](const Kernels& kernels, Stream& stream, const Tensors& t) {
    kernels.pool_backward(stream, {.window = s.window,
                                   .kind = kind,
                                   .dy = t[0],
                                   .from = kind == Pool::max ? t[2] : Tensor{},
                                   .dx = t[1]});
  };
  made.reference = [s, kind](std::vector<Values>& v) {
    std::fill(v[1].begin(), v[1].end(), 0);
    reference::for_windows(s.window, s.images, [&](int64_t window, int64_t place, int64_t pixel) {
      for (int64_t c = 0; pixel >= 0 && c < s.channels; ++c) {
        const int64_t y = window * s.channels + c;
        if (kind == Pool::mean) {
          v[1][pixel * s.channels + c] += v[0][y] / static_cast<double>(s.window.area());
        } else if (v[2][y] == static_cast<double>(place)) {
          v[1][pixel * s.channels + c] += v[0][y];
        }
      }
    });
  };
  return made;
}

inline void add_window_cases(std::vector<Case>& cases, WindowCase s, DType dtype) {
  if (s.n == 0) {
    s.n = s.out_rows() - s.first;
  }
  cases.push_back(patches_case(s, dtype));
  cases.push_back(patch_sum_case(s, dtype));
  if (s.first == 0 && s.n == s.out_rows() && s.others == 0) {
    for (const Pool kind : {Pool::max, Pool::mean}) {
      cases.push_back(pool_case(s, kind, dtype));
      cases.push_back(pool_backward_case(s, kind, dtype));
    }
    const int64_t out = 1 + s.channels % 7 + 16 * (s.images % 2);
    for (const Convolved which : {Convolved::forward, Convolved::input, Convolved::weight}) {
      cases.push_back(convolution_case(s, out, which, dtype));
    }
  }
}

/// Windows: height, width, extent, stride, padding.
inline std::vector<WindowCase> window_shapes() {
  return {
      {.window = {}},
      {.window = {3, 5, 3, 1, 1}, .images = 2, .channels = 3},
      {.window = {7, 6, 2, 2}, .images = 2, .channels = 33},
      {.window = {9, 9, 3, 2, 1}, .images = 3, .channels = 64},
      {.window = {11, 8, 7, 3, 3}, .images = 2, .channels = 4},
      {.window = {5, 5, 1, 2}, .images = 2, .channels = 5},
      {.window = {4, 4, 2, 3}, .images = 2, .channels = 6},
      {.window = {4, 4, 4}, .images = 5, .channels = 260},
      {.window = {32, 32, 3, 1, 1}, .images = 3, .channels = 16},
      // Some patches, of one group of channels.
      {.window = {6, 7, 3, 1, 1}, .images = 3, .channels = 8, .first = 40, .n = 50, .others = 4},
  };
}

}  // namespace espalier::kernels
