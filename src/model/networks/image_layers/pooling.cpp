// "max" and "mean": pooling.
#include "src/model/layers/images.h"
#include "src/model/networks/image_layers/convolution_options.h"

namespace espalier::model {
namespace {

/// The window of `extent` pixels, with the options that follow.
kernels::Window read_window(Words& words, const Images& from, int64_t extent) {
  kernels::Window window{
      .height = from.height, .width = from.width, .extent = extent, .stride = extent};
  words.options({{.name = "stride", .number = &window.stride},
                 {.name = "padding", .number = &window.padding}});
  convolution_of(words.text(), from,  // the same rules
                 {.out = from.channels,
                  .extent = window.extent,
                  .stride = window.stride,
                  .padding = window.padding,
                  .groups = from.channels});
  return window;
}

ReadLayer pooling(kernels::Pool kind, const kernels::Window& window, const Images& from) {
  return {.to = {window.out_height(), window.out_width(), from.channels},
          .make = [=](const LayerPlace& place) -> std::unique_ptr<Layer> {
            return std::make_unique<Pooling>(place.name, Pooling::Options{.window = window,
                                                                          .kind = kind,
                                                                          .channels = from.channels,
                                                                          .first = place.first,
                                                                          .flat = place.flat});
          }};
}

ReadLayer read_max(Words& words, const Images& from) {
  const int64_t extent = words.number("the extent of its window");
  check(extent <= 15, "model.network: the window of '{}' may be up to 15 wide", words.text());
  return pooling(kernels::Pool::max, read_window(words, from, extent), from);
}

ReadLayer read_mean(Words& words, const Images& from) {
  check(!words.done() || from.height == from.width,
        "model.network: 'mean' needs square images, and gets {}; name an extent", from.text());
  const int64_t extent = words.done() ? from.height : words.number("the extent of its window");
  return pooling(kernels::Pool::mean, read_window(words, from, extent), from);
}

}  // namespace

extern const LayerKind kMaxPooling, kMeanPooling;
const LayerKind kMaxPooling{
    .name = "max", .form = "max EXTENT [stride S] [padding P]", .read = read_max};
const LayerKind kMeanPooling{
    .name = "mean", .form = "mean [EXTENT [stride S] [padding P]]", .read = read_mean};

}  // namespace espalier::model
