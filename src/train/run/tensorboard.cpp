#include "src/train/run/tensorboard.h"

#include <algorithm>
#include <map>

#include "src/core/mirror.h"

namespace espalier::train {
namespace {

/// The tag of a number in metrics.jsonl; those of others begin with "train/".
std::string tag_of(const std::string& key) {
  static const std::map<std::string, std::string> tags{
      {"lr", "train/learning_rate"},
      {"grad_norm", "train/gradient_norm"},
      {"val_loss", "validation/loss"},
      {"val_top1", "validation/top1"},
      {"val_top5", "validation/top5"},
      {"tokens_per_s", "speed/tokens_per_s"},
      {"images_per_s", "speed/images_per_s"},
      {"step_ms", "speed/step_ms"},
      {"compute_ms", "speed/compute_ms"},
      {"wait_ms", "speed/wait_ms"},
      {"collective_ms", "speed/collective_ms"},
      {"update_ms", "speed/update_ms"},
      {"trial_ms", "speed/trial_ms"},
      {"comm_bytes_sent", "communication/bytes_sent"},
      {"allreduce_bytes", "communication/allreduce_bytes"},
      {"p2p_bytes", "communication/p2p_bytes"},
      {"sparsity", "masks/sparsity"},
      {"mask_distance", "masks/distance"}};
  const auto found = tags.find(key);
  return found != tags.end() ? found->second : "train/" + key;
}

io::Histogram histogram_of(Stream& stream, const Tensor& values) {
  constexpr int64_t kCountedAtOnce = int64_t{1} << 20;
  io::Histogram histogram;
  for (int64_t first = 0; first < values.count(); first += kCountedAtOnce) {
    const int64_t count = std::min(kCountedAtOnce, values.count() - first);
    const Mirror piece(stream, values.elements(first, count));
    histogram.add(piece.read().host());
  }
  return histogram;
}

}  // namespace

io::EventSummary events_of_step(const nlohmann::ordered_json& metrics_line) {
  io::EventSummary events;
  for (const auto& [key, value] : metrics_line.items()) {
    if (value.is_number() && key != "step") {
      events.add_scalar(tag_of(key), value.get<double>());
    }
  }
  return events;
}

io::EventSummary events_of_weights(const sparse::Store& store, const std::vector<bool>& prunable) {
  io::EventSummary events;
  const auto parameters = store.parameters();
  for (size_t p = 0; p < parameters.size(); ++p) {
    const sparse::Parameter& parameter = parameters[p];
    if (!parameter.spec.counts()) {
      continue;
    }
    const Tensor values =
        parameter.exact_copy() ? parameter.dense : store.part(store.value(), parameter);
    events.add_histogram("weights/" + parameter.spec.name, histogram_of(store.stream(), values));
    if (prunable[p]) {
      events.add_scalar(
          "density/" + parameter.spec.name,
          static_cast<double>(parameter.kept()) / static_cast<double>(parameter.size()));
    }
  }
  return events;
}

}  // namespace espalier::train
