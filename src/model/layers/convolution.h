#pragma once
// A convolution with its parameters. It keeps no activations: callers pass what backward needs.
// Images are matrices [B H W, channels] (src/kernels/operations/window.h).
//
//   y = patches(x) Wᵀ + b       W [out, extent² in], a matrix like any other: masks, storages,
//                               optimizers and files need nothing new
//
// Kernels of convolutions compute it: with the dense matrix (one group), or with kept elements.
// Else panels of at most 1 MiB of the matrix of patches are made, used and dropped, in forward and
// again in backward: for blocks, tables without such kernels, and passes that observe inputs or
// gradients. With extent 1, stride 1 and no padding x itself is the matrix of patches. With several
// groups, each maps its part of the channels with its own W.
#include <string>
#include <vector>

#include "src/model/layers/linear.h"

namespace espalier::model {

class Convolution {
 public:
  struct Options {
    kernels::Window window;
    int64_t in = 1, out = 1;  ///< channels; groups divide both
    int64_t groups = 1;
    Linear::Options linear{};  ///< of each group
    int64_t panel_bytes = int64_t{1} << 20U;
  };
  /// Parameters NAME.weight and NAME.bias; with several groups NAME.0.weight, ...
  Convolution(const std::string& name, const Options& options);

  std::vector<sparse::ParameterSpec> parameters() const;
  void bind(sparse::Store& store, const kernels::Kernels& kernels);

  int64_t in() const { return options_.in; }
  int64_t out() const { return options_.out; }
  const kernels::Window& window() const { return options_.window; }

  /// y [B out_pixels, out], of the compute type or fp32.
  void forward(Pass& pass, const Tensor& x, const Tensor& y);
  /// Overwrites dx [B H W, in]. In a 16-bit type sums are fp32 and rounded once.
  void backward_input(Pass& pass, const Tensor& dy, const Tensor& dx);
  /// dW (+)= dyᵀ patches(x), db (+)= column sums of dy. With pass.deferred: added to its list.
  void backward_weight(Pass& pass, const Tensor& x, const Tensor& dy, bool accumulate);

 private:
  bool direct() const;
  /// Whether the kernels of dense convolutions compute it; x and y are its images, or gradients.
  bool dense(const Tensor& x, const Tensor& y);
  /// Whether the kernels of sparse convolutions compute it; of probed weights all but the gradient.
  /// No product may read patches beside them: kept forms (kernels::KeptForms) are of one kind.
  bool sparse(const Pass& pass);
  /// Calls pass.on_input, if set, with all `rows` patches; `panel` is memory for some.
  void report_patches(Pass& pass, const Tensor& x, const Tensor& panel, int64_t rows);
  int64_t panel_rows(DType dtype) const;
  /// Memory of a panel for matrices of `rows` patches.
  Tensor push_panel(Tape& tape, DType dtype, int64_t rows) const;
  void sum_patches(Pass& pass, const Tensor& dy, const Tensor& sum, int64_t first_image);
  void weight_gradient(Pass& pass, const Tensor& x, const Tensor& dy, const Tensor& panel,
                       bool accumulate);
  /// The channels of group `group` in a matrix of all groups' channels.
  Tensor channels(const Tensor& images, size_t group) const;

  Options options_;
  std::vector<Linear> groups_;
};

}  // namespace espalier::model
