#pragma once
// Image datasets in the IDX format of MNIST and Fashion-MNIST (uncompressed): files of images
// (magic 0x00000803) and of labels (0x00000801), big-endian headers, one byte a pixel or label. The
// file lists hold both in any order; the k-th image file belongs to the k-th label file. Training
// order as for tokens: a pure function of (seed, step, index in the global batch).
#include <cstdint>
#include <memory>
#include <span>

#include "io/config/config.h"
#include "io/data/tokens.h"

namespace espalier::io {

class ImageDataset {
 public:
  static ImageDataset open(const DataConfig& data, Split split);

  int64_t size() const;     ///< images in the split
  int64_t pixels() const;   ///< rows × columns of one image
  int64_t classes() const;  ///< largest label of the training and validation data + 1
  /// Pixels in [0, 1]; returns the label. `row` has pixels() elements.
  int32_t read(int64_t image, std::span<float> row) const;
  /// Which image a training step draws.
  int64_t sample(int64_t seed, int64_t step, int64_t index_in_global_batch) const {
    return sample_index(seed, step, index_in_global_batch, size());
  }

 private:
  struct State;
  explicit ImageDataset(std::shared_ptr<const State> state) : state_(std::move(state)) {}
  std::shared_ptr<const State> state_;
};

}  // namespace espalier::io
