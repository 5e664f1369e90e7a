// "patch", "transformer" and "token-mean": vision transformers.
#include "src/model/layers/tokens.h"

#include <algorithm>
#include <cmath>

#include "src/model/layers/transformer.h"
#include "src/model/networks/image_layers/convolution_options.h"

namespace espalier::model {
namespace {

ReadLayer read_patch(Words& words, const Images& from) {
  const int64_t width = words.number("the width of its tokens");
  const int64_t extent = words.number("the extent of its patches");
  check(words.done(), "model.network: '{}' must be 'patch WIDTH EXTENT'", words.text());
  check(extent > 0 && from.height % extent == 0 && from.width % extent == 0,
        "model.network: the extent of '{}' must divide the height and width of images of {}",
        words.text(), from.text());
  Convolution::Options convolution =
      convolution_of(words.text(), from, {.out = width, .extent = extent, .stride = extent});
  Linear::Options& linear = convolution.linear;
  linear.deviation = 1 / std::sqrt(static_cast<float>(linear.width));  // no rectifier follows
  Images to = output_of(convolution);
  to.tokens = true;
  check(to.count() <= sparse::kMaxElements,
        "model.network: '{}' would have {} numbers of positions; the limit is {}", words.text(),
        to.count(), sparse::kMaxElements);
  return {.to = to, .make = [=](const LayerPlace& place) -> std::unique_ptr<Layer> {
            return std::make_unique<PatchEmbedding>(
                place.name, PatchEmbedding::Options{.convolution = placed(convolution, place),
                                                    .first = place.first});
          }};
}

ReadLayer read_transformer(Words& words, const Images& from) {
  const int64_t heads = words.number("its heads");
  int64_t ratio = 4;
  words.options({{.name = "ratio", .number = &ratio}});
  const int64_t width = from.channels;
  check(heads > 0 && width % heads == 0,
        "model.network: the heads of '{}' must divide the width of its tokens, {}", words.text(),
        width);
  check(ratio > 0, "model.network: the ratio of '{}' must be at least 1", words.text());
  const int64_t rows = std::max<int64_t>(3, ratio) * width;
  check(rows <= sparse::kMaxElements / width,
        "model.network: '{}' would have a weight of {} x {} elements; the limit is {}",
        words.text(), rows, width, sparse::kMaxElements);
  return {.to = from, .make = [=](const LayerPlace& place) -> std::unique_ptr<Layer> {
            return std::make_unique<TransformerBlock>(
                place.name, TransformerBlock::Options{.norm = place.norm,
                                                      .attention = {.tokens = from.pixels(),
                                                                    .width = width,
                                                                    .heads = heads,
                                                                    .blocks = place.blocks,
                                                                    .causal = false},
                                                      .mlp = {.tokens = from.pixels(),
                                                              .width = width,
                                                              .hidden = ratio * width,
                                                              .blocks = place.blocks}});
          }};
}

ReadLayer read_token_mean(Words& words, const Images& from) {
  check(words.done(), "model.network: '{}' must be 'token-mean'", words.text());
  check(from.height == from.width,
        "model.network: 'token-mean' needs as many rows of tokens as columns, and gets {}",
        from.text());
  return {.to = {.channels = from.channels},
          .make = [=](const LayerPlace& place) -> std::unique_ptr<Layer> {
            return std::make_unique<TokenMean>(place.name,
                                               TokenMean::Options{.edge = from.height,
                                                                  .width = from.channels,
                                                                  .norm = place.norm,
                                                                  .flat = place.flat});
          }};
}

}  // namespace

extern const LayerKind kPatch, kTransformer, kTokenMean;
const LayerKind kPatch{.name = "patch", .form = "patch WIDTH EXTENT", .read = read_patch};
const LayerKind kTransformer{.name = "transformer",
                             .form = "transformer HEADS [ratio R]",
                             .reads_tokens = true,
                             .block = true,
                             .read = read_transformer};
const LayerKind kTokenMean{
    .name = "token-mean", .form = "token-mean", .reads_tokens = true, .read = read_token_mean};

}  // namespace espalier::model
