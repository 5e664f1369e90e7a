// Image datasets: formats and their errors, normalisation, random views and epochs.
#include "io/data/images.h"

#include <cmath>
#include <map>
#include <set>

#include "io/data/image_format.h"
#include "tests/support/failure.h"
#include "tests/support/image_files.h"
#include "tests/support/support.h"

namespace espalier::io::images_test {
namespace {

using namespace espalier::testing;

class Images : public ::testing::Test {
 protected:
  std::string file(const std::string& name, const std::string& content) const {
    std::ofstream(dir_ / name, std::ios::binary) << content;
    return (dir_ / name).string();
  }
  /// `count` images of 5 x 4 x channels with different bytes; the labels are their numbers.
  DataConfig idx_data(int count, uint32_t channels = 1) const {
    std::string pixels, labels;
    for (int image = 0; image < count; ++image) {
      labels += static_cast<char>(image);
      for (int i = 0; i < 20 * static_cast<int>(channels); ++i) {
        pixels += static_cast<char>(byte_of(image, i));
      }
    }
    const auto n = static_cast<uint32_t>(count);
    const std::vector<uint32_t> sizes =
        channels == 1 ? std::vector<uint32_t>{n, 5, 4} : std::vector<uint32_t>{n, 5, 4, channels};
    return {
        .kind = "images",
        .train = {file("images", idx_file(sizes, pixels)), file("labels", idx_file({n}, labels))},
        .validation_fraction = 0};
  }
  static uint8_t byte_of(int image, int i) { return static_cast<uint8_t>(image * 37 + i * 11 + 1); }
  static std::string failure(const DataConfig& data) {
    return failure_of([&] { ImageDataset::open(data, Split::train); });
  }
  TempDir dir_;
};

std::vector<float> numbers_of(const ImageDataset& data, int64_t image, const ImageView& view = {}) {
  std::vector<float> out(static_cast<size_t>(data.numbers()));
  data.read(image, out, view);
  return out;
}

TEST_F(Images, OfCifar10AreChannelsLast) {
  const DataConfig data{
      .kind = "images",
      .train = {file("a.bin", cifar_record(0, "\x03") + cifar_record(1, "\x09")),
                file("b.bin", cifar_record(2, std::string(1, '\0')) + cifar_record(3, "\x05"))},
      .validation_fraction = 0.25,
      .format = "cifar10"};
  const auto train = ImageDataset::open(data, Split::train);
  const auto validation = ImageDataset::open(data, Split::validation);
  EXPECT_EQ(train.extents(), (Shape{32, 32, 3}));
  EXPECT_EQ(train.classes(), 10) << "not those that occur";
  ASSERT_EQ(train.size(), 3);
  ASSERT_EQ(validation.size(), 1);
  std::vector<int32_t> labels;
  for (int image = 0; image < 4; ++image) {
    const auto& split = image < 3 ? train : validation;
    const int64_t place = image < 3 ? image : 0;
    labels.push_back(split.label(place));
    const std::vector<float> found = numbers_of(split, place);
    for (int i = 0; i < 3072; ++i) {
      ASSERT_EQ(found[i],
                static_cast<float>(cifar_byte(image, i % 3, i / 96, i / 3 % 32)) / 255.0F);
    }
  }
  EXPECT_EQ(labels, (std::vector<int32_t>{3, 9, 0, 5}));
}

TEST_F(Images, OfCifar100HaveTheirFineLabels) {
  const DataConfig data{
      .kind = "images",
      .train = {file("train.bin", cifar_record(0, "\x13\x63") + cifar_record(1, "\x01\x02"))},
      .validation = {file("test.bin", cifar_record(5, "\x04\x30"))},
      .format = "cifar100"};
  const auto train = ImageDataset::open(data, Split::train);
  EXPECT_EQ(train.classes(), 100);
  EXPECT_EQ(train.size(), 2);
  EXPECT_EQ(train.label(0), 99);
  EXPECT_EQ(train.label(1), 2);
  EXPECT_EQ(numbers_of(train, 1)[1], static_cast<float>(cifar_byte(1, 1, 0, 0)) / 255.0F);
  EXPECT_EQ(ImageDataset::open(data, Split::validation).label(0), 48);
}

TEST_F(Images, OfCifarMustBeWholeAndOfTheirFormat) {
  const std::string ten = file("ten.bin", cifar_record(0, "\x03") + cifar_record(1, "\x04"));
  DataConfig data{.kind = "images", .train = {ten}, .validation_fraction = 0, .format = "cifar100"};
  EXPECT_THAT(failure(data), AllOf(HasSubstr("ten.bin has 6146 bytes, not a multiple of 3074"),
                                   HasSubstr("CIFAR-100"), HasSubstr("data.format")));
  data.format = "cifar10";
  EXPECT_EQ(failure(data), "");
  data.train = {file("cut.bin", cifar_record(0, "\x03").substr(0, 3000))};
  EXPECT_THAT(failure(data), HasSubstr("cut.bin has 3000 bytes, not a multiple of 3073"));
  data.train = {ten, file("label.bin", cifar_record(0, "\x03") + cifar_record(1, "\x0a"))};
  EXPECT_THAT(failure(data), AllOf(HasSubstr("label.bin: byte 0 of image 1 is 10"),
                                   HasSubstr("CIFAR-10 is within 0..9")));
  data.train = {file("data.tar.gz", "\x1f\x8b" + std::string(3071, 'x'))};
  EXPECT_THAT(failure(data), HasSubstr("data.tar.gz is compressed"));
  data.format = "cifar100";
  data.train = {file("coarse.bin", cifar_record(0, "\x14\x03"))};
  EXPECT_THAT(failure(data),
              HasSubstr("byte 0 of image 0 is 20, but label 1 of CIFAR-100 is within"));
  data.train = {file("fine.bin", cifar_record(0, "\x13\x64"))};
  EXPECT_THAT(failure(data), HasSubstr("byte 1 of image 0 is 100, but label 2"));
  data.format = "cifar";
  EXPECT_THAT(failure(data), AllOf(HasSubstr("data.format"), HasSubstr("idx, cifar10, cifar100")));
}

TEST_F(Images, OfIdxMayHaveChannels) {
  const DataConfig data = idx_data(3, 2);
  const auto train = ImageDataset::open(data, Split::train);
  EXPECT_EQ(train.extents(), (Shape{5, 4, 2}));
  const std::vector<float> found = numbers_of(train, 2);
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_EQ(found[i], static_cast<float>(byte_of(2, static_cast<int>(i))) / 255.0F);
  }
}

TEST_F(Images, OfOneDatasetHaveOneSize) {
  DataConfig data = idx_data(2);
  const std::string labels = data.train[1];
  const std::string turned = file("turned", idx_file({2, 4, 5}, std::string(40, 'x')));
  const std::string colours = file("colours", idx_file({2, 5, 2, 2}, std::string(40, 'x')));
  for (const std::string& other : {turned, colours}) {
    DataConfig mixed = data;
    mixed.train = {data.train[0], labels, other, labels};
    EXPECT_THAT(failure(mixed),
                AllOf(HasSubstr("images holds images of [5, 4, 1]"),
                      HasSubstr(other == turned ? "turned holds images of [4, 5, 1]"
                                                : "colours holds images of [5, 2, 2]")));
    mixed.train = data.train;
    mixed.validation = {other, labels};
    EXPECT_THAT(failure(mixed), AllOf(HasSubstr("training images of [5, 4, 1]"), HasSubstr(other)));
  }
  data.train[0] = file("cut", idx_file({2, 5, 2, 2}, std::string(39, 'x')));
  EXPECT_THAT(failure(data), HasSubstr("cut has 59 bytes, but its header of 20 bytes describes "
                                       "[2, 5, 2, 2] bytes"));
  data.train[0] = file("short", idx_file({2, 5}, "").substr(0, 12).replace(3, 1, "\x04"));
  EXPECT_THAT(failure(data), HasSubstr("short is too short"));
  data.train[0] = file("other", std::string(20, 'x'));
  EXPECT_THAT(failure(data), AllOf(HasSubstr("not an IDX file"), HasSubstr("data.format")));
}

TEST_F(Images, AreNormalised) {
  DataConfig data = idx_data(3, 2);
  data.mean = {0.25, 0.5};
  data.deviation = {0.5, 0.125};
  std::vector<float> found = numbers_of(ImageDataset::open(data, Split::train), 1);
  for (size_t i = 0; i < found.size(); ++i) {
    const double pixel = byte_of(1, static_cast<int>(i)) / 255.0;
    EXPECT_FLOAT_EQ(found[i],
                    static_cast<float>((pixel - data.mean[i % 2]) / data.deviation[i % 2]));
  }
  data.mean = {0.5};  // one number is that of all channels
  data.deviation = {};
  found = numbers_of(ImageDataset::open(data, Split::train), 1);
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_FLOAT_EQ(found[i], static_cast<float>(byte_of(1, static_cast<int>(i)) / 255.0 - 0.5));
  }
  data.mean = {0.5, 0.5, 0.5};
  EXPECT_THAT(failure(data), AllOf(HasSubstr("data.mean has 3 numbers"), HasSubstr("2 channels"),
                                   HasSubstr("images have")));
  data.mean = {};
  data.deviation = {0.5, 0.5, 0.5};
  EXPECT_THAT(failure(data), HasSubstr("data.deviation has 3 numbers"));
}

