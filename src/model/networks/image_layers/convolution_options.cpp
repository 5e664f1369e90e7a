#include "src/model/networks/image_layers/convolution_options.h"

#include <algorithm>

#include "src/model/layers/perceptron.h"

namespace espalier::model {

Convolution::Options convolution_of(const std::string& text, const Images& from,
                                    const ConvolutionShape& shape) {
  check(shape.out > 0 && shape.groups > 0 && from.channels % shape.groups == 0 &&
            shape.out % shape.groups == 0,
        "model.network: the groups of '{}' must divide its {} input and {} output channels", text,
        from.channels, shape.out);
  const kernels::Window window{.height = from.height,
                               .width = from.width,
                               .extent = shape.extent,
                               .stride = shape.stride,
                               .padding = shape.padding};
  check(window.extent > 0 && window.stride > 0 && window.padding < window.extent,
        "model.network: '{}' needs an extent and a stride of at least 1, and less padding than its "
        "extent",
        text);
  check(window.extent <= std::min(from.height, from.width) + 2 * window.padding,
        "model.network: the window of '{}' does not fit into images of {}", text, from.text());
  const int64_t fan_in = from.channels / shape.groups * window.area();
  check(fan_in <= sparse::kMaxElements / shape.out,
        "model.network: '{}' would have a weight of {} x {} elements; the limit is {}", text,
        shape.out, fan_in, sparse::kMaxElements);
  return {.window = window,
          .in = from.channels,
          .out = shape.out,
          .groups = shape.groups,
          .linear = {.deviation = he_deviation(fan_in),
                     .scaling = sparse::Scaling::hidden,
                     .width = fan_in,
                     .deviation_by_width = true}};
}

Images output_of(const Convolution::Options& convolution) {
  return {convolution.window.out_height(), convolution.window.out_width(), convolution.out};
}

Convolution::Options placed(Convolution::Options convolution, const LayerPlace& place) {
  if (place.first) {
    convolution.linear.scaling = sparse::Scaling::base;
    convolution.linear.width = convolution.out;
    convolution.linear.deviation_by_width = false;
  }
  return convolution;
}

}  // namespace espalier::model
