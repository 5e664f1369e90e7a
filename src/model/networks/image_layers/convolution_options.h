#pragma once
// Convolutions as lines of `model.network` describe them.
#include <string>

#include "src/model/layers/convolution.h"
#include "src/model/networks/image_layers.h"

namespace espalier::model {

struct ConvolutionShape {
  int64_t out = 1, extent = 1, stride = 1, padding = 0, groups = 1;
};

/// The convolution of images `from`. Throws Failure, which quotes the layer `text`, if the window
/// does not fit, groups do not divide the channels, or the weight is too large.
Convolution::Options convolution_of(const std::string& text, const Images& from,
                                    const ConvolutionShape& shape);
Images output_of(const Convolution::Options& convolution);
/// The same with the scaling of its place: the first layer reads a fixed number of channels.
Convolution::Options placed(Convolution::Options convolution, const LayerPlace& place);

}  // namespace espalier::model
