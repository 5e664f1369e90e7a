// "norm": batch norm and a rectifier. "lrn": local response normalisation.
#include "src/model/layers/images.h"
#include "src/model/networks/image_layers.h"

namespace espalier::model {
namespace {

ReadLayer read_norm(Words& words, const Images& from) {
  check(words.done(), "model.network: '{}' must be 'norm'", words.text());
  return {.to = from, .make = [=](const LayerPlace& place) -> std::unique_ptr<Layer> {
            return std::make_unique<NormLayer>(place.name,
                                               NormLayer::Options{.pixels = from.pixels(),
                                                                  .channels = from.channels,
                                                                  .first = place.first,
                                                                  .flat = place.flat});
          }};
}

ReadLayer read_local_norm(Words& words, const Images& from) {
  kernels::LocalNorm norm;
  if (!words.done()) {
    norm.extent = words.number("its extent in channels");
  }
  check(words.done() && norm.extent % 2 == 1 && norm.extent <= kernels::LocalNorm::kLargest,
        "model.network: '{}' must be 'lrn' or 'lrn EXTENT', with an odd number of channels up to "
        "{}",
        words.text(), kernels::LocalNorm::kLargest);
  return {.to = from, .make = [=](const LayerPlace& place) -> std::unique_ptr<Layer> {
            return std::make_unique<LocalNormLayer>(
                place.name, LocalNormLayer::Options{.norm = norm,
                                                    .pixels = from.pixels(),
                                                    .channels = from.channels,
                                                    .first = place.first,
                                                    .flat = place.flat});
          }};
}

}  // namespace

extern const LayerKind kNorm, kLocalNorm;
const LayerKind kNorm{.name = "norm", .form = "norm", .read = read_norm};
const LayerKind kLocalNorm{.name = "lrn", .form = "lrn [EXTENT]", .read = read_local_norm};

}  // namespace espalier::model
