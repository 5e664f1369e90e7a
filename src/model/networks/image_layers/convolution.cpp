// "conv": a convolution with a bias or batch norm, and a rectifier.
#include "src/model/layers/images.h"
#include "src/model/networks/image_layers/convolution_options.h"

namespace espalier::model {
namespace {

ReadLayer read_convolution(Words& words, const Images& from) {
  ConvolutionShape shape;
  bool norm = false;
  bool plain = false;
  shape.out = words.number("its output channels");
  shape.extent = words.number("the extent of its window");
  shape.padding = (shape.extent - 1) / 2;
  words.options({{.name = "stride", .number = &shape.stride},
                 {.name = "padding", .number = &shape.padding},
                 {.name = "groups", .number = &shape.groups},
                 {.name = "norm", .flag = &norm},
                 {.name = "plain", .flag = &plain}});
  const Convolution::Options convolution = convolution_of(words.text(), from, shape);
  return {.to = output_of(convolution),
          .make = [=](const LayerPlace& place) -> std::unique_ptr<Layer> {
            return std::make_unique<ConvolutionLayer>(
                place.name,
                ConvolutionLayer::Options{.unit = {.convolution = placed(convolution, place),
                                                   .norm = norm,
                                                   .rectify = !plain},
                                          .first = place.first,
                                          .flat = place.flat});
          }};
}

}  // namespace

extern const LayerKind kConvolution;
const LayerKind kConvolution{
    .name = "conv",
    .form = "conv OUT EXTENT [stride S] [padding P] [groups G] [norm] [plain]",
    .read = read_convolution};

}  // namespace espalier::model
