// Two IDX files: [length of the first: 2 bytes][the first][the second], as training data and, in
// the other order, as training and validation data.
#include "io/data/images.h"
#include "tests/fuzz/fuzz.h"

namespace espalier::fuzz {
namespace {

void read_all(const io::DataConfig& data) {
  for (const io::Split split : {io::Split::train, io::Split::validation}) {
    const auto images = io::ImageDataset::open(data, split);
    std::vector<float> row(static_cast<size_t>(images.pixels()));
    for (int64_t i = 0; i < images.size(); ++i) {
      images.read(i, row);
    }
    images.sample(1, 2, 3);
  }
}

void read(Input input) {
  static MemoryFile first;
  static MemoryFile second;
  Draws draws(input);
  first.fill(draws.part(draws.take(2)));
  second.fill(draws.rest());
  const std::string a = first.path().string();
  const std::string b = second.path().string();
  read_all({.kind = "images", .train = {a, b}, .validation = {}, .validation_fraction = 0.3});
  read_all({.kind = "images", .train = {b, a}, .validation = {a, b}});
}

const Registration kTarget({"images", read});

}  // namespace
}  // namespace espalier::fuzz
