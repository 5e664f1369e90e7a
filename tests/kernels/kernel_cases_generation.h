#pragma once
// Cases of generation (operations/generation.h): products with few rows, caches of keys and values,
// attention over them.
#include <numeric>

#include "tests/kernels/kernel_cases_sparse.h"

namespace espalier::kernels {

/// x [rows, cols] times the transpose of a weight [out, cols].
struct FewRows {
  int64_t rows, out, cols;
  DType in = kFp32, result = kFp32;
  bool bias = false, accumulate = false;
  Activation activation = Activation::none;
  int64_t gap = 0;  ///< columns behind each row of x and y
};

inline std::string name_of(const FewRows& s) {
  return fmt::format("{}x{}x{}_{}_{}_bias{:d}_acc{:d}_{}_gap{}", s.rows, s.out, s.cols, text(s.in),
                     text(s.result), s.bias, s.accumulate, name_of(s.activation), s.gap);
}

/// Operands: weight values, x, y, bias, activated. `weight` gives the dense weight of its values.
inline Case few_rows_case(const FewRows& s, Operand values,
                          std::function<Values(const Values&)> weight, const Tolerance& tolerance) {
  const bool activates = s.activation != Activation::none;
  Case made;
  made.operands = {
      std::move(values), input(s.in, {s.rows, s.cols + s.gap}),
      in_out_if(s.accumulate || s.gap > 0, s.result, {s.rows, s.out + s.gap}, tolerance),
      input(kFp32, {s.out}), output(s.in, {s.rows, s.out}, of_stored(s.in, tolerance))};
  made.operands[2].input = s.accumulate;
  made.passes_nan = s.rows > 0;
  if (!activates) {
    made.operands.pop_back();
    if (!s.bias) {
      made.operands.pop_back();
    }
  }
  made.reference = [s, activates, weight = std::move(weight)](std::vector<Values>& v) {
    const Values dense = weight(v[0]);
    for (int64_t r = 0; r < s.rows; ++r) {
      for (int64_t n = 0; n < s.out; ++n) {
        double& y = v[2][r * (s.out + s.gap) + n];
        double sum = s.accumulate ? y : 0;
        for (int64_t c = 0; c < s.cols; ++c) {
          const double w = dense[n * s.cols + c];
          if (w != 0) {  // pruned elements do not read x
            sum += w * v[1][r * (s.cols + s.gap) + c];
          }
        }
        y = sum + (s.bias ? v[3][n] : 0);
        if (activates) {
          v[4][r * s.out + n] = reference::activation(s.activation, rounded(s.result, y));
        }
      }
    }
  };
  return made;
}

/// The arguments besides the weight.
template <class Args>
Args few_rows_args(const FewRows& s, const Tensors& t) {
  Args args;
  args.x = t[1].column_range(0, s.cols);
  args.y = t[2].column_range(0, s.out);
  args.bias = s.bias ? t[3] : Tensor{};
  args.activation = s.activation;
  args.activated = s.activation != Activation::none ? t[4] : Tensor{};
  args.accumulate = s.accumulate;
  return args;
}

inline Case dense_few_rows_case(const FewRows& s) {
  Case made = few_rows_case(
      s, input(s.in, {s.out, s.cols}), [](const Values& v) { return v; },
      of_product(s.result, s.bias || s.accumulate, s.cols));
  made.name = "few_rows_" + name_of(s);
  made.has_rows = [](const Kernels& kernels) { return kernels.few_rows != nullptr; };
  made.run = [s](const Kernels& kernels, Stream& stream, const Tensors& t) {
    auto args = few_rows_args<FewRowsArgs>(s, t);
    args.weight = t[0];
    kernels.few_rows(stream, args);
  };
  return made;
}

inline Case sparse_few_rows_case(const FewRows& s, Form form, double density) {
  const auto kept = std::make_shared<const Kept>(form, s.out * s.cols, density);
  const auto spread = [kept](const Values& v) {
    Values dense(static_cast<size_t>(kept->size), 0.0);
    for (size_t i = 0; i < kept->list.size(); ++i) {
      dense[kept->list[i]] = v[i];
    }
    return dense;
  };
  Case made = few_rows_case(s, input(s.in, {kept->count()}), spread,
                            of_product(s.result, s.bias || s.accumulate, s.cols));
  made.name = fmt::format("sparse_few_rows_{}_{}_{}", name_of(s), name_of(form), kept->count());
  made.operands[1].nan_at = kept->list.empty() ? 0 : kept->first() % s.cols;
  made.passes_nan = s.rows > 0 && kept->count() > 0;
  made.has_rows = [](const Kernels& kernels) { return kernels.sparse_few_rows != nullptr; };
  made.run = [s, kept](const Kernels& kernels, Stream& stream, const Tensors& t) {
    auto args = few_rows_args<SparseFewRowsArgs>(s, t);
    args.weight = {
        .rows = s.out, .cols = s.cols, .values = t[0], .positions = kept->positions(stream)};
    kernels.sparse_few_rows(stream, args);
  };
  return made;
}

struct CacheCase {
  int64_t sequences, tokens, heads, kv_heads, width, capacity;
  int64_t row() const { return (heads + 2 * kv_heads) * width; }
  Shape cache() const { return {sequences, kv_heads, capacity, width}; }
  std::string name() const {
    return fmt::format("{}x{}_{}of{}x{}_in{}", sequences, tokens, heads, kv_heads, width, capacity);
  }
};

/// Operands: qkv, keys, values, first, counts.
inline Case cache_tokens_case(const CacheCase& s, DType dtype) {
  Case made;
  made.name = fmt::format("cache_tokens_{}_{}", s.name(), text(dtype));
  made.operands = {input(dtype, {s.sequences, s.tokens, s.row()}), in_out(dtype, s.cache(), {}),
                   in_out(dtype, s.cache(), {}), ids({s.sequences}, 3 * s.capacity),
                   ids({s.sequences}, s.tokens + 1)};
  made.operands[4].values[0] = static_cast<double>(s.tokens);
  made.operands[0].nan_at = s.tokens * s.row() - 1;
  for (const size_t cache : {1, 2}) {  // untouched slots stay
    made.operands[cache].input = false;
  }
  made.run = [](const Kernels& kernels, Stream& stream, const Tensors& t) {
    kernels.cache_tokens(
        stream, {.qkv = t[0], .keys = t[1], .values = t[2], .first = t[3], .counts = t[4]});
  };
  made.reference = [s](std::vector<Values>& v) {
    const int64_t of_token = s.kv_heads * s.width;
    for (int64_t b = 0; b < s.sequences; ++b) {
      for (int64_t t = 0; t < static_cast<int64_t>(v[4][b]); ++t) {
        const int64_t slot = (static_cast<int64_t>(v[3][b]) + t) % s.capacity;
        for (int64_t i = 0; i < of_token; ++i) {
          const int64_t from = (b * s.tokens + t) * s.row() + s.heads * s.width + i;
          const auto to = static_cast<size_t>(
              ((b * s.kv_heads + i / s.width) * s.capacity + slot) * s.width + i % s.width);
          v[1][to] = v[0][from];
          v[2][to] = v[0][from + of_token];
        }
      }
    }
  };
  return made;
}

/// Operands: q with the columns of keys and values behind it, keys, values, lengths, out.
inline Case cached_attention_case(const CacheCase& s, DType dtype, float scale) {
  Case made;
  made.name = fmt::format("cached_attention_{}_{}_scale{}", s.name(), text(dtype), scale);
  const int64_t cols = s.heads * s.width;
  made.operands = {
      input(dtype, {s.sequences, s.row()}, -2, 2), input(dtype, s.cache(), -2, 2),
      input(dtype, s.cache(), -2, 2),
      input(DType::int32, {s.sequences}, 1, 1.3 * static_cast<double>(s.capacity) + 0.99),
      output(dtype, {s.sequences, cols}, {1e-5, 1e-5})};
  made.operands[3].values[0] = static_cast<double>(s.capacity);
  made.run = [cols, scale](const Kernels& kernels, Stream& stream, const Tensors& t) {
    kernels.cached_attention(stream, {.q = t[0].column_range(0, cols),
                                      .keys = t[1],
                                      .values = t[2],
                                      .lengths = t[3],
                                      .out = t[4],
                                      .scale = scale});
  };
  made.reference = [s, cols, scale](std::vector<Values>& v) {
    const double factor = scale > 0 ? scale : 1 / std::sqrt(static_cast<double>(s.width));
    for (int64_t b = 0; b < s.sequences; ++b) {
      const auto length = std::min(s.capacity, static_cast<int64_t>(v[3][b]));
      for (int64_t h = 0; h < s.heads; ++h) {
        const int64_t head = b * s.kv_heads + h / (s.heads / s.kv_heads);
        const auto at = [&](int64_t slot, int64_t d) {
          return static_cast<size_t>((head * s.capacity + slot) * s.width + d);
        };
        Values scores;
        for (int64_t j = 0; j < length; ++j) {
          double sum = 0;
          for (int64_t d = 0; d < s.width; ++d) {
            sum += v[0][b * s.row() + h * s.width + d] * v[1][at(j, d)];
          }
          scores.push_back(factor * sum);
        }
        const double top = *std::ranges::max_element(scores);
        double total = 0;
        for (double& score : scores) {
          score = std::exp(score - top);
          total += score;
        }
        for (int64_t d = 0; d < s.width; ++d) {
          double sum = 0;
          for (int64_t j = 0; j < length; ++j) {
            sum += scores[j] * v[2][at(j, d)];
          }
          v[4][b * cols + h * s.width + d] = sum / total;
        }
      }
    }
  };
  return made;
}

/// The position of each row is an operand.
inline Case embedding_at_positions_case(const Shape& shape, int64_t vocabulary, int64_t positions,
                                        DType dtype) {
  Case made;
  made.name = fmt::format("embedding_at_positions_{}x{}x{}_{}_{}_{}", shape[0], shape[1], shape[2],
                          vocabulary, positions, text(dtype));
  const int64_t cols = shape[2];
  made.operands = {ids({shape[0], shape[1]}, vocabulary), input(dtype, {vocabulary, cols}),
                   input(dtype, {positions, cols}), output(kFp32, shape, {1e-7, 1e-7}),
                   ids({shape[0] * shape[1]}, positions)};
  made.operands[1].nan_at = static_cast<int64_t>(made.operands[0].values[0]) * cols;
  made.operands[2].nan_at = static_cast<int64_t>(made.operands[4].values[0]) * cols;
  made.run = [](const Kernels& kernels, Stream& stream, const Tensors& t) {
    kernels.embedding(
        stream, {.tokens = t[0], .token = t[1], .position = t[2], .x = t[3], .positions = t[4]});
  };
  made.reference = [cols](std::vector<Values>& v) {
    for (size_t i = 0; i < v[3].size(); ++i) {
      const size_t row = i / static_cast<size_t>(cols);
      const size_t column = i % static_cast<size_t>(cols);
      v[3][i] = v[1][static_cast<size_t>(v[0][row]) * static_cast<size_t>(cols) + column] +
                v[2][static_cast<size_t>(v[4][row]) * static_cast<size_t>(cols) + column];
    }
  };
  return made;
}

inline void add_few_rows_cases(Cases& cases) {
  // Blocks and groups of rows, whole or in part; more rows of x than are taken together.
  for (const auto& [rows, out, cols] : std::vector<std::array<int64_t, 3>>{{1, 1, 1},
                                                                           {1, 7, 33},
                                                                           {1, 130, 64},
                                                                           {2, 66, 31},
                                                                           {3, 9, 96},
                                                                           {4, 65, 100},
                                                                           {5, 6, 40},
                                                                           {6, 3, 257},
                                                                           {7, 11, 8},
                                                                           {8, 70, 128},
                                                                           {11, 35, 200},
                                                                           {17, 150, 48},
                                                                           {0, 5, 7}}) {
    for (const auto& [in, result] : kProductTypes) {
      cases.push_back(dense_few_rows_case({rows, out, cols, in, result}));
      cases.push_back(sparse_few_rows_case({rows, out, cols, in, result}, Form::list, 0.3));
    }
    for (const Activation f : {Activation::none, Activation::gelu, Activation::relu}) {
      const FewRows s{.rows = rows,
                      .out = out,
                      .cols = cols,
                      .in = f == Activation::relu ? kBf16 : kFp32,
                      .result = f == Activation::relu ? kBf16 : kFp32,
                      .bias = true,
                      .accumulate = f != Activation::gelu,
                      .activation = f,
                      .gap = f == Activation::none ? 3 : 0};
      cases.push_back(dense_few_rows_case(s));
      cases.push_back(sparse_few_rows_case(s, Form::bitmap, 0.1));
      cases.push_back(sparse_few_rows_case(s, Form::all, 1));
    }
  }
  cases.push_back(dense_few_rows_case({1, 600, 700, kBf16, kFp32}));
  for (const double density : {0.0, 0.02, 0.5, 1.0}) {
    for (const DType in : {kFp32, kBf16}) {
      for (const int64_t rows : {1, 4, 9}) {
        cases.push_back(sparse_few_rows_case({rows, 300, 200, in, kFp32}, Form::bitmap, density));
      }
    }
  }
  // Columns that need more than 16 bits.
  cases.push_back(sparse_few_rows_case({1, 2, 70'000, kBf16, kFp32}, Form::bitmap, 0.1));
  cases.push_back(sparse_few_rows_case({3, 2, 70'000, kFp32, kFp32}, Form::list, 0.01));
}

inline void add_generation_cases(Cases& cases) {
  add_few_rows_cases(cases);
  for (const DType dtype : kNumbers) {
    for (const CacheCase& s : std::vector<CacheCase>{{1, 1, 1, 1, 1, 1},
                                                     {2, 5, 3, 1, 8, 7},
                                                     {3, 9, 4, 2, 5, 4},
                                                     {1, 40, 2, 2, 64, 33},
                                                     {2, 3, 6, 3, 80, 300},
                                                     {1, 2, 2, 1, 128, 700},
                                                     {2, 1, 4, 4, 24, 513}}) {
      cases.push_back(cache_tokens_case(s, dtype));
      cases.push_back(cached_attention_case(s, dtype, 0));
      cases.push_back(cached_attention_case(s, dtype, 0.4F));
    }
    cases.push_back(embedding_at_positions_case({3, 1, 5}, 7, 9, dtype));
    cases.push_back(embedding_at_positions_case({2, 20, 260}, 300, 4, dtype));
  }
}

}  // namespace espalier::kernels
