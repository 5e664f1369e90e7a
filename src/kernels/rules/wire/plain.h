#pragma once
// fp32, bf16, fp16: elements unchanged, or rounded to nearest even; beyond the largest number:
// infinity. Buckets have no header. A NaN or an infinity affects no other element.
#include "src/kernels/rules/wire/arithmetic.h"

namespace espalier::kernels::wire {

struct Fp32 {
  static constexpr WireCodec kEntry{
      .name = "fp32", .help = "values as they are", .form = WireForm::plain, .bits = 32};
  static constexpr DType kType = DType::fp32;
};
struct Bf16 {
  static constexpr WireCodec kEntry{
      .name = "bf16", .help = "rounded to bf16", .form = WireForm::plain, .bits = 16};
  static constexpr DType kType = DType::bf16;
};
struct Fp16 {
  static constexpr WireCodec kEntry{.name = "fp16",
                                    .help = "rounded to fp16 (infinite from 65,520 on)",
                                    .form = WireForm::plain,
                                    .bits = 16};
  static constexpr DType kType = DType::fp16;
};

}  // namespace espalier::kernels::wire
