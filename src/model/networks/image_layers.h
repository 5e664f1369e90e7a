#pragma once
// The kinds of layers that `model.network` may list, and the layer of one line. A kind is a file in
// image_layers/ and a row in image_layers.cpp.
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "src/core/registry.h"
#include "src/model/layer.h"
#include "src/model/networks/layer_list.h"

namespace espalier::model {

/// Images between two layers; a vector: pixels 1 x 1.
struct Images {
  int64_t height = 1, width = 1, channels = 1;
  /// A residual stream (layers/transformer.h): height x width tokens, `channels` is its width.
  bool tokens = false;
  int64_t pixels() const { return height * width; }
  int64_t count() const { return pixels() * channels; }
  std::string text() const;  ///< "28 x 28 x 1", "7 x 7 tokens of 64"
};

/// The place of a layer in its network.
struct LayerPlace {
  std::string name;
  bool first = false;  ///< it reads the data
  bool flat = false;   ///< the next layer reads whole images
  std::string norm;    ///< model.norm
  int64_t blocks = 0;  ///< layers of the network whose kind is a `block`
};

/// A layer as its kind has read it.
struct ReadLayer {
  Images to;  ///< its output
  std::function<std::unique_ptr<Layer>(const LayerPlace& place)> make;
};

struct LayerKind {
  std::string_view name;
  std::string_view form;       ///< "conv OUT EXTENT [stride S] …"
  bool reads_vectors = false;  ///< whole images as vectors
  bool reads_tokens = false;   ///< a residual stream instead of images
  bool may_be_first = true;
  bool block = false;  ///< LayerPlace::blocks counts it
  /// Reads the words after the name of a layer that reads images `from`. Throws Failure.
  ReadLayer (*read)(Words& words, const Images& from) = nullptr;
};

Registry<LayerKind> layer_kinds();

/// One layer of the list.
struct LayerEntry {
  std::string text;  ///< without the number of repetitions
  const LayerKind* kind = nullptr;
  ReadLayer layer;
};

/// The layer `text`, which reads images `from`, the output of layer `before` (empty: the data).
/// Throws Failure that names both if their shapes do not meet.
LayerEntry read_layer(const std::string& text, const Images& from, const std::string& before);

}  // namespace espalier::model
