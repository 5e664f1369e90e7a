#include "src/model/layers/convolution.h"

#include <algorithm>

namespace espalier::model {
namespace {

/// Calls body(first, n) for ranges of at most `each` rows that cover [begin, end).
template <class Body>
void for_panels(int64_t begin, int64_t end, int64_t each, const Body& body) {
  for (int64_t first = begin; first < end; first += each) {
    body(first, std::min(each, end - first));
  }
}

}  // namespace

Convolution::Convolution(const std::string& name, const Options& options) : options_(options) {
  require(options.in % options.groups == 0 && options.out % options.groups == 0,
          "groups divide the channels", options.in, options.out, options.groups);
  for (int64_t group = 0; group < options.groups; ++group) {
    Linear::Options linear = options.linear;
    linear.window = options.window;
    linear.groups = options.groups;
    groups_.emplace_back(options.groups == 1 ? name : fmt::format("{}.{}", name, group),
                         options.in / options.groups * options.window.area(),
                         options.out / options.groups, linear);
  }
}

std::vector<sparse::ParameterSpec> Convolution::parameters() const {
  std::vector<sparse::ParameterSpec> specs;
  for (const Linear& group : groups_) {
    const std::vector<sparse::ParameterSpec> own = group.parameters();
    specs.insert(specs.end(), own.begin(), own.end());
  }
  return specs;
}

void Convolution::bind(sparse::Store& store, const kernels::Kernels& kernels) {
  for (Linear& group : groups_) {
    group.bind(store, kernels);
  }
}

bool Convolution::direct() const {
  const kernels::Window& window = options_.window;
  return window.extent == 1 && window.stride == 1 && window.padding == 0;
}

bool Convolution::dense(const Tensor& x, const Tensor& y) {
  return !direct() && x.dtype == y.dtype && groups_.size() == 1 && groups_[0].weight().is_dense();
}

bool Convolution::sparse(const Pass& pass) {
  return !direct() && pass.kernels.sparse_convolution != nullptr &&
         std::all_of(groups_.begin(), groups_.end(),
                     [](Linear& group) { return group.weight().is_sparse(); });
}

int64_t Convolution::panel_rows(DType dtype) const {
  const int64_t bytes = groups_[0].in() * static_cast<int64_t>(size_of(dtype));
  return std::max<int64_t>(1, options_.panel_bytes / bytes);
}

Tensor Convolution::push_panel(Tape& tape, DType dtype, int64_t rows) const {
  return tape.push("patches", dtype, Shape{std::min(rows, panel_rows(dtype)), groups_[0].in()});
}

Tensor Convolution::channels(const Tensor& images, size_t group) const {
  const int64_t n = images.cols() / options_.groups;
  return images.column_range(static_cast<int64_t>(group) * n, n);
}

void Convolution::report_patches(Pass& pass, const Tensor& x, const Tensor& panel, int64_t rows) {
  if (pass.on_input == nullptr) {
    return;
  }
  for (size_t group = 0; group < groups_.size(); ++group) {
    for_panels(0, rows, panel.rows(), [&](int64_t first, int64_t n) {
      const Tensor patches = panel.row_range(0, n);
      pass.kernels.patches(
          pass.stream,
          {.window = options_.window, .x = channels(x, group), .patches = patches, .first = first});
      groups_[group].report_input(pass, patches);
    });
  }
}

void Convolution::forward(Pass& pass, const Tensor& x, const Tensor& y) {
  const Tape::Scope scope(pass.tape);
  const Tensor panel = direct() ? Tensor() : push_panel(pass.tape, x.dtype, y.rows());
  const bool by_matrix = dense(x, y);
  const bool by_elements = sparse(pass);
  if (by_matrix || by_elements) {
    report_patches(pass, x, panel, y.rows());
  }
  if (by_matrix) {
    pass.kernels.convolution(pass.stream, {.window = options_.window,
                                           .x = x,
                                           .weight = groups_[0].weight().dense(),
                                           .bias = groups_[0].bias(),
                                           .y = y});
    return;
  }
  for (size_t group = 0; group < groups_.size(); ++group) {
    const Tensor from = channels(x, group);
    const Tensor to = channels(y, group);
    if (direct()) {
      groups_[group].forward(pass, {.x = from, .y = to});
      continue;
    }
    if (by_elements) {
      pass.kernels.sparse_convolution(
          pass.stream, {.window = options_.window,
                        .weight = groups_[group].weight().sparse(kernels::PositionForm::product),
                        .x = from,
                        .bias = groups_[group].bias(),
                        .y = to});
      continue;
    }
    for_panels(0, y.rows(), panel.rows(), [&](int64_t first, int64_t n) {
      const Tensor patches = panel.row_range(0, n);
      pass.kernels.patches(
          pass.stream, {.window = options_.window, .x = from, .patches = patches, .first = first});
      groups_[group].forward(pass, {.x = patches, .y = to.row_range(first, n)});
    });
  }
}

/// sum += gradient at the images of `sum`, which begin at image `first_image`.
void Convolution::sum_patches(Pass& pass, const Tensor& dy, const Tensor& sum,
                              int64_t first_image) {
  const int64_t begin = first_image * options_.window.out_pixels();
  const int64_t images = sum.rows() / options_.window.pixels();
  const int64_t end = begin + images * options_.window.out_pixels();
  const Tape::Scope scope(pass.tape);
  const Tensor panel = push_panel(pass.tape, dy.dtype, end - begin);
  for (size_t group = 0; group < groups_.size(); ++group) {
    const Tensor from = channels(dy, group);
    for_panels(begin, end, panel.rows(), [&](int64_t first, int64_t n) {
      const Tensor patches = panel.row_range(0, n);
      groups_[group].backward_input(pass, {.dy = from.row_range(first, n), .dx = patches});
      pass.kernels.patch_sum(pass.stream, {.window = options_.window,
                                           .patches = patches,
                                           .sum = channels(sum, group),
                                           .first = first - begin});
    });
  }
}

void Convolution::backward_input(Pass& pass, const Tensor& dy, const Tensor& dx) {
  if (direct()) {
    for (size_t group = 0; group < groups_.size(); ++group) {
      groups_[group].backward_input(pass, {.dy = channels(dy, group), .dx = channels(dx, group)});
    }
    return;
  }
  const kernels::Window& window = options_.window;
  const int64_t images = dx.rows() / window.pixels();
  const bool rounds = dx.dtype != DType::fp32;
  const int64_t together =
      rounds ? std::max<int64_t>(1, panel_rows(dx.dtype) / window.out_pixels()) : images;
  const auto sums = [&](int64_t first, int64_t n) {
    const Tensor part = dx.row_range(first * window.pixels(), n * window.pixels());
    return rounds ? pass.tape.push("sums of patches", DType::fp32, part.shape) : part;
  };
  const bool by_matrix = dense(dx, dy);
  if (by_matrix || sparse(pass)) {
    const Tape::Scope scope(pass.tape);  // the planned tape is large enough for other storages
    const int64_t most = std::min(together, images);
    sums(0, most);
    push_panel(pass.tape, dy.dtype, most * window.out_pixels());
    if (by_matrix) {
      pass.kernels.convolution_input(
          pass.stream,
          {.window = window, .dy = dy, .weight = groups_[0].weight().dense(), .dx = dx});
      return;
    }
    for (size_t group = 0; group < groups_.size(); ++group) {
      pass.kernels.sparse_convolution_input(
          pass.stream, {.window = window,
                        .weight = groups_[group].weight().sparse(kernels::PositionForm::transposed),
                        .dy = channels(dy, group),
                        .dx = channels(dx, group)});
    }
    return;
  }
  for_panels(0, images, together, [&](int64_t first, int64_t n) {
    const Tape::Scope scope(pass.tape);
    const Tensor sum = sums(first, n);
    pass.kernels.fill(pass.stream, {.x = sum, .value = 0});
    sum_patches(pass, dy, sum, first);
    if (rounds) {
      pass.kernels.cast(
          pass.stream, {.x = sum, .y = dx.row_range(first * window.pixels(), n * window.pixels())});
    }
  });
}

void Convolution::backward_weight(Pass& pass, const Tensor& x, const Tensor& dy, bool accumulate) {
  // Deferred passes push it as well, so that the planned tape is large enough for both kinds.
  const Tape::Scope scope(pass.tape);
  const Tensor panel = direct() ? Tensor() : push_panel(pass.tape, x.dtype, dy.rows());
  if (pass.deferred == nullptr) {
    weight_gradient(pass, x, dy, panel, accumulate);
    return;
  }
  // Layers reuse the memory of x and dy.
  Tape& tape = pass.deferred->tape;
  const auto keep = [&](std::string_view name, const Tensor& images) {
    const Tensor copy = tape.push(name, images.dtype, images.shape);
    pass.kernels.cast(pass.stream, {.x = images, .y = copy});
    return copy;
  };
  pass.deferred->gradients.emplace_back(
      [this, kept_x = keep("inputs of weight parts", x),
       kept_dy = keep("gradients of weight parts", dy),
       own = direct() ? Tensor() : push_panel(tape, x.dtype, dy.rows()),
       accumulate](Pass& later) { weight_gradient(later, kept_x, kept_dy, own, accumulate); });
}

void Convolution::weight_gradient(Pass& pass, const Tensor& x, const Tensor& dy,
                                  const Tensor& panel, bool accumulate) {
  if (dense(x, dy)) {
    groups_[0].weight().accumulate_computed(pass.stream, accumulate, [&](const Tensor& gradient) {
      pass.kernels.convolution_weight(
          pass.stream, {.window = options_.window, .x = x, .dy = dy, .dweight = gradient});
    });
    if (const Tensor bias = groups_[0].bias_gradient()) {
      pass.kernels.column_sum(pass.stream, {.x = dy, .out = bias, .accumulate = accumulate});
    }
    return;
  }
  const bool by_elements = sparse(pass);
  for (size_t group = 0; group < groups_.size(); ++group) {
    const Tensor from = channels(x, group);
    const Tensor to = channels(dy, group);
    if (by_elements && !groups_[group].weight().probed()) {
      pass.kernels.sparse_convolution_weight(pass.stream,
                                             {.window = options_.window,
                                              .weight = groups_[group].weight().sparse_gradient(),
                                              .dy = to,
                                              .x = from,
                                              .accumulate = accumulate});
      if (const Tensor bias = groups_[group].bias_gradient()) {
        pass.kernels.column_sum(pass.stream, {.x = to, .out = bias, .accumulate = accumulate});
      }
      continue;
    }
    if (direct()) {
      groups_[group].weight_gradient(pass, {.dy = to, .x = from, .accumulate = accumulate});
      continue;
    }
    for_panels(0, dy.rows(), panel.rows(), [&](int64_t first, int64_t n) {
      const Tensor patches = panel.row_range(0, n);
      pass.kernels.patches(
          pass.stream, {.window = options_.window, .x = from, .patches = patches, .first = first});
      groups_[group].weight_gradient(pass, {.dy = to.row_range(first, n),
                                            .x = patches,
                                            .accumulate = accumulate,
                                            .continues = first > 0,
                                            .unfinished = first + n < dy.rows()});
    });
  }
}

}  // namespace espalier::model
