#include "src/model/networks/image_layers.h"

#include <fmt/ranges.h>

namespace espalier::model {

ESPALIER_REGISTRY(kLayerKinds, LayerKind, kConvolution, kNorm, kLocalNorm, kMaxPooling,
                  kMeanPooling, kLinear, kBasic, kBottleneck, kWide, kPatch, kTransformer,
                  kTokenMean);

Registry<LayerKind> layer_kinds() { return kLayerKinds; }

std::string Images::text() const {
  return tokens ? fmt::format("{} x {} tokens of {}", height, width, channels)
                : fmt::format("{} x {} x {}", height, width, channels);
}

LayerEntry read_layer(const std::string& text, const Images& from, const std::string& before) {
  Words words(text);
  const std::string name = words.word();
  const LayerKind* kind = find_or_null(layer_kinds(), name);
  check(kind != nullptr, "model.network: no layer '{}'; layers are: {}", name,
        fmt::join(names(layer_kinds()), ", "));
  check(kind->may_be_first || !before.empty(),
        "model.network: '{}' cannot be the first layer; begin with a 'conv'", text);
  try {
    check(!kind->reads_tokens || from.tokens,
          "model.network: '{}' reads tokens, and gets images of {}; put a 'patch' before it", text,
          from.text());
    check(kind->reads_tokens || !from.tokens,
          "model.network: '{}' reads images, and gets {}; put 'token-mean' before it", text,
          from.text());
    return {.text = text, .kind = kind, .layer = kind->read(words, from)};
  } catch (const Failure& failure) {
    throw Failure(fmt::format(
        "{}; it reads {}; its form is '{}'", failure.what(),
        before.empty() ? "the data" : fmt::format("the output of '{}'", before), kind->form));
  }
}

}  // namespace espalier::model
