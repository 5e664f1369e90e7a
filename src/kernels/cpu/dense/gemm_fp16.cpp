#include "src/kernels/cpu/dense/gemm_fp16.h"

#include "src/kernels/cpu/dense/product_fp16.h"
#include "src/kernels/cpu/simd/loops.h"

namespace espalier::kernels::ESPALIER_ISA {
namespace {

void widen(int threads, const cpu::HalfPanel& panel) {
  for_rows(threads, panel.rows, panel.cols, [&](int64_t row) {
    const fp16* const from = panel.half + row * panel.stride;
    float* const to = panel.wide + row * panel.cols;
#pragma omp simd
    for (int64_t c = 0; c < panel.cols; ++c) {
      to[c] = load(from + c);
    }
  });
}

void narrow(int threads, const cpu::HalfPanel& panel, bool accumulate) {
  for_rows(threads, panel.rows, panel.cols, [&](int64_t row) {
    fp16* const to = panel.half + row * panel.stride;
    const float* const from = panel.wide + row * panel.cols;
#pragma omp simd
    for (int64_t c = 0; c < panel.cols; ++c) {
      store(to + c, from[c] + (accumulate ? load(to + c) : 0.0F));
    }
  });
}

}  // namespace

void gemm_fp16(Stream& stream, const GemmArgs& args) {
  cpu::product_fp16(stream, args, {.widen = widen, .narrow = narrow});
}

}  // namespace espalier::kernels::ESPALIER_ISA
