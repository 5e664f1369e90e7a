#pragma once
// Windows that slide over images: patches for convolutions, and pooling. Images are matrices
// [B H W, C]: a row is a pixel with its channels, image by image, row by row ("channels last").
#include <cstdint>

#include "src/core/tensor.h"

namespace espalier::kernels {

/// The window of output pixel (r, c) covers the input pixels (r stride - padding + i,
/// c stride - padding + j), 0 <= i, j < extent. 0 <= padding < extent.
struct Window {
  int64_t height = 1, width = 1;  ///< of an image, without padding
  int64_t extent = 1;             ///< rows and columns of the window
  int64_t stride = 1;
  int64_t padding = 0;  ///< on each side

  [[gnu::always_inline]] int64_t out_height() const { return steps(height); }
  [[gnu::always_inline]] int64_t out_width() const { return steps(width); }
  [[gnu::always_inline]] int64_t pixels() const { return height * width; }
  [[gnu::always_inline]] int64_t out_pixels() const { return out_height() * out_width(); }
  [[gnu::always_inline]] int64_t area() const { return extent * extent; }

 private:
  [[gnu::always_inline]] int64_t steps(int64_t length) const {
    return (length + 2 * padding - extent) / stride + 1;
  }
};

/// patches[n, (i extent + j) C + c] = x[pixel (i, j) of the window of output pixel first + n, c],
/// zero in the padding; output pixels are counted over all images. x any [B H W, C] with any row
/// stride, patches of the same type. A convolution is patches Wᵀ, W [out, extent² C].
struct PatchesArgs {
  Window window;
  Tensor x, patches;
  int64_t first = 0;
};

/// The adjoint: sum[pixel, c] += all elements of `patches` that `PatchesArgs` copies from there, in
/// the order of (i, j). patches any; sum fp32 [B H W, C] with any row stride.
struct PatchSumArgs {
  Window window;
  Tensor patches, sum;
  int64_t first = 0;
};

enum class Pool : uint8_t {
  max,   ///< of the pixels in the image; NaN if one is NaN
  mean,  ///< sum / extent², padding counts as zero
};

/// y[output pixel, c] = maximum or mean over its window. x any [B H W, C], y of the same type
/// [B out_pixels, C]. max: `from`, uint8 like y, receives the place i extent + j of the first
/// maximum; extent <= 15. mean: `from` is empty.
struct PoolArgs {
  Window window;
  Pool kind = Pool::max;
  Tensor x, y, from;
};

/// dx = gradient at x: sums in fp32, rounded once. dy any, dx of the same type.
struct PoolBackwardArgs {
  Window window;
  Pool kind = Pool::max;
  Tensor dy, from, dx;
};

}  // namespace espalier::kernels
