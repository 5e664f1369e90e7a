#pragma once
// The case table, second part: operations that are mostly memory traffic; see kernel_cases.h.
#include "tests/kernel_cases.h"

namespace espalier::kernels {

inline Case embedding_case(const Shape& shape, int64_t vocabulary, DType dtype) {
  Case made;
  made.name = fmt::format("embedding_{}x{}x{}_{}_{}", shape[0], shape[1], shape[2], vocabulary,
                          text(dtype));
  const int64_t cols = shape[2];
  made.operands = {ids({shape[0], shape[1]}, vocabulary), input(dtype, {vocabulary, cols}),
                   input(dtype, {shape[1] + 2, cols}), output(kFp32, shape, {1e-7, 1e-7})};
  made.operands[1].nan_at = static_cast<int64_t>(made.operands[0].values[0]) * cols;
  made.run = [](const Kernels& kernels, Stream& stream, const Tensors& t) {
    kernels.embedding(stream, {t[0], t[1], t[2], t[3]});
  };
  made.reference = [shape](std::vector<Values>& v) {
    const int64_t columns = shape[2];
    for (int64_t i = 0; i < shape.count(); ++i) {
      const int64_t row = i / columns;
      const auto token = static_cast<int64_t>(v[0][row]);
      v[3][i] =
          v[1][token * columns + i % columns] + v[2][(row % shape[1]) * columns + i % columns];
    }
  };
  return made;
}

inline Case embedding_backward_case(const Shape& shape, int64_t vocabulary) {
  Case made;
  made.name =
      fmt::format("embedding_backward_{}x{}x{}_{}", shape[0], shape[1], shape[2], vocabulary);
  const int64_t cols = shape[2];
  made.operands = {ids({shape[0], shape[1]}, vocabulary), input(kFp32, shape),
                   in_out(kFp32, {vocabulary, cols}, {2e-5, 2e-6}),
                   in_out(kFp32, {shape[1] + 2, cols}, {1e-5, 1e-6})};
  made.run = [](const Kernels& kernels, Stream& stream, const Tensors& t) {
    kernels.embedding_backward(stream, {t[0], t[1], t[2], t[3]});
  };
  made.reference = [shape](std::vector<Values>& v) {
    const int64_t columns = shape[2];
    for (int64_t i = 0; i < shape.count(); ++i) {
      const int64_t row = i / columns;
      const auto token = static_cast<int64_t>(v[0][row]);
      v[2][token * columns + i % columns] += v[1][i];
      v[3][(row % shape[1]) * columns + i % columns] += v[1][i];
    }
  };
  return made;
}

enum class Gradient : uint8_t { absent, beside, in_place };

inline Case cross_entropy_case(int64_t rows, int64_t cols, DType dtype, Gradient gradient) {
  Case made;
  made.name = fmt::format("cross_entropy_{}x{}_{}_gradient{:d}", rows, cols, text(dtype),
                          static_cast<int>(gradient));
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
    kernels.cross_entropy(stream, {t[0], t[1], t[2], dlogits, scale});
  };
  made.reference = [=](std::vector<Values>& v) {
    const Values logits = v[0];
    Values* dlogits = gradient == Gradient::absent     ? nullptr
                      : gradient == Gradient::in_place ? &v[0]
                                                       : &v[3];
    reference::cross_entropy(logits, v[1], scale, v[2], dlogits);
  };
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
  made.operands = {input(from, {n}),
                   accumulate ? in_out(to, {n}, tolerance) : output(to, {n}, tolerance)};
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

/// The result is a double: a uint64 operand holds its bits. The tolerance is the rounding of the
/// reference, which adds millions of numbers one by one.
inline Case sum_squares_case(int64_t n) {
  Case made;
  made.name = fmt::format("sum_squares_{}", n);
  made.operands = {input(kFp32, {n}), output(DType::uint64, {1}, {0, 1e-11})};
  made.run = [](const Kernels& kernels, Stream& stream, const Tensors& t) {
    kernels.sum_squares(stream, {t[0], static_cast<double*>(t[1].data)});
  };
  made.reference = [](std::vector<Values>& v) {
    v[1][0] = 0;
    for (const double x : v[0]) {
      v[1][0] += x * x;
    }
  };
  return made;
}

using KeptPointer = std::shared_ptr<const Kept>;

inline std::string suffix(const Kept& kept, DType dtype) {
  return fmt::format("{}_{}of{}_{}", name_of(kept.form), kept.count(), kept.size, text(dtype));
}

inline Case gather_case(const KeptPointer& kept, DType dtype, bool accumulate) {
  Case made;
  made.name = fmt::format("gather_{}_acc{:d}", suffix(*kept, dtype), accumulate);
  const Tolerance tolerance{1e-7, 1e-7};
  made.operands = {input(dtype, {kept->size}), accumulate
                                                   ? in_out(kFp32, {kept->count()}, tolerance)
                                                   : output(kFp32, {kept->count()}, tolerance)};
  made.operands[0].nan_at = kept->first();
  made.passes_nan = kept->count() > 0;
  made.run = [kept, accumulate](const Kernels& kernels, Stream& stream, const Tensors& t) {
    kernels.gather(stream, {t[0], t[1], kept->positions(), accumulate});
  };
  made.reference = [kept, accumulate](std::vector<Values>& v) {
    for (size_t k = 0; k < v[1].size(); ++k) {
      v[1][k] = v[0][kept->list[k]] + (accumulate ? v[1][k] : 0);
    }
  };
  return made;
}

inline Case scatter_case(const KeptPointer& kept, DType dtype) {
  Case made;
  made.name = "scatter_" + suffix(*kept, dtype);
  made.operands = {input(kFp32, {kept->count()}), output(dtype, {kept->size}, {})};
  made.operands[1].tolerance = {0, 1e-9};
  made.passes_nan = kept->count() > 0;
  made.run = [kept](const Kernels& kernels, Stream& stream, const Tensors& t) {
    kernels.scatter(stream, {t[0], t[1], kept->positions()});
  };
  made.reference = [kept](std::vector<Values>& v) {
    v[1].assign(v[1].size(), 0);
    for (size_t k = 0; k < v[0].size(); ++k) {
      v[1][kept->list[k]] = v[0][k];
    }
  };
  return made;
}

/// Where an optimizer writes the rounded values.
enum class Copy : uint8_t { absent, fp32, bf16, master };

inline Tensor copy_of(Copy copy, const Tensors& t, size_t master) {
  return copy == Copy::absent ? Tensor{} : copy == Copy::master ? t[master] : t.back();
}

/// Operands {gradient, master, moments…, dense}; values of dense outside the kept ones must
/// survive.
inline Case optimizer_case(const std::string& name, const KeptPointer& kept, Copy copy,
                           int moments) {
  Case made;
  const DType dtype = copy == Copy::bf16 ? kBf16 : kFp32;
  made.name = fmt::format("{}_{}_copy{:d}", name, suffix(*kept, dtype), static_cast<int>(copy));
  const Tolerance tolerance{1e-6, 2e-6};
  made.operands = {input(kFp32, {kept->count()}), in_out(kFp32, {kept->count()}, tolerance)};
  for (int i = 0; i < moments; ++i) {
    made.operands.push_back(in_out(kFp32, {kept->count()}, tolerance, 0, 1));
  }
  if (copy == Copy::fp32 || copy == Copy::bf16) {
    made.operands.push_back(in_out(dtype, {kept->size}, tolerance));
    made.operands.back().input = false;
  }
  made.passes_nan = kept->count() > 0;
  return made;
}

/// dense[position k] = master[k], when there is a copy (the operand after the moments).
inline void reference_copy(const Kept& kept, std::vector<Values>& v, size_t dense) {
  for (size_t k = 0; dense < v.size() && k < v[1].size(); ++k) {
    v[dense][kept.list[k]] = v[1][k];
  }
}

inline Case adamw_case(const KeptPointer& kept, Copy copy) {
  Case made = optimizer_case("adamw", kept, copy, 2);
  const AdamWArgs flags{
      .scale = 0.5F, .lr = 0.01F, .weight_decay = 0.1F, .bias1 = 0.271F, .bias2 = 0.142625F};
  made.run = [=](const Kernels& kernels, Stream& stream, const Tensors& t) {
    AdamWArgs args = flags;
    args.gradient = t[0];
    args.value = t[1];
    args.moment1 = t[2];
    args.moment2 = t[3];
    args.dense = copy_of(copy, t, 1);
    args.positions = kept->positions();
    kernels.adamw(stream, args);
  };
  made.reference = [=](std::vector<Values>& v) {
    for (size_t k = 0; k < v[1].size(); ++k) {
      const auto [master, moment1, moment2] =
          reference::adamw(flags, v[0][k], {v[1][k], v[2][k], v[3][k]});
      v[1][k] = master;
      v[2][k] = moment1;
      v[3][k] = moment2;
    }
    reference_copy(*kept, v, 4);
  };
  return made;
}

inline Case sgd_case(const KeptPointer& kept, Copy copy) {
  Case made = optimizer_case("sgd", kept, copy, 1);
  const SgdArgs flags{.scale = 0.5F, .lr = 0.1F, .momentum = 0.9F, .weight_decay = 0.01F};
  made.run = [=](const Kernels& kernels, Stream& stream, const Tensors& t) {
    SgdArgs args = flags;
    args.gradient = t[0];
    args.value = t[1];
    args.moment1 = t[2];
    args.dense = copy_of(copy, t, 1);
    args.positions = kept->positions();
    kernels.sgd(stream, args);
  };
  made.reference = [=](std::vector<Values>& v) {
    for (size_t k = 0; k < v[1].size(); ++k) {
      v[2][k] = flags.momentum * v[2][k] + v[0][k] * flags.scale + flags.weight_decay * v[1][k];
      v[1][k] -= flags.lr * v[2][k];
    }
    reference_copy(*kept, v, 3);
  };
  return made;
}

}  // namespace espalier::kernels
