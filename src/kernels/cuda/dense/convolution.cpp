// Convolutions: by cuDNN where it supports the call (convolution_library.h), else by products with
// panels of patches in the workspace.
#include "src/kernels/operations/convolution.h"

#include <algorithm>

#include "src/kernels/cuda/dense/blas.h"
#include "src/kernels/cuda/dense/convolution_library.h"
#include "src/kernels/cuda/table.h"

namespace espalier::kernels::ESPALIER_GPU {
namespace {

constexpr int64_t kPanelBytes = int64_t{64}
                                << 20U;  ///< large enough for a product to fill a device

int64_t aligned(int64_t bytes) { return (bytes + 255) / 256 * 256; }

/// Rows of a panel for `patches` rows of `cols` elements.
int64_t panel_rows(DType dtype, int64_t patches, int64_t cols) {
  const int64_t row = cols * static_cast<int64_t>(size_of(dtype));
  return std::min(patches, std::max<int64_t>(1, kPanelBytes / row));
}

/// The workspace of a call.
struct CallWorkspace {
  std::span<std::byte> all;  ///< for cuDNN
  std::byte* beside;         ///< beside that of products, which request it again from its start
};

/// `bytes` beside the workspace of products of m x n.
CallWorkspace workspace_of(Stream& stream, int64_t m, int64_t n, int64_t bytes) {
  const auto own = static_cast<size_t>(aligned(static_cast<int64_t>(matmul_workspace(m, n))));
  const size_t all = own + static_cast<size_t>(bytes);
  std::byte* const begin = stream.workspace(all);
  return {{begin, all}, begin + own};
}

int64_t bytes_of(DType dtype, int64_t count) {
  return aligned(count * static_cast<int64_t>(size_of(dtype)));
}

}  // namespace

void convolution(Stream& stream, const ConvolutionArgs& args) {
  const int64_t rows = args.y.rows();
  const int64_t cols = args.weight.cols();
  const int64_t each = panel_rows(args.x.dtype, rows, cols);
  const CallWorkspace memory =
      workspace_of(stream, each, args.y.cols(), bytes_of(args.x.dtype, each * cols));
  if (library_convolution(stream,
                          {.part = ConvolutionPart::forward,
                           .window = args.window,
                           .x = args.x,
                           .weight = args.weight,
                           .bias = args.bias,
                           .y = args.y},
                          memory.all)) {
    return;
  }
  for (int64_t first = 0; first < rows; first += each) {
    const int64_t n = std::min(each, rows - first);
    Tensor panel(memory.beside, args.x.dtype, {n, cols});
    panel.on_device = args.x.on_device;
    patches(stream, {.window = args.window, .x = args.x, .patches = panel, .first = first});
    gemm(stream, {.a = panel,
                  .b = args.weight,
                  .c = args.y.row_range(first, n),
                  .bias = args.bias,
                  .transpose_b = true});
  }
}

/// Whole images together, so that the sums of a 16-bit gradient are rounded once. Panels are fp32:
/// their elements are terms of those sums.
void convolution_input(Stream& stream, const ConvolutionInputArgs& args) {
  const Window& window = args.window;
  const int64_t images = args.dx.rows() / window.pixels();
  const int64_t cols = args.weight.cols();
  const int64_t each = panel_rows(DType::fp32, args.dy.rows(), cols);
  const int64_t together = std::min(images, std::max<int64_t>(1, each / window.out_pixels()));
  const bool rounds = args.dx.dtype != DType::fp32;
  const int64_t panel_bytes = bytes_of(DType::fp32, each * cols);
  const int64_t sums =
      rounds ? bytes_of(DType::fp32, together * window.pixels() * args.dx.cols()) : 0;
  const CallWorkspace memory = workspace_of(stream, each, cols, panel_bytes + sums);
  if (library_convolution(stream,
                          {.part = ConvolutionPart::input,
                           .window = window,
                           .x = args.dx,
                           .weight = args.weight,
                           .bias = {},
                           .y = args.dy},
                          memory.all)) {
    return;
  }
  for (int64_t image = 0; image < images; image += together) {
    const int64_t count = std::min(together, images - image);
    const Tensor part = args.dx.row_range(image * window.pixels(), count * window.pixels());
    Tensor sum = part;
    if (rounds) {
      sum = Tensor(memory.beside + panel_bytes, DType::fp32, {part.rows(), part.cols()});
      sum.on_device = part.on_device;
    }
    fill(stream, {.x = sum, .value = 0});
    const int64_t begin = image * window.out_pixels();
    const int64_t rows = count * window.out_pixels();
    for (int64_t first = 0; first < rows; first += each) {
      const int64_t n = std::min(each, rows - first);
      Tensor panel(memory.beside, DType::fp32, {n, cols});
      panel.on_device = args.dy.on_device;
      gemm(stream, {.a = args.dy.row_range(begin + first, n), .b = args.weight, .c = panel});
      patch_sum(stream, {.window = window, .patches = panel, .sum = sum, .first = first});
    }
    if (rounds) {
      cast(stream, {.x = sum, .y = part});
    }
  }
}

void convolution_weight(Stream& stream, const ConvolutionWeightArgs& args) {
  const int64_t rows = args.dy.rows();
  const int64_t cols = args.dweight.cols();
  const int64_t each = panel_rows(args.x.dtype, rows, cols);
  const CallWorkspace memory =
      workspace_of(stream, args.dweight.rows(), cols, bytes_of(args.x.dtype, each * cols));
  if (library_convolution(stream,
                          {.part = ConvolutionPart::weight,
                           .window = args.window,
                           .x = args.x,
                           .weight = args.dweight,
                           .bias = {},
                           .y = args.dy},
                          memory.all)) {
    return;
  }
  for (int64_t first = 0; first < rows; first += each) {
    const int64_t n = std::min(each, rows - first);
    Tensor panel(memory.beside, args.x.dtype, {n, cols});
    panel.on_device = args.x.on_device;
    patches(stream, {.window = args.window, .x = args.x, .patches = panel, .first = first});
    gemm(stream, {.a = args.dy.row_range(first, n),
                  .b = panel,
                  .c = args.dweight,
                  .transpose_a = true,
                  .accumulate = first > 0});
  }
}

}  // namespace espalier::kernels::ESPALIER_GPU
