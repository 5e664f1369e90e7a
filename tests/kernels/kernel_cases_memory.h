#pragma once
// The case table, second part: operations limited by memory bandwidth; see kernel_cases.h.
#include <algorithm>
#include <array>
#include <optional>

#include "src/core/exact_sum.h"
#include "tests/kernels/kernel_cases.h"

namespace espalier::kernels {

/// With learned positions; or without, times a factor.
enum class EmbeddingForm : uint8_t { learned, scaled };
inline constexpr float kEmbeddingScale = 2.5F;
inline std::string suffix_of(EmbeddingForm form) {
  return form == EmbeddingForm::learned ? "" : "_scaled";
}

inline Case embedding_case(const Shape& shape, int64_t vocabulary, DType dtype,
                           EmbeddingForm form = EmbeddingForm::learned) {
  Case made;
  made.name = fmt::format("embedding_{}x{}x{}_{}_{}{}", shape[0], shape[1], shape[2], vocabulary,
                          text(dtype), suffix_of(form));
  const bool learned = form == EmbeddingForm::learned;
  const int64_t cols = shape[2];
  made.operands = {ids({shape[0], shape[1]}, vocabulary), input(dtype, {vocabulary, cols}),
                   input(dtype, {shape[1] + 2, cols}), output(kFp32, shape, {1e-7, 1e-7})};
  made.operands[1].nan_at = static_cast<int64_t>(made.operands[0].values[0]) * cols;
  made.operands[2].input = learned;
  made.run = [learned](const Kernels& kernels, Stream& stream, const Tensors& t) {
    kernels.embedding(
        stream, {t[0], t[1], learned ? t[2] : Tensor(), t[3], learned ? 1.0F : kEmbeddingScale});
  };
  made.reference = [shape, learned](std::vector<Values>& v) {
    const int64_t columns = shape[2];
    for (int64_t i = 0; i < shape.count(); ++i) {
      const int64_t row = i / columns;
      const auto token = static_cast<int64_t>(v[0][row]);
      const double value = v[1][token * columns + i % columns];
      v[3][i] = learned ? value + v[2][(row % shape[1]) * columns + i % columns]
                        : static_cast<double>(kEmbeddingScale) * value;
    }
  };
  return made;
}

inline Case embedding_backward_case(const Shape& shape, int64_t vocabulary, DType out = kFp32,
                                    EmbeddingForm form = EmbeddingForm::learned) {
  Case made;
  made.name = fmt::format("embedding_backward_{}x{}x{}_{}_{}{}", shape[0], shape[1], shape[2],
                          vocabulary, text(out), suffix_of(form));
  const bool learned = form == EmbeddingForm::learned;
  const int64_t cols = shape[2];
  made.operands = {ids({shape[0], shape[1]}, vocabulary), input(kFp32, shape),
                   in_out(out, {vocabulary, cols}, {2e-5, 2e-6}),
                   in_out(out, {shape[1] + 2, cols}, {1e-5, 1e-6})};
  made.run = [learned](const Kernels& kernels, Stream& stream, const Tensors& t) {
    kernels.embedding_backward(
        stream, {t[0], t[1], t[2], learned ? t[3] : Tensor(), learned ? 1.0F : kEmbeddingScale});
  };
  made.reference = [shape, learned](std::vector<Values>& v) {
    const int64_t columns = shape[2];
    for (int64_t i = 0; i < shape.count(); ++i) {
      const int64_t row = i / columns;
      const auto token = static_cast<int64_t>(v[0][row]);
      const double scale = learned ? 1 : static_cast<double>(kEmbeddingScale);
      v[2][token * columns + i % columns] += scale * v[1][i];
      v[3][(row % shape[1]) * columns + i % columns] += learned ? v[1][i] : 0;
    }
  };
  return made;
}

enum class Gradient : uint8_t { absent, beside, in_place };

inline Case cross_entropy_case(int64_t rows, int64_t cols, DType dtype, Gradient gradient,
                               float smoothing = 0) {
  Case made;
  made.name = fmt::format("cross_entropy_{}x{}_{}_gradient{:d}{}", rows, cols, text(dtype),
                          static_cast<int>(gradient),
                          smoothing > 0 ? fmt::format("_smoothing{}", smoothing) : "");
  const float scale = 0.25F;
  made.operands = {input(dtype, {rows, cols}, -20, 20), ids({rows}, cols),
                   output(kFp32, {rows}, {2e-6, 2e-6})};
  made.operands[0].tolerance = {1e-7, 2e-6};
  made.operands[0].output = gradient == Gradient::in_place;
  if (gradient == Gradient::beside) {
    made.operands.push_back(output(kFp32, {rows, cols}, {1e-7, 2e-6}));
  }
  made.run = [=](const Kernels& kernels, Stream& stream, const Tensors& t) {
    const Tensor dlogits = gradient == Gradient::absent     ? Tensor{}
                           : gradient == Gradient::in_place ? t[0]
                                                            : t[3];
    kernels.cross_entropy(stream, {t[0], t[1], t[2], dlogits, scale, smoothing});
  };
  made.reference = [=](std::vector<Values>& v) {
    const Values logits = v[0];
    Values* dlogits = gradient == Gradient::absent     ? nullptr
                      : gradient == Gradient::in_place ? &v[0]
                                                       : &v[3];
    reference::cross_entropy(logits, v[1], scale, v[2], dlogits, double{smoothing});
  };
  return made;
}

/// With `steps`, logits are multiples of 8: many are equal.
inline Case target_ranks_case(int64_t rows, int64_t cols, DType dtype, bool steps) {
  Case made = cross_entropy_case(rows, cols, dtype, Gradient::absent);
  made.name += fmt::format("_ranks_steps{:d}", steps);
  made.operands.push_back(output(kFp32, {rows}, {}));
  for (double& x : made.operands[0].values) {
    x = steps ? 8 * std::round(x / 8) : x;
  }
  made.run = [](const Kernels& kernels, Stream& stream, const Tensors& t) {
    kernels.cross_entropy(
        stream,
        {.logits = t[0], .targets = t[1], .losses = t[2], .dlogits = {}, .target_ranks = t[3]});
  };
  made.reference = [](std::vector<Values>& v) {
    reference::cross_entropy(v[0], v[1], 1, v[2], nullptr);
    reference::target_ranks(v[0], v[1], v[3]);
  };
  return made;
}

/// `dtype`: of the gradient.
inline Case distillation_case(int64_t rows, int64_t cols, DType dtype, bool in_place,
                              const DistillationArgs& by) {
  Case made;
  made.name = fmt::format("distillation_{}x{}_{}{}_weight{}_temperature{}", rows, cols, text(dtype),
                          in_place ? "_in_place" : "", by.weight, by.temperature);
  made.operands = {input(kFp32, {rows, cols}, -10, 10), input(kFp32, {rows, cols}, -10, 10),
                   ids({rows}, cols), output(kFp32, {rows}, {2e-6, 2e-6}),
                   output(kFp32, {rows}, {2e-5, 4e-6})};
  made.operands[0].tolerance = {3e-7, 4e-6};
  made.operands[0].output = in_place;
  if (!in_place) {
    made.operands.push_back(output(dtype, {rows, cols}, {3e-7, 4e-6}));
  }
  const size_t gradient = in_place ? 0 : 5;
  made.run = [=](const Kernels& kernels, Stream& stream, const Tensors& t) {
    DistillationArgs args = by;
    args.logits = t[0];
    args.teacher = t[1];
    args.targets = t[2];
    args.losses = t[3];
    args.teacher_losses = t[4];
    args.dlogits = t[gradient];
    kernels.distillation(stream, args);
  };
  made.reference = [=](std::vector<Values>& v) {
    v[gradient] = reference::distillation(v[0], v[1], v[2], by, v[3], v[4]);
  };
  return made;
}

/// The target of one row has probability 0: the loss is infinite, and the gradient NaN.
inline Case impossible_target_case(int64_t rows, int64_t cols, DType dtype, Gradient gradient) {
  Case made = cross_entropy_case(rows, cols, dtype, gradient);
  made.name += "_impossible_target";
  const int64_t row = rows / 2;
  const auto target = static_cast<int64_t>(made.operands[1].values[row]);
  made.operands[0].values[row * cols + target] = -HUGE_VAL;
  made.reference = [=, all = made.reference](std::vector<Values>& v) {
    all(v);
    Values& dlogits = v[gradient == Gradient::in_place ? 0 : 3];
    std::fill_n(dlogits.begin() + row * cols, cols, std::nan(""));
  };
  made.passes_nan = false;  // the result has NaN without it
  return made;
}

inline Case dropout_case(int64_t n, int64_t offset, float probability, DType dtype) {
  Case made;
  made.name = fmt::format("dropout_{}_{}_{:.0f}_{}", n, offset, 100 * probability, text(dtype));
  const DropoutArgs flags{.probability = probability, .key = 0x123456789abcdefU, .offset = offset};
  made.operands = {in_out(dtype, {n}, {0, 1e-6}, 1, 2)};
  made.run = [flags](const Kernels& kernels, Stream& stream, const Tensors& t) {
    DropoutArgs args = flags;
    args.x = t[0];
    args.y = t[0];
    kernels.dropout(stream, args);
  };
  made.reference = [flags](std::vector<Values>& v) {
    for (size_t i = 0; i < v[0].size(); ++i) {
      v[0][i] = reference::dropout(flags, static_cast<int64_t>(i), v[0][i]);
    }
  };
  return made;
}

inline Case cast_case(int64_t n, DType from, DType to, bool accumulate) {
  Case made;
  made.name = fmt::format("cast_{}_{}_{}_acc{:d}", n, text(from), text(to), accumulate);
  const Tolerance tolerance{1e-7, 1e-7};
  made.operands = {input(from, {n}), in_out_if(accumulate, to, {n}, tolerance)};
  made.run = [accumulate](const Kernels& kernels, Stream& stream, const Tensors& t) {
    kernels.cast(stream, {t[0], t[1], accumulate});
  };
  made.reference = [accumulate](std::vector<Values>& v) {
    for (size_t i = 0; i < v[0].size(); ++i) {
      v[1][i] = v[0][i] + (accumulate ? v[1][i] : 0);
    }
  };
  return made;
}

inline Case ordered_sum_case(int64_t rows, int64_t n, int64_t mine, DType dtype) {
  Case made;
  made.name = fmt::format("ordered_sum_{}x{}_{}_mine{}", rows, n, text(dtype), mine);
  made.operands = {input(dtype, {rows, n}), in_out(dtype, {n}, {1e-6, 1e-6})};
  made.operands[0].nan_at = mine == 0 ? (rows - 1) * n : 0;  // in a row that the kernel reads
  made.run = [mine](const Kernels& kernels, Stream& stream, const Tensors& t) {
    kernels.ordered_sum(stream, {.x = t[0], .y = t[1], .mine = mine});
  };
  made.reference = [rows, n, mine](std::vector<Values>& v) {
    for (int64_t i = 0; i < n; ++i) {
      float sum = 0;
      for (int64_t r = 0; r < rows; ++r) {
        sum += static_cast<float>(r == mine ? v[1][i] : v[0][r * n + i]);
      }
      v[1][i] = sum;
    }
  };
  return made;
}

inline Case difference_case(int64_t n, bool finite, std::optional<double> factor = {}) {
  Case made;
  made.name = fmt::format("difference_{}_finite{:d}{}", n, finite,
                          factor ? fmt::format("_factor{}", *factor) : "");
  made.operands = {input(kFp32, {n}), input(kFp32, {n}), output(kFp32, {n}, {1e-7, 1e-7})};
  if (factor) {
    made.operands.push_back(input(kFp32, {1}));
    made.operands.back().values = {*factor};
  }
  made.run = [finite](const Kernels& kernels, Stream& stream, const Tensors& t) {
    kernels.difference(stream, {.a = t[0],
                                .b = t[1],
                                .y = t[2],
                                .finite = finite,
                                .factor = t.size() > 3 ? t[3] : Tensor()});
  };
  made.reference = [](std::vector<Values>& v) {
    const bool applies = v.size() == 3 || std::isfinite(v[3][0]);
    for (size_t i = 0; i < v[0].size(); ++i) {
      v[2][i] = applies ? v[0][i] - v[1][i] : 0;
    }
  };
  made.passes_nan = !finite && !factor;  // a single NaN makes the factor zero
  return made;
}

inline Case fill_case(int64_t n, DType dtype) {
  Case made;
  made.name = fmt::format("fill_{}_{}", n, text(dtype));
  made.operands = {output(dtype, {n}, {})};
  made.run = [](const Kernels& kernels, Stream& stream, const Tensors& t) {
    kernels.fill(stream, {t[0], 1.5F});
  };
  made.reference = [](std::vector<Values>& v) { v[0].assign(v[0].size(), 1.5); };
  made.passes_nan = false;
  return made;
}

/// Every table must have the host's bits for a sum of numbers up to `scale`, whose carries are
/// deferred.
inline Case clip_case(double scale, double clip, double loss_scale = 1) {
  Case made;
  made.name = fmt::format("clip_{}_at_{}_of_{}", scale, clip, loss_scale);
  std::array<uint64_t, ExactSum::kWords> digits{};
  for (const double x : draw(17, 300, 0, 1)) {
    ExactSum sum;
    sum.add(scale * x);
    sum.add_to(digits);
  }
  Operand counts = input(DType::uint64, {ExactSum::kWords});
  std::ranges::transform(digits, counts.values.begin(),
                         [](uint64_t x) { return std::bit_cast<double>(x); });
  made.operands = {std::move(counts), output(kFp32, {1}, {}), output(kFp32, {1}, {})};
  made.run = [=](const Kernels& kernels, Stream& stream, const Tensors& t) {
    kernels.clip(stream,
                 {.counts = t[0], .norm = t[1], .factor = t[2], .clip = clip, .scale = loss_scale});
  };
  made.reference = [=](std::vector<Values>& v) {
    std::array<uint64_t, ExactSum::kWords> counted{};
    std::ranges::transform(v[0], counted.begin(),
                           [](double x) { return std::bit_cast<uint64_t>(x); });
    const auto words = ExactSum::of(counted).words();
    double sum = words.back();
    for (int i = 0; i < ExactSum::kDigits; ++i) {
      sum += std::ldexp(words.at(static_cast<size_t>(i)), 32 * i - ExactSum::kBias);
    }
    const double norm = std::sqrt(sum) / loss_scale;
    const double factor = clip > 0 && norm > clip ? clip / (norm + 1e-6) : 1;
    v[1][0] = static_cast<float>(norm);
    v[2][0] = static_cast<float>(std::isfinite(norm) ? factor / loss_scale : std::nan(""));
  };
  return made;
}

/// Adds the squares of x, block by block.
inline void add_squares(const Values& x, ExactSum& sum) {
  for (size_t first = 0; first < x.size(); first += kSumBlock) {
    std::array<double, kSumColumns> columns{};
    for (size_t i = first; i < std::min<size_t>(x.size(), first + kSumBlock); ++i) {
      columns.at(i % kSumColumns) += x[i] * x[i];
    }
    for (size_t half = kSumColumns / 2; half > 0; half /= 2) {
      for (size_t c = 0; c < half; ++c) {
        columns.at(c) += columns.at(c + half);
      }
    }
    sum.add(columns[0]);
  }
}

/// Sums arrays of these sizes in one call. Every table must give the same bits of the digits; a
/// uint64 operand holds the bits of a double.
inline Case sums_case(const std::vector<int64_t>& sizes, DType dtype) {
  Case made;
  made.name = fmt::format("sum_squares_{}_{}_of_{}", sizes.front(), text(dtype), sizes.size());
  Operand counts = in_out(DType::uint64, {ExactSum::kWords}, {0, 0});
  counts.values.assign(ExactSum::kWords, 0);
  for (const int64_t n : sizes) {
    made.operands.push_back(input(dtype, {n}));
  }
  made.operands.push_back(std::move(counts));
  made.passes_nan = std::ranges::count(sizes, 0) == 0;
  made.run = [](const Kernels& kernels, Stream& stream, const Tensors& t) {
    std::vector<SumSquaresArgs> all;
    for (size_t i = 0; i + 1 < t.size(); ++i) {
      all.push_back({.x = t[i], .counts = t.back()});
    }
    kernels.sum_squares(stream, all);
  };
  made.reference = [](std::vector<Values>& v) {
    ExactSum sum;
    for (size_t i = 0; i + 1 < v.size(); ++i) {
      add_squares(v[i], sum);
    }
    std::array<uint64_t, ExactSum::kWords> digits{};
    sum.add_to(digits);
    std::ranges::transform(digits, v.back().begin(),
                           [](uint64_t x) { return std::bit_cast<double>(x); });
  };
  return made;
}
inline Case sum_squares_case(int64_t n, DType dtype = kFp32) { return sums_case({n}, dtype); }

using KeptPointer = std::shared_ptr<const Kept>;

inline std::string suffix(const Kept& kept, DType dtype) {
  return fmt::format("{}_{}of{}_{}", name_of(kept.form), kept.count(), kept.size, text(dtype));
}

inline Case gather_case(const KeptPointer& kept, DType dtype, bool accumulate,
                        DType packed = kFp32) {
  Case made;
  made.name = fmt::format("gather_{}_{}_acc{:d}", suffix(*kept, dtype), text(packed), accumulate);
  const Tolerance tolerance{1e-7, 1e-7};
  made.operands = {input(dtype, {kept->size}),
                   in_out_if(accumulate, packed, {kept->count()}, tolerance)};
  made.operands[0].nan_at = kept->first();
  made.passes_nan = kept->count() > 0;
  made.run = [kept, accumulate](const Kernels& kernels, Stream& stream, const Tensors& t) {
    kernels.gather(stream, {t[0], t[1], kept->positions(stream), accumulate});
  };
  made.reference = [kept, accumulate](std::vector<Values>& v) {
    for (size_t k = 0; k < v[1].size(); ++k) {
      v[1][k] = v[0][kept->list[k]] + (accumulate ? v[1][k] : 0);
    }
  };
  return made;
}

inline Case scatter_case(const KeptPointer& kept, DType dtype, DType packed = kFp32) {
  Case made;
  made.name = fmt::format("scatter_{}_{}", suffix(*kept, dtype), text(packed));
  made.operands = {input(packed, {kept->count()}), output(dtype, {kept->size}, {})};
  made.operands[1].tolerance = {0, 1e-9};
  made.passes_nan = kept->count() > 0;
  made.run = [kept](const Kernels& kernels, Stream& stream, const Tensors& t) {
    kernels.scatter(stream, {t[0], t[1], kept->positions(stream)});
  };
  made.reference = [kept](std::vector<Values>& v) {
    v[1].assign(v[1].size(), 0);
    for (size_t k = 0; k < v[0].size(); ++k) {
      v[1][kept->list[k]] = v[0][k];
    }
  };
  return made;
}

}  // namespace espalier::kernels
