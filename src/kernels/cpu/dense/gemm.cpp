#include <cstring>

#include "src/kernels/cpu/dense/fp8.h"
#include "src/kernels/cpu/dense/product.h"
#include "src/kernels/cpu/dense/widen.h"
#include "src/kernels/cpu/simd/loops.h"
#include "src/kernels/cpu/support.h"
#include "src/kernels/cpu/table.h"

namespace espalier::kernels::ESPALIER_ISA {
namespace {

size_t whole_lines(int64_t bytes) { return static_cast<size_t>(divide_up(bytes, 64) * 64); }

/// c = scale_a scale_b sums (+ c) (+ bias), rounded once.
template <class T>
void finish(Stream& stream, const GemmArgs& args, const float* all_sums, float scale_a,
            float scale_b) {
  const int64_t cols = args.c.cols();
  const float* bias = elements<float>(args.bias);
  for_rows(stream.threads(), args.c.rows(), cols, [&](int64_t row) {
    const float* sums = all_sums + row * cols;
    T* c = row_of<T>(args.c, row);
#pragma omp simd
    for (int64_t j = 0; j < cols; ++j) {
      float sum = sums[j] * scale_a * scale_b;
      sum += args.accumulate ? load(c + j) : 0.0F;
      sum += bias != nullptr ? bias[j] : 0.0F;
      store(c + j, sum);
    }
  });
}

/// Product with operands rounded to 8 bits: the workspace holds them in a wider type, and their
/// sums as fp32.
void rounded_product(Stream& stream, const GemmArgs& args) {
  const DType held = cpu::multiplies(DType::bf16) ? DType::bf16 : DType::fp32;
  const auto bytes = static_cast<int64_t>(size_of(held));
  GemmArgs plain;
  plain.a = args.a;
  plain.b = args.b;
  plain.c = args.c;
  plain.transpose_a = args.transpose_a;
  plain.transpose_b = args.transpose_b;
  plain.a.dtype = plain.b.dtype = held;
  plain.c.dtype = DType::fp32;
  plain.a.stride = args.a.cols();
  plain.b.stride = args.b.cols();
  plain.c.stride = args.c.cols();
  const size_t of_a = whole_lines(bytes * args.a.count());
  const size_t of_b = whole_lines(bytes * args.b.count());
  const size_t of_c = whole_lines(4 * args.c.count());
  std::byte* const memory =
      cpu::workspace(stream, of_a + of_b + of_c + cpu::product_scratch(stream, plain));
  if (cpu::is_dry(stream)) {
    return;
  }
  plain.a.data = memory;
  plain.b.data = memory + of_a;
  plain.c.data = memory + of_a + of_b;
  const float scale_a = round_to_fp8(stream, args.a, args.round_a, plain.a);
  const float scale_b = round_to_fp8(stream, args.b, args.round_b, plain.b);
  cpu::product(stream, plain, memory + of_a + of_b + of_c);
  with_type(args.c.dtype, [&](auto type) {
    finish<decltype(type)>(stream, args, elements<float>(plain.c), scale_a, scale_b);
  });
}

/// c = op(a) op(b) (+ c) (+ bias)
void product(Stream& stream, const GemmArgs& args) {
  if (args.round_a != Float8::none) {
    rounded_product(stream, args);
  } else if (!cpu::multiplies(args.a.dtype)) {
    cpu::product_widened(stream, args, kWideningLoops);
  } else {
    cpu::product(stream, args, cpu::workspace(stream, cpu::product_scratch(stream, args)));
  }
}

}  // namespace

void gemm(Stream& stream, const GemmArgs& args) {
  const bool dry = cpu::is_dry(stream);
  if (args.addend) {  // oneDNN accumulates in place
    with_type(args.c.dtype, [&](auto type) {
      using T = decltype(type);
      for_rows(stream.threads(), dry ? 0 : args.c.rows(), args.c.cols(), [&](int64_t row) {
        std::memcpy(row_of<T>(args.c, row), row_of<T>(args.addend, row),
                    static_cast<size_t>(args.c.cols()) * sizeof(T));
      });
    });
    GemmArgs onto = args;
    onto.accumulate = true;
    product(stream, onto);
  } else {
    product(stream, args);
  }
  if (args.activated && !dry) {
    activation(stream, {.kind = args.activation, .x = args.c, .y = args.activated});
  }
  if (args.preactivation && !dry) {
    activation_backward(
        stream, {.kind = args.activation, .dy = args.c, .x = args.preactivation, .dx = args.c});
  }
  if (args.row_sums) {
    column_sum(stream, {.x = args.a, .out = args.row_sums, .accumulate = args.accumulate_sums});
  }
}

}  // namespace espalier::kernels::ESPALIER_ISA
