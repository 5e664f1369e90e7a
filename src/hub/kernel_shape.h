#pragma once
// Kernels of convolutions as other programs store them, [out, channels, height, width]; a parameter
// here is a matrix [out, height width channels].
#include <string>

#include "sparse/store/store.h"

namespace espalier::hub {

/// Whether an array is [any, channels, height, width] of the parameter's convolution; of a matrix
/// that belongs to none, height and width are 1.
bool is_kernel_of(const Shape& array, const sparse::ParameterSpec& spec);

/// The shape of an array of `rank` dimensions for the parameter, or for all `groups` of its
/// convolution: "[8, 3, 5, 5] (out, channels, height, width)".
std::string expected_shape(const sparse::ParameterSpec& spec, int rank, int64_t groups = 1);

}  // namespace espalier::hub
