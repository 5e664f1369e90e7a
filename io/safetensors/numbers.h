#pragma once
// Values of safetensors files as fp32, bf16 or fp16. Rounding is to nearest, ties to even; numbers
// beyond a type's range become infinite. F64 is rounded to fp32 first.
#include <cstddef>
#include <span>

#include "io/safetensors/type.h"
#include "src/core/tensor.h"

namespace espalier::io {

/// Bytes of a file that are converted at once: they stay in the cache between disk and conversion.
inline constexpr int64_t kSafetensorsPiece = int64_t{256} << 10;

/// The element type of tensors whose bytes are those of `type`; empty if there is none.
std::optional<DType> same_bits(SafetensorsType type);
/// The type of files with the bits of fp32, bf16 or fp16.
SafetensorsType type_with_bits(DType dtype);
/// `bytes` of a convertible type, as the numbers of `out`, on the host.
void decode_numbers(SafetensorsType type, std::span<const std::byte> bytes, const Tensor& out);
/// The numbers of `in`, on the host, as bytes of a convertible type.
void encode_numbers(const Tensor& in, SafetensorsType type, std::span<std::byte> bytes);

}  // namespace espalier::io
