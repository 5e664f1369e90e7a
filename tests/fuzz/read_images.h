#pragma once
// Reads everything that a run may read of image files.
#include "io/data/images.h"
#include "tests/fuzz/fuzz.h"

namespace espalier::fuzz {

inline void read_images(io::DataConfig data) {
  data.flip = true;
  data.order = "epochs";
  for (const io::Split split : {io::Split::train, io::Split::validation}) {
    const auto images = io::ImageDataset::open(data, split);
    std::vector<float> row(static_cast<size_t>(images.numbers()));
    for (int64_t i = 0; i < images.size(); ++i) {
      images.read(i, row);
      images.read(i, row, {.down = 1 - data.crop, .right = data.crop, .mirrored = true});
    }
    const io::DrawnImage drawn = images.draw({.seed = 1, .step = 2, .index = 3});
    images.read(drawn.image, row, drawn.view);
    images.statistics();
  }
}

}  // namespace espalier::fuzz
