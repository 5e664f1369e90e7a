#include <cstring>

#include "src/kernels/cpu/dense/product.h"
#include "src/kernels/cpu/dense/widen.h"
#include "src/kernels/cpu/simd/loops.h"
#include "src/kernels/cpu/support.h"
#include "src/kernels/cpu/table.h"

namespace espalier::kernels::ESPALIER_ISA {
namespace {

/// c = op(a) op(b) (+ c) (+ bias)
void product(Stream& stream, const GemmArgs& args) {
  if (!cpu::multiplies(args.a.dtype)) {
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