TEST_F(Images, StatisticsAreThoseOfTheTrainingImages) {
  DataConfig data = idx_data(8, 3);
  data.validation_fraction = 0.25;
  const auto train = ImageDataset::open(data, Split::train);
  const ImageDataset::Statistics found = train.statistics();
  for (size_t channel = 0; channel < 3; ++channel) {
    double sum = 0, squares = 0, count = 0;
    for (int64_t image = 0; image < 6; ++image) {
      const std::vector<float> all = numbers_of(train, image);
      for (size_t i = channel; i < all.size(); i += 3, ++count) {
        sum += static_cast<double>(all[i]);
        squares += static_cast<double>(all[i]) * static_cast<double>(all[i]);
      }
    }
    const double mean = sum / count;
    EXPECT_NEAR(found.mean[channel], mean, 1e-7);
    EXPECT_NEAR(found.deviation[channel], std::sqrt(squares / count - mean * mean), 1e-6);
  }
  // Normalised by them, the images have mean 0 and deviation 1.
  data.mean = found.mean;
  data.deviation = found.deviation;
  const auto normalised = ImageDataset::open(data, Split::train);
  EXPECT_EQ(normalised.statistics().mean, found.mean) << "of bytes, whatever the keys are";
  double sum = 0, squares = 0;
  for (int64_t image = 0; image < 6; ++image) {
    for (const float number : numbers_of(normalised, image)) {
      sum += static_cast<double>(number);
      squares += static_cast<double>(number) * static_cast<double>(number);
    }
  }
  EXPECT_NEAR(sum / 360, 0, 1e-6);
  EXPECT_NEAR(squares / 360, 1, 1e-6);
  const std::string grey = file("grey", idx_file({1, 1, 2}, "xx"));
  const auto constant = ImageDataset::open({.kind = "images",
                                            .train = {grey, file("one", idx_file({1}, "\x01"))},
                                            .validation_fraction = 0},
                                           Split::train)
                            .statistics();
  EXPECT_EQ(constant.mean[0], 'x' / 255.0);
  EXPECT_EQ(constant.deviation[0], 1);
}

