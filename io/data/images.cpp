#include "io/data/images.h"

#include <algorithm>
#include <cmath>

#include "io/data/image_format.h"
#include "io/data/permutation.h"
#include "src/core/error.h"
#include "src/core/rng.h"

namespace espalier::io {
namespace {

/// The numbers of all bytes, by channel.
using ByteTable = std::array<float, 256>;

/// One number for all channels, one for each, or none.
double of_channel(std::span<const double> numbers, int64_t channel, double without) {
  return numbers.empty()       ? without
         : numbers.size() == 1 ? numbers[0]
                               : numbers[static_cast<size_t>(channel)];
}

void check_channels(const char* key, std::span<const double> numbers, const ImageFiles& files) {
  check(numbers.size() <= 1 || std::ssize(numbers) == files.extents[2],
        "{} has {} numbers, but the images of {} have {} channel{}; give one number, or one for "
        "each channel",
        key, numbers.size(), files.blocks.front().file, files.extents[2],
        files.extents[2] == 1 ? "" : "s");
}

std::vector<ByteTable> tables_of(const DataConfig& data, const ImageFiles& files) {
  check_channels("data.mean", data.mean, files);
  check_channels("data.deviation", data.deviation, files);
  std::vector<ByteTable> tables(static_cast<size_t>(files.extents[2]));
  for (size_t channel = 0; channel < tables.size(); ++channel) {
    const double mean = of_channel(data.mean, static_cast<int64_t>(channel), 0);
    const double deviation = of_channel(data.deviation, static_cast<int64_t>(channel), 1);
    for (size_t byte = 0; byte < 256; ++byte) {
      tables[channel][byte] =
          static_cast<float>((static_cast<double>(byte) / 255 - mean) / deviation);
    }
  }
  return tables;
}

std::vector<std::string> image_paths(const ImageFiles& files) {
  std::vector<std::string> paths;
  for (const ImageBlock& block : files.blocks) {
    paths.push_back(block.file);
  }
  return paths;
}

ImageView view_of(const SamplePlace& place, const DataConfig& data) {
  constexpr uint64_t kViews = 0x76696577;  // a stream of its own
  const Philox bits = philox(mix(static_cast<uint64_t>(place.seed), kViews),
                             static_cast<uint64_t>(place.step), static_cast<uint64_t>(place.index));
  const auto offsets = static_cast<uint64_t>(2 * data.crop + 1);
  const auto offset = [&](uint32_t word) {
    return static_cast<int64_t>(below(uint64_t{word} << 32, offsets)) - data.crop;
  };
  return {.down = offset(bits[0]),
          .right = offset(bits[1]),
          .mirrored = data.flip && (bits[2] & 1U) != 0};
}

}  // namespace

struct ImageDataset::State {
  ImageFiles files;
  DataConfig data;
  std::vector<ByteTable> tables;  ///< [channel]
  int64_t begin = 0;
  int64_t end = 0;
  int64_t classes = 0;

