// Two files of CIFAR records: [format: 1 byte][length of the first: 2 bytes][the first][the
// second], as training data and as training and validation data.
#include "tests/fuzz/read_images.h"

namespace espalier::fuzz {
namespace {

void read(Input input) {
  static MemoryFile first;
  static MemoryFile second;
  Draws draws(input);
  const char* format = draws.below(2, 1) == 0 ? "cifar10" : "cifar100";
  first.fill(draws.part(draws.take(2)));
  second.fill(draws.rest());
  const std::string a = first.path().string();
  const std::string b = second.path().string();
  read_images({.kind = "images",
               .train = {a, b},
               .validation = {},
               .validation_fraction = 0.5,
               .format = format,
               .crop = 4});
  read_images({.kind = "images", .train = {b}, .validation = {a}, .format = format});
}

const Registration kTarget({"cifar", read});

}  // namespace
}  // namespace espalier::fuzz