/// The padded image as an array, a window of it, then its mirror image.
std::vector<float> slow_view(const std::vector<uint8_t>& bytes, const Shape& extents,
                             const DataConfig& data, const ImageView& view) {
  const int64_t pad = data.crop;
  const int64_t height = extents[0], width = extents[1], channels = extents[2];
  const int64_t wide = width + 2 * pad;
  std::vector<uint8_t> padded(static_cast<size_t>((height + 2 * pad) * wide * channels), 0);
  for (int64_t i = 0; i < std::ssize(bytes); ++i) {
    const int64_t pixel = i / channels;
    const int64_t at = (pixel / width + pad) * wide + pixel % width + pad;
    padded[at * channels + i % channels] = bytes[i];
  }
  std::vector<float> out;
  for (int64_t y = 0; y < height; ++y) {
    for (int64_t x = 0; x < width; ++x) {
      for (int64_t c = 0; c < channels; ++c) {
        const int64_t column = view.mirrored ? width - 1 - x : x;
        const int64_t at = (y + pad + view.down) * wide + column + pad + view.right;
        const auto k = static_cast<size_t>(c);
        out.push_back(static_cast<float>((padded[at * channels + c] / 255.0 - data.mean[k]) /
                                         data.deviation[k]));
      }
    }
  }
  return out;
}

TEST_F(Images, ViewsAreWindowsOfThePaddedImage) {
  std::vector<DataConfig> sets{idx_data(2, 3)};
  sets.push_back({.kind = "images",
                  .train = {file("a.bin", cifar_record(0, "\x01") + cifar_record(1, "\x02"))},
                  .validation_fraction = 0,
                  .format = "cifar10"});
  for (DataConfig& data : sets) {
    data.mean = {0.1, 0.2, 0.3};
    data.deviation = {0.25, 0.5, 0.75};
    data.crop = 3;
    const auto train = ImageDataset::open(data, Split::train);
    std::vector<uint8_t> bytes;
    for (int i = 0; i < train.numbers(); ++i) {
      bytes.push_back(data.format == "idx" ? byte_of(1, i)
                                           : cifar_byte(1, i % 3, i / 96, i / 3 % 32));
    }
    for (int64_t down = -3; down <= 3; ++down) {
      for (int64_t right = -3; right <= 3; ++right) {
        for (const bool mirrored : {false, true}) {
          const ImageView view{down, right, mirrored};
          ASSERT_EQ(numbers_of(train, 1, view), slow_view(bytes, train.extents(), data, view))
              << data.format << " " << down << " " << right << " " << mirrored;
        }
      }
    }
  }
}