  /// Block and number in it of an image of the split.
  std::pair<const ImageBlock*, int64_t> locate(int64_t image) const {
    require(image >= 0 && image < end - begin, "an image lies within the split", image, begin, end);
    int64_t at = begin + image;
    const ImageBlock* block = files.blocks.data();
    while (at >= block->count) {
      at -= block->count;
      ++block;
    }
    return {block, at};
  }
};

ImageDataset ImageDataset::open(const DataConfig& data, Split split) {
  check(data.kind == "images", "data.kind = \"{}\" holds no images; set data.kind = \"images\"",
        data.kind);
  check(!data.train.empty(), "data.train is empty; name files of images and their labels");
  const ImageFormat& format = image_format_of(data);
  const bool own_files = !data.validation.empty();
  ImageFiles train = format.open(data.train);
  ImageFiles validation = format.open(data.validation);
  // Pictures may share a file of labels.
  check_disjoint(image_paths(train), image_paths(validation), data.validation_fraction);
  check(!own_files || train.extents == validation.extents,
        "{} holds training images of {}, but {} holds validation images of {} (height, width, "
        "channels); name files with images of one size",
        train.blocks.front().file, train.extents.text(),
        own_files ? validation.blocks.front().file : "", validation.extents.text());
  check(data.crop < std::min(train.extents[0], train.extents[1]),
        "data.crop = {} may cut windows without a pixel of the images of {}, which are {} (height, "
        "width, channels); set a smaller data.crop",
        data.crop, train.blocks.front().file, train.extents.text());
  const bool reads_own = split == Split::validation && own_files;
  auto state =
      std::make_shared<State>(State{.files = {},
                                    .data = data,
                                    .tables = tables_of(data, train),
                                    .classes = std::max(train.classes, validation.classes)});
  const int64_t size = reads_own ? validation.size() : train.size();
  const auto tail =
      own_files
          ? int64_t{0}
          : static_cast<int64_t>(std::floor(static_cast<double>(size) * data.validation_fraction));
  state->begin = split == Split::validation && !own_files ? size - tail : 0;
  state->end = split == Split::train ? size - tail : size;
  state->files = reads_own ? std::move(validation) : std::move(train);
  check(state->begin < state->end,
        "the {} data has no image; use more images or another data.validation_fraction",
        name_of(split));
  return ImageDataset(std::move(state));
}

int64_t ImageDataset::size() const { return state_->end - state_->begin; }
const Shape& ImageDataset::extents() const { return state_->files.extents; }
int64_t ImageDataset::numbers() const { return extents().count(); }
int64_t ImageDataset::classes() const { return state_->classes; }

int32_t ImageDataset::label(int64_t image) const {
  const auto [block, at] = state_->locate(image);
  return block->labels[at * block->label_stride];
}

int32_t ImageDataset::read(int64_t image, std::span<float> out, const ImageView& view) const {
  require(std::ssize(out) == numbers(), "the output holds one image", out.size());
  const auto [block, at] = state_->locate(image);
  const uint8_t* from = block->pixels + at * block->pixel_stride;
  const int64_t height = extents()[0];
  const int64_t width = extents()[1];
  const int64_t channels = extents()[2];
  const bool planar = state_->files.planar;
  const int64_t step = planar ? 1 : channels;  // bytes from a pixel to the next
  // Columns [first, last) of the window lie in the image.
  const int64_t first = std::clamp<int64_t>(-view.right, 0, width);
  const int64_t last = std::clamp<int64_t>(width - view.right, 0, width);
  for (int64_t y = 0; y < height; ++y) {
    const int64_t row = y + view.down;
    const bool inside = row >= 0 && row < height;
    for (int64_t channel = 0; channel < channels; ++channel) {
      const ByteTable& table = state_->tables[static_cast<size_t>(channel)];
      float* to = out.data() + y * width * channels + channel;
      const auto target = [&](int64_t x) { return (view.mirrored ? width - 1 - x : x) * channels; };
      const auto clear = [&](int64_t begin, int64_t end) {
        for (int64_t x = begin; x < end; ++x) {
          to[target(x)] = table[0];
        }
      };
      if (!inside) {
        clear(0, width);
        continue;
      }
      clear(0, first);
      const uint8_t* line =
          from + (planar ? (channel * height + row) * width : row * width * channels + channel);
      for (int64_t x = first; x < last; ++x) {
        to[target(x)] = table[line[(x + view.right) * step]];
      }
      clear(last, width);
    }
  }
  return block->labels[at * block->label_stride];
}

DrawnImage ImageDataset::draw(const SamplePlace& place) const {
  constexpr uint64_t kEpochs = 0x65706f63;  // a stream of its own
  DrawnImage drawn;
  if (state_->data.crop > 0 || state_->data.flip) {
    drawn.view = view_of(place, state_->data);
  }
  if (state_->data.order == "epochs") {
    const int64_t number = place.step * place.global_batch + place.index;
    const uint64_t key = mix(mix(static_cast<uint64_t>(place.seed), kEpochs),
                             static_cast<uint64_t>(number / size()));
    drawn.image = permuted(key, number % size(), size());
  } else {
    drawn.image = sample_index(place.seed, place.step, place.index, size());
  }
  return drawn;
}

ImageDataset::Statistics ImageDataset::statistics() const {
  const int64_t channels = extents()[2];
  const int64_t pixels = extents()[0] * extents()[1];
  const bool planar = state_->files.planar;
  std::vector<std::array<uint64_t, 256>> counts(static_cast<size_t>(channels));
  for (int64_t image = 0; image < size(); ++image) {
    const auto [block, at] = state_->locate(image);
    const uint8_t* from = block->pixels + at * block->pixel_stride;
    for (int64_t channel = 0; channel < channels; ++channel) {
      auto& found = counts[static_cast<size_t>(channel)];
      const uint8_t* byte = from + (planar ? channel * pixels : channel);
      for (int64_t pixel = 0; pixel < pixels; ++pixel) {
        ++found[*byte];
        byte += planar ? 1 : channels;
      }
    }
  }
  Statistics result;
  const auto n = static_cast<uint64_t>(size() * pixels);
  for (const auto& found : counts) {
    uint64_t sum = 0;
    uint64_t squares = 0;
    for (uint64_t byte = 0; byte < 256; ++byte) {
      sum += byte * found[byte];
      squares += byte * byte * found[byte];
    }
    const uint128 spread = uint128{n} * squares - uint128{sum} * sum;  // n^2 times the variance
    const double scale = 255.0 * static_cast<double>(n);
    result.mean.push_back(static_cast<double>(sum) / scale);
    result.deviation.push_back(spread == 0 ? 1 : std::sqrt(static_cast<double>(spread)) / scale);
  }
  return result;
}

}  // namespace espalier::io
