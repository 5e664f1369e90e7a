#include "src/model/networks/image_layers.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "src/model/layers/perceptron.h"
#include "src/model/layers/residual.h"
#include "src/model/layers/tokens.h"
#include "src/model/layers/transformer.h"

namespace espalier::model {
namespace {

/// A convolution as a layer describes it.
struct Shape2d {
  int64_t out = 1, extent = 1, stride = 1, padding = 0, groups = 1;
};

/// The convolution of images `from`; its errors quote the layer.
Convolution::Options convolution_of(const LayerEntry& entry, const Images& from,
                                    const Shape2d& shape, bool hidden = true) {
  check(shape.out > 0 && shape.groups > 0 && from.channels % shape.groups == 0 &&
            shape.out % shape.groups == 0,
        "model.network: the groups of '{}' must divide its {} input and {} output channels",
        entry.text, from.channels, shape.out);
  const kernels::Window window{.height = from.height,
                               .width = from.width,
                               .extent = shape.extent,
                               .stride = shape.stride,
                               .padding = shape.padding};
  check(window.extent > 0 && window.stride > 0 && window.padding < window.extent,
        "model.network: '{}' needs an extent and a stride of at least 1, and less padding than its "
        "extent",
        entry.text);
  check(window.extent <= std::min(from.height, from.width) + 2 * window.padding,
        "model.network: the window of '{}' does not fit into images of {}", entry.text,
        from.text());
  const int64_t fan_in = from.channels / shape.groups * window.area();
  check(fan_in <= sparse::kMaxElements / shape.out,
        "model.network: '{}' would have a weight of {} x {} elements; the limit is {}", entry.text,
        shape.out, fan_in, sparse::kMaxElements);
  return {.window = window,
          .in = from.channels,
          .out = shape.out,
          .groups = shape.groups,
          .linear = {.deviation = he_deviation(fan_in),
                     .scaling = hidden ? sparse::Scaling::hidden : sparse::Scaling::base,
                     .width = hidden ? fan_in : shape.out,
                     .deviation_by_width = hidden}};
}

Images output_of(const Convolution::Options& convolution) {
  return {convolution.window.out_height(), convolution.window.out_width(), convolution.out};
}

/// Appends a convolution of what the entry's last one computes.
void add_convolution(LayerEntry& entry, const Shape2d& shape) {
  const Images from =
      entry.convolutions.empty() ? entry.from : output_of(entry.convolutions.back());
  entry.convolutions.push_back(convolution_of(entry, from, shape));
  entry.to = output_of(entry.convolutions.back());
}

/// A shortcut of this stride around the entry's convolutions.
void add_shortcut(LayerEntry& entry, int64_t stride) {
  if (stride != 1 || entry.from.channels != entry.to.channels) {
    entry.projection =
        convolution_of(entry, entry.from, {.out = entry.to.channels, .stride = stride});
  }
}

void read_convolution(Words& words, LayerEntry& entry) {
  Shape2d shape;
  bool plain = false;
  shape.out = words.number("its output channels");
  shape.extent = words.number("the extent of its window");
  shape.padding = (shape.extent - 1) / 2;
  words.options({{.name = "stride", .number = &shape.stride},
                 {.name = "padding", .number = &shape.padding},
                 {.name = "groups", .number = &shape.groups},
                 {.name = "norm", .flag = &entry.norm},
                 {.name = "plain", .flag = &plain}});
  entry.rectify = !plain;
  add_convolution(entry, shape);
}

/// The entry's first convolution, with the scaling of its place.
Convolution::Options first_convolution(const LayerEntry& entry, const LayerPlace& place) {
  Convolution::Options convolution = entry.convolutions.front();
  if (place.first) {
    convolution.linear.scaling = sparse::Scaling::base;
    convolution.linear.width = convolution.out;
    convolution.linear.deviation_by_width = false;
  }
  return convolution;
}

std::unique_ptr<Layer> make_convolution(const LayerEntry& entry, const LayerPlace& place) {
  const Convolution::Options convolution = first_convolution(entry, place);
  return std::make_unique<ConvolutionLayer>(
      place.name,
      ConvolutionLayer::Options{
          .unit = {.convolution = convolution, .norm = entry.norm, .rectify = entry.rectify},
          .first = place.first,
          .flat = place.flat});
}

void read_pooling(Words& words, LayerEntry& entry) {
  kernels::Window& window = entry.window;
  window = {.height = entry.from.height, .width = entry.from.width};
  const bool max = entry.kind->name == "max";
  if (!max && words.done()) {
    check(entry.from.height == entry.from.width,
          "model.network: 'mean' needs square images, and gets {}; name an extent",
          entry.from.text());
    window.extent = window.stride = entry.from.height;
  } else {
    window.extent = window.stride = words.number("the extent of its window");
    words.options({{.name = "stride", .number = &window.stride},
                   {.name = "padding", .number = &window.padding}});
  }
  check(!max || window.extent <= 15, "model.network: the window of '{}' may be up to 15 wide",
        entry.text);
  convolution_of(entry, entry.from,  // the same rules
                 {.out = entry.from.channels,
                  .extent = window.extent,
                  .stride = window.stride,
                  .padding = window.padding,
                  .groups = entry.from.channels});
  entry.to = {window.out_height(), window.out_width(), entry.from.channels};
}

std::unique_ptr<Layer> make_pooling(const LayerEntry& entry, const LayerPlace& place) {
  const bool max = entry.kind->name == "max";
  return std::make_unique<Pooling>(
      place.name, Pooling::Options{.window = entry.window,
                                   .kind = max ? kernels::Pool::max : kernels::Pool::mean,
                                   .channels = entry.from.channels,
                                   .first = place.first,
                                   .flat = place.flat});
}

void read_norm(Words& words, LayerEntry& entry) {
  check(words.done(), "model.network: '{}' must be 'norm'", entry.text);
  entry.to = entry.from;
}

std::unique_ptr<Layer> make_norm(const LayerEntry& entry, const LayerPlace& place) {
  return std::make_unique<NormLayer>(
      place.name, NormLayer::Options{.pixels = entry.from.height * entry.from.width,
                                     .channels = entry.from.channels,
                                     .first = place.first,
                                     .flat = place.flat});
}

void read_local_norm(Words& words, LayerEntry& entry) {
  int64_t& extent = entry.local_norm.extent;
  if (!words.done()) {
    extent = words.number("its extent in channels");
  }
  check(words.done() && extent % 2 == 1 && extent <= kernels::LocalNorm::kLargest,
        "model.network: '{}' must be 'lrn' or 'lrn EXTENT', with an odd number of channels up to "
        "{}",
        entry.text, kernels::LocalNorm::kLargest);
  entry.to = entry.from;
}

std::unique_ptr<Layer> make_local_norm(const LayerEntry& entry, const LayerPlace& place) {
  return std::make_unique<LocalNormLayer>(
      place.name, LocalNormLayer::Options{.norm = entry.local_norm,
                                          .pixels = entry.from.height * entry.from.width,
                                          .channels = entry.from.channels,
                                          .first = place.first,
                                          .flat = place.flat});
}

void read_linear(Words& words, LayerEntry& entry) {
  const int64_t out = words.number("its outputs");
  check(out > 0 && words.done(), "model.network: '{}' must be 'linear OUT'", entry.text);
  check(entry.from.count() <= sparse::kMaxElements / out,
        "model.network: '{}' would have a weight of {} x {} elements; the limit is {}", entry.text,
        out, entry.from.count(), sparse::kMaxElements);
  entry.to = {.channels = out};
}

std::unique_ptr<Layer> make_linear(const LayerEntry& entry, const LayerPlace& place) {
  return std::make_unique<Hidden>(place.name, entry.from.count(), entry.to.channels, place.first,
                                  entry.from.channels);
}

void read_basic(Words& words, LayerEntry& entry) {
  const int64_t out = words.number("its output channels");
  int64_t stride = 1;
  words.options({{.name = "stride", .number = &stride}});
  add_convolution(entry, {.out = out, .extent = 3, .stride = stride, .padding = 1});
  add_convolution(entry, {.out = out, .extent = 3, .padding = 1});
  add_shortcut(entry, stride);
}

void read_bottleneck(Words& words, LayerEntry& entry) {
  const int64_t out = words.number("its output channels");
  int64_t stride = 1;
  int64_t groups = 1;
  int64_t inner = out / 4;
  words.options({{.name = "inner", .number = &inner},
                 {.name = "stride", .number = &stride},
                 {.name = "groups", .number = &groups}});
  add_convolution(entry, {.out = inner});
  add_convolution(entry,
                  {.out = inner, .extent = 3, .stride = stride, .padding = 1, .groups = groups});
  add_convolution(entry, {.out = out});
  add_shortcut(entry, stride);
}

std::unique_ptr<Layer> make_residual(const LayerEntry& entry, const LayerPlace& place) {
  return std::make_unique<ResidualBlock>(
      place.name,
      ResidualBlock::Options{
          .branch = entry.convolutions, .projection = entry.projection, .flat = place.flat});
}

std::unique_ptr<Layer> make_wide(const LayerEntry& entry, const LayerPlace& place) {
  return std::make_unique<WideBlock>(place.name, WideBlock::Options{.first = entry.convolutions[0],
                                                                    .second = entry.convolutions[1],
                                                                    .projection = entry.projection,
                                                                    .flat = place.flat});
}

void read_patch(Words& words, LayerEntry& entry) {
  const int64_t width = words.number("the width of its tokens");
  const int64_t extent = words.number("the extent of its patches");
  check(words.done(), "model.network: '{}' must be 'patch WIDTH EXTENT'", entry.text);
  check(extent > 0 && entry.from.height % extent == 0 && entry.from.width % extent == 0,
        "model.network: the extent of '{}' must divide the height and width of images of {}",
        entry.text, entry.from.text());
  add_convolution(entry, {.out = width, .extent = extent, .stride = extent});
  Linear::Options& linear = entry.convolutions.front().linear;
  linear.deviation = 1 / std::sqrt(static_cast<float>(linear.width));  // no rectifier follows
  entry.to.tokens = true;
  check(entry.to.count() <= sparse::kMaxElements,
        "model.network: '{}' would have {} numbers of positions; the limit is {}", entry.text,
        entry.to.count(), sparse::kMaxElements);
}

std::unique_ptr<Layer> make_patch(const LayerEntry& entry, const LayerPlace& place) {
  return std::make_unique<PatchEmbedding>(
      place.name, PatchEmbedding::Options{.convolution = first_convolution(entry, place),
                                          .first = place.first});
}

void read_transformer(Words& words, LayerEntry& entry) {
  entry.heads = words.number("its heads");
  words.options({{.name = "ratio", .number = &entry.ratio}});
  const int64_t width = entry.from.channels;
  check(entry.heads > 0 && width % entry.heads == 0,
        "model.network: the heads of '{}' must divide the width of its tokens, {}", entry.text,
        width);
  check(entry.ratio > 0, "model.network: the ratio of '{}' must be at least 1", entry.text);
  const int64_t rows = std::max<int64_t>(3, entry.ratio) * width;
  check(rows <= sparse::kMaxElements / width,
        "model.network: '{}' would have a weight of {} x {} elements; the limit is {}", entry.text,
        rows, width, sparse::kMaxElements);
  entry.to = entry.from;
}

std::unique_ptr<Layer> make_transformer(const LayerEntry& entry, const LayerPlace& place) {
  return std::make_unique<TransformerBlock>(
      place.name, TransformerBlock::Options{.tokens = entry.from.height * entry.from.width,
                                            .width = entry.from.channels,
                                            .heads = entry.heads,
                                            .mlp_ratio = entry.ratio,
                                            .blocks = place.blocks,
                                            .norm = place.norm,
                                            .causal = false});
}

void read_token_mean(Words& words, LayerEntry& entry) {
  check(words.done(), "model.network: '{}' must be 'token-mean'", entry.text);
  check(entry.from.height == entry.from.width,
        "model.network: 'token-mean' needs as many rows of tokens as columns, and gets {}",
        entry.from.text());
  entry.to = {.channels = entry.from.channels};
}

std::unique_ptr<Layer> make_token_mean(const LayerEntry& entry, const LayerPlace& place) {
  return std::make_unique<TokenMean>(place.name, TokenMean::Options{.edge = entry.from.height,
                                                                    .width = entry.from.channels,
                                                                    .norm = place.norm,
                                                                    .flat = place.flat});
}

constexpr std::array<LayerKind, 12> kAll{{
    {.name = "conv",
     .form = "conv OUT EXTENT [stride S] [padding P] [groups G] [norm] [plain]",
     .read = read_convolution,
     .make = make_convolution},
    {.name = "norm", .form = "norm", .read = read_norm, .make = make_norm},
    {.name = "lrn", .form = "lrn [EXTENT]", .read = read_local_norm, .make = make_local_norm},
    {.name = "max",
     .form = "max EXTENT [stride S] [padding P]",
     .read = read_pooling,
     .make = make_pooling},
    {.name = "mean",
     .form = "mean [EXTENT [stride S] [padding P]]",
     .read = read_pooling,
     .make = make_pooling},
    {.name = "linear",
     .form = "linear OUT",
     .reads_vectors = true,
     .read = read_linear,
     .make = make_linear},
    {.name = "basic",
     .form = "basic OUT [stride S]",
     .may_be_first = false,
     .read = read_basic,
     .make = make_residual},
    {.name = "bottleneck",
     .form = "bottleneck OUT [inner W] [stride S] [groups G]",
     .may_be_first = false,
     .read = read_bottleneck,
     .make = make_residual},
    {.name = "wide",
     .form = "wide OUT [stride S]",
     .may_be_first = false,
     .read = read_basic,
     .make = make_wide},
    {.name = "patch", .form = "patch WIDTH EXTENT", .read = read_patch, .make = make_patch},
    {.name = "transformer",
     .form = "transformer HEADS [ratio R]",
     .reads_tokens = true,
     .read = read_transformer,
     .make = make_transformer},
    {.name = "token-mean",
     .form = "token-mean",
     .reads_tokens = true,
     .read = read_token_mean,
     .make = make_token_mean},
}};

constexpr auto kKinds = [] {
  std::array<const LayerKind*, kAll.size()> all{};
  std::ranges::transform(kAll, all.begin(), [](const LayerKind& kind) { return &kind; });
  return all;
}();

}  // namespace

std::string Images::text() const {
  return tokens ? fmt::format("{} x {} tokens of {}", height, width, channels)
                : fmt::format("{} x {} x {}", height, width, channels);
}

Registry<LayerKind> layer_kinds() { return kKinds; }

LayerEntry read_layer(const std::string& text, const Images& from, const std::string& before) {
  Words words(text);
  const std::string name = words.word();
  const auto kind = std::ranges::find(kAll, name, &LayerKind::name);
  check(kind != kAll.end(), "model.network: no layer '{}'; layers are: {}", name,
        fmt::join(names(layer_kinds()), ", "));
  check(kind->may_be_first || !before.empty(),
        "model.network: '{}' cannot be the first layer; begin with a 'conv'", text);
  LayerEntry entry{.text = text, .kind = &*kind, .from = from, .to = {}};
  try {
    check(!kind->reads_tokens || from.tokens,
          "model.network: '{}' reads tokens, and gets images of {}; put a 'patch' before it", text,
          from.text());
    check(kind->reads_tokens || !from.tokens,
          "model.network: '{}' reads images, and gets {}; put 'token-mean' before it", text,
          from.text());
    kind->read(words, entry);
  } catch (const Failure& failure) {
    throw Failure(fmt::format(
        "{}; it reads {}; its form is '{}'", failure.what(),
        before.empty() ? "the data" : fmt::format("the output of '{}'", before), kind->form));
  }
  return entry;
}

}  // namespace espalier::model