TEST_F(Images, EachViewIsDrawnAlikeOften) {
  DataConfig data = idx_data(2);
  data.crop = 2;
  data.flip = true;
  const auto train = ImageDataset::open(data, Split::train);
  std::map<std::tuple<int64_t, int64_t, bool>, int> counts;
  std::set<int64_t> images;
  constexpr int kDraws = 50'000;
  for (int64_t i = 0; i < kDraws; ++i) {
    const DrawnImage drawn =
        train.draw({.seed = 5, .step = i / 100, .index = i % 100, .global_batch = 100});
    ++counts[{drawn.view.down, drawn.view.right, drawn.view.mirrored}];
    images.insert(drawn.image);
  }
  EXPECT_EQ(images.size(), 2U);
  ASSERT_EQ(counts.size(), 50U) << "5 x 5 offsets, mirrored or not";
  EXPECT_EQ(std::get<0>(counts.begin()->first), -2);
  EXPECT_EQ(std::get<0>(counts.rbegin()->first), 2);
  double chi_square = 0;
  for (const auto& [view, count] : counts) {
    chi_square += (count - kDraws / 50) * (count - kDraws / 50) / (kDraws / 50.0);
  }
  EXPECT_NEAR(chi_square, 49, 5 * std::sqrt(2 * 49.0));
  data.crop = 0;
  data.flip = false;
  EXPECT_EQ(ImageDataset::open(data, Split::train).draw({.index = 3}).view, ImageView());
  data.crop = 4;
  EXPECT_THAT(failure(data), AllOf(HasSubstr("data.crop = 4"), HasSubstr("[5, 4, 1]")));
}

TEST_F(Images, ViewsDependOnSeedStepAndIndexOnly) {
  DataConfig data = idx_data(10);
  data.crop = 3;
  data.flip = true;
  const auto random = ImageDataset::open(data, Split::train);
  const SamplePlace place{.seed = 3, .step = 4, .index = 5, .global_batch = 8};
  const DrawnImage drawn = random.draw(place);
  EXPECT_EQ(random.draw(place), drawn);
  // These numbers fix the views permanently: a resume under a later version must continue them.
  EXPECT_EQ(drawn.view, (ImageView{-2, 3, true}));
  EXPECT_EQ(drawn.image, sample_index(3, 4, 5, 10));
  data.order = "epochs";
  EXPECT_EQ(ImageDataset::open(data, Split::train).draw(place).view, drawn.view);
  int same = 0;
  for (int64_t i = 0; i < 100; ++i) {
    SamplePlace other = place;
    other.seed = i + 10;
    same += random.draw(other).view == drawn.view ? 1 : 0;
    other = place;
    other.step = i + 10;
    same += random.draw(other).view == drawn.view ? 1 : 0;
    other = place;
    other.index = i + 10;
    same += random.draw(other).view == drawn.view ? 1 : 0;
  }
  EXPECT_LT(same, 15) << "of 300, of 98 views";
}

TEST_F(Images, EpochsHaveEachImageOnce) {
  DataConfig data = idx_data(10);
  data.order = "epochs";
  const auto train = ImageDataset::open(data, Split::train);
  const auto sequence = [&](int64_t seed, int64_t global_batch, int64_t count) {
    std::vector<int64_t> images;
    for (int64_t n = 0; n < count; ++n) {
      images.push_back(train
                           .draw({.seed = seed,
                                  .step = n / global_batch,
                                  .index = n % global_batch,
                                  .global_batch = global_batch})
                           .image);
    }
    return images;
  };
  const std::vector<int64_t> images = sequence(1, 4, 50);
  std::set<std::vector<int64_t>> orders;
  for (size_t epoch = 0; epoch < 5; ++epoch) {
    const auto from = images.begin() + static_cast<ptrdiff_t>(10 * epoch);
    orders.insert({from, from + 10});
    EXPECT_EQ(std::set<int64_t>(from, from + 10).size(), 10U) << epoch;
  }
  EXPECT_EQ(orders.size(), 5U);
  EXPECT_EQ(sequence(1, 7, 50), images) << "batches cut the same sequence";
  EXPECT_NE(sequence(2, 4, 50), images);
}

}  // namespace
}  // namespace espalier::io::images_test
