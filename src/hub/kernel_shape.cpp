#include "src/hub/kernel_shape.h"

namespace espalier::hub {

bool is_kernel_of(const Shape& array, const sparse::ParameterSpec& spec) {
  const kernels::Window window = spec.window.value_or(kernels::Window{});
  return array.rank() == 4 && spec.shape.rank() == 2 && array[2] == window.extent &&
         array[3] == window.extent && array[1] * window.area() == spec.shape[1];
}

std::string expected_shape(const sparse::ParameterSpec& spec, int rank, int64_t groups) {
  if (rank != 4 || spec.shape.rank() != 2 || !spec.window) {
    return spec.shape.text();
  }
  const int64_t extent = spec.window->extent;
  return Shape{spec.shape[0] * groups, spec.shape[1] / spec.window->area(), extent, extent}.text() +
         " (out, channels, height, width)";
}

}  // namespace espalier::hub
