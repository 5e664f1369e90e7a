// "linear": a hidden layer of a perceptron.
#include "src/model/layers/perceptron.h"
#include "src/model/networks/image_layers.h"

namespace espalier::model {
namespace {

ReadLayer read_linear(Words& words, const Images& from) {
  const int64_t out = words.number("its outputs");
  check(out > 0 && words.done(), "model.network: '{}' must be 'linear OUT'", words.text());
  check(from.count() <= sparse::kMaxElements / out,
        "model.network: '{}' would have a weight of {} x {} elements; the limit is {}",
        words.text(), out, from.count(), sparse::kMaxElements);
  return {.to = {.channels = out}, .make = [=](const LayerPlace& place) -> std::unique_ptr<Layer> {
            return std::make_unique<Hidden>(place.name, from.count(), out, place.first);
          }};
}

}  // namespace

extern const LayerKind kLinear;
const LayerKind kLinear{
    .name = "linear", .form = "linear OUT", .reads_vectors = true, .read = read_linear};

}  // namespace espalier::model
