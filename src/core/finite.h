#pragma once
// Finds NaNs and infinities in arrays of numbers.
#include <cstddef>
#include <span>
#include <string_view>

#include "src/core/tensor.h"

namespace espalier {

/// Whether no element is a NaN or an infinity; true for types other than numbers. `bytes`: whole
/// elements, in host memory. Some 40 GB/s in a cache.
bool all_finite(std::span<const std::byte> bytes, DType dtype);
inline bool all_finite(const Tensor& host) {
  return all_finite({static_cast<const std::byte*>(host.data), host.bytes()}, host.dtype);
}

/// Throws Failure that names `name` in `file` if an element is a NaN or an infinity.
void check_finite(const Tensor& host, std::string_view file, std::string_view name);

}  // namespace espalier
