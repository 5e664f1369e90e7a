// "basic", "bottleneck" and "wide": residual blocks.
#include "src/model/layers/residual.h"

#include <optional>

#include "src/model/networks/image_layers/convolution_options.h"

namespace espalier::model {
namespace {

/// The convolutions of a block, in forward order.
struct Branch {
  std::string text;
  Images from, to;
  std::vector<Convolution::Options> convolutions{};
  std::optional<Convolution::Options> projection{};  ///< of the shortcut, where the shape changes

  void add(const ConvolutionShape& shape) {
    convolutions.push_back(convolution_of(text, convolutions.empty() ? from : to, shape));
    to = output_of(convolutions.back());
  }
  void add_shortcut(int64_t stride) {
    if (stride != 1 || from.channels != to.channels) {
      projection = convolution_of(text, from, {.out = to.channels, .stride = stride});
    }
  }
};

Branch two_convolutions(Words& words, const Images& from) {
  const int64_t out = words.number("its output channels");
  int64_t stride = 1;
  words.options({{.name = "stride", .number = &stride}});
  Branch branch{.text = words.text(), .from = from, .to = {}};
  branch.add({.out = out, .extent = 3, .stride = stride, .padding = 1});
  branch.add({.out = out, .extent = 3, .padding = 1});
  branch.add_shortcut(stride);
  return branch;
}

ReadLayer residual(const Branch& branch) {
  return {.to = branch.to, .make = [=](const LayerPlace& place) -> std::unique_ptr<Layer> {
            return std::make_unique<ResidualBlock>(
                place.name, ResidualBlock::Options{.branch = branch.convolutions,
                                                   .projection = branch.projection,
                                                   .flat = place.flat});
          }};
}

ReadLayer read_basic(Words& words, const Images& from) {
  return residual(two_convolutions(words, from));
}

ReadLayer read_bottleneck(Words& words, const Images& from) {
  const int64_t out = words.number("its output channels");
  int64_t stride = 1;
  int64_t groups = 1;
  int64_t inner = out / 4;
  words.options({{.name = "inner", .number = &inner},
                 {.name = "stride", .number = &stride},
                 {.name = "groups", .number = &groups}});
  Branch branch{.text = words.text(), .from = from, .to = {}};
  branch.add({.out = inner});
  branch.add({.out = inner, .extent = 3, .stride = stride, .padding = 1, .groups = groups});
  branch.add({.out = out});
  branch.add_shortcut(stride);
  return residual(branch);
}

ReadLayer read_wide(Words& words, const Images& from) {
  const Branch branch = two_convolutions(words, from);
  return {.to = branch.to, .make = [=](const LayerPlace& place) -> std::unique_ptr<Layer> {
            return std::make_unique<WideBlock>(place.name,
                                               WideBlock::Options{.first = branch.convolutions[0],
                                                                  .second = branch.convolutions[1],
                                                                  .projection = branch.projection,
                                                                  .flat = place.flat});
          }};
}

}  // namespace

extern const LayerKind kBasic, kBottleneck, kWide;
const LayerKind kBasic{
    .name = "basic", .form = "basic OUT [stride S]", .may_be_first = false, .read = read_basic};
const LayerKind kBottleneck{.name = "bottleneck",
                            .form = "bottleneck OUT [inner W] [stride S] [groups G]",
                            .may_be_first = false,
                            .read = read_bottleneck};
const LayerKind kWide{
    .name = "wide", .form = "wide OUT [stride S]", .may_be_first = false, .read = read_wide};

}  // namespace espalier::model
