// Two IDX files: [length of the first: 2 bytes][the first][the second], as training data and, in
// the other order, as training and validation data.
#include "tests/fuzz/read_images.h"

namespace espalier::fuzz {
namespace {

void read(Input input) {
  static MemoryFile first;
  static MemoryFile second;
  Draws draws(input);
  first.fill(draws.part(draws.take(2)));
  second.fill(draws.rest());
  const std::string a = first.path().string();
  const std::string b = second.path().string();
  read_images({.kind = "images", .train = {a, b}, .validation = {}, .validation_fraction = 0.3});
  read_images({.kind = "images", .train = {b, a}, .validation = {a, b}});
}

const Registration kTarget({"images", read});

}  // namespace
}  // namespace espalier::fuzz
