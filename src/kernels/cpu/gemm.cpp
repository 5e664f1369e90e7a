#include "src/kernels/cpu/gemm_fp16.h"
#include "src/kernels/cpu/product.h"
#include "src/kernels/cpu/table.h"
#include "src/kernels/verify.h"

namespace espalier::kernels::ESPALIER_ISA {

void gemm(Stream& stream, const GemmArgs& args) {
  verify(args);
  args.a.dtype == DType::fp16 ? gemm_fp16(stream, args) : cpu::product(stream, args);
  if (args.activated) {
    activation(stream, {.kind = args.activation, .x = args.c, .y = args.activated});
  }
  if (args.preactivation) {
    activation_backward(
        stream, {.kind = args.activation, .dy = args.c, .x = args.preactivation, .dx = args.c});
  }
  if (args.row_sums) {
    column_sum(stream, {.x = args.a, .out = args.row_sums, .accumulate = args.accumulate_sums});
  }
}

}  // namespace espalier::kernels::ESPALIER_ISA
