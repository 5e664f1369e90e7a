#pragma once
// The kinds of layers that `model.network` may list, and the layer of one entry.
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "src/core/registry.h"
#include "src/model/layers/convolution.h"
#include "src/model/networks/layer_list.h"

namespace espalier::model {

/// Images between two layers; a vector: pixels 1 x 1.
struct Images {
  int64_t height = 1, width = 1, channels = 1;
  /// A residual stream (layers/transformer.h): height x width tokens, `channels` is its width.
  bool tokens = false;
  int64_t count() const { return height * width * channels; }
  std::string text() const;  ///< "28 x 28 x 1", "7 x 7 tokens of 64"
};

struct LayerKind;

/// One layer of the list.
struct LayerEntry {
  std::string text;  ///< without the number of repetitions
  const LayerKind* kind = nullptr;
  Images from, to;
  kernels::Window window{};  ///< of pooling
  kernels::LocalNorm local_norm{};
  std::vector<Convolution::Options> convolutions{};  ///< in the order of the forward pass
  std::optional<Convolution::Options> projection{};  ///< of a shortcut
  bool norm = false, rectify = true;
  int64_t heads = 0, ratio = 4;  ///< of a transformer block; 0: another layer
};

/// The place of a layer in its network.
struct LayerPlace {
  std::string name;
  bool first = false;  ///< it reads the data
  bool flat = false;   ///< the next layer reads whole images
  std::string norm;    ///< model.norm
  int64_t blocks = 0;  ///< transformer blocks of the network
};

struct LayerKind {
  std::string_view name;
  std::string_view form;       ///< "conv OUT EXTENT [stride S] …"
  bool reads_vectors = false;  ///< whole images as vectors
  bool reads_tokens = false;   ///< a residual stream instead of images
  bool may_be_first = true;
  /// Reads the words after the name. `entry.from` is set; sets all others. Throws Failure.
  void (*read)(Words& words, LayerEntry& entry) = nullptr;
  std::unique_ptr<Layer> (*make)(const LayerEntry& entry, const LayerPlace& place) = nullptr;
};

Registry<LayerKind> layer_kinds();

/// The layer `text`, which reads images `from`, the output of layer `before` (empty: the data).
/// Throws Failure that names both if their shapes do not meet.
LayerEntry read_layer(const std::string& text, const Images& from, const std::string& before);

}  // namespace espalier::model
