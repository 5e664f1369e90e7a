#pragma once
// Image datasets: files of a format (image_format.h), normalised, and for training cut and mirrored
// at random.
//
//   number     (x / 255 - mean) / deviation for byte x; data.mean and data.deviation, by channel
//   view       with data.crop = P: a random window of the original size in the image with P zeros
//              (before normalisation) on each side; with data.flip mirrored with probability 1/2
//   order      random: each draw from all images; epochs: sample n = step x global batch + index is
//              element n mod size of a permutation that (seed, n / size) determines
//
// Image and view are pure functions of (seed, step, index in the global batch), so resume and a
// change of the number of ranks keep them.
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "io/config/config.h"
#include "io/data/tokens.h"
#include "src/core/types.h"

namespace espalier::io {

/// Sample `index` of the global batch of a training step.
struct SamplePlace {
  int64_t seed = 0;
  int64_t step = 0;
  int64_t index = 0;
  int64_t global_batch = 1;
};

/// Output (y, x) is number (y + down, x + right) of the image, or byte 0 outside of it; mirrored:
/// (y + down, width - 1 - x + right).
struct ImageView {
  int64_t down = 0;
  int64_t right = 0;
  bool mirrored = false;
  bool operator==(const ImageView&) const = default;
};

struct DrawnImage {
  int64_t image = 0;
  ImageView view;
  bool operator==(const DrawnImage&) const = default;
};

class ImageDataset {
 public:
  static ImageDataset open(const DataConfig& data, Split split);

  int64_t size() const;          ///< images in the split
  const Shape& extents() const;  ///< [height, width, channels]
  int64_t numbers() const;       ///< of one image
  int64_t classes() const;       ///< of the training and validation data
  int32_t label(int64_t image) const;
  /// Writes numbers() numbers, channels last; returns the label.
  int32_t read(int64_t image, std::span<float> out, const ImageView& view = {}) const;
  /// The image and view of a training sample.
  DrawnImage draw(const SamplePlace& place) const;

  /// Of the split's bytes / 255, by channel, from exact sums. A channel of equal bytes has the
  /// deviation 1, which can be divided by.
  struct Statistics {
    std::vector<double> mean;
    std::vector<double> deviation;
  };
  Statistics statistics() const;

 private:
  struct State;
  explicit ImageDataset(std::shared_ptr<const State> state) : state_(std::move(state)) {}
  std::shared_ptr<const State> state_;
};

}  // namespace espalier::io
