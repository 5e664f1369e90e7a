#include "src/kernels/operations/window.h"

#include "src/kernels/verify/cost.h"
#include "src/kernels/verify/rules.h"

namespace espalier::kernels {
namespace {

void verify_patches(const Window& window, const Tensor& images, const Tensor& patches,
                    int64_t first) {
  const int64_t count = images_of(window, images.rows());
  is_any("patches", patches);
  is_matrix("images", images, images.rows(), images.cols());
  is_flat("patches", patches, patches.rows() * window.area() * images.cols());
  require(first >= 0 && first + patches.rows() <= count * window.out_pixels(),
          "patches are of output pixels", first, patches.rows(), count * window.out_pixels());
}

void verify_pool(const Window& window, Pool kind, const Tensor& x, const Tensor& y,
                 const Tensor& from) {
  const int64_t out = images_of(window, x.rows()) * window.out_pixels();
  is_any("x", x);
  is_flat("x", x, x.count());
  is_same_type("y", y, x);
  is_flat("y", y, out * x.cols());
  require(kind == Pool::mean || window.extent <= 15, "a place in the window has 8 bits",
          window.extent);
  if (kind == Pool::max) {
    require(from.dtype == DType::uint8, "places are uint8", name_of(from.dtype));
    is_flat("from", from, out * x.cols());
  }
}

}  // namespace

void verify(const PatchesArgs& args) {
  verify_patches(args.window, args.x, args.patches, args.first);
  is_same_type("x", args.x, args.patches);
}

DryCount cost(const PatchesArgs& args) { return {0, 2 * traffic(args.patches)}; }

void verify(const PatchSumArgs& args) {
  verify_patches(args.window, args.sum, args.patches, args.first);
  is_fp32("sum", args.sum);
}

DryCount cost(const PatchSumArgs& args) {
  return {elements(args.patches), traffic(args.patches) + 2 * traffic(args.sum)};
}

void verify(const PoolArgs& args) {
  verify_pool(args.window, args.kind, args.x, args.y, args.from);
}

DryCount cost(const PoolArgs& args) {
  return {elements(args.y) * static_cast<double>(args.window.area()),
          traffic(args.x, args.y, args.from)};
}

void verify(const PoolBackwardArgs& args) {
  verify_pool(args.window, args.kind, args.dx, args.dy, args.from);
}

DryCount cost(const PoolBackwardArgs& args) {
  return {elements(args.dy) * static_cast<double>(args.window.area()),
          traffic(args.dy, args.from, args.dx)};
}

}  // namespace espalier::kernels
