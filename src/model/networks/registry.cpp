#include "src/model/networks/registry.h"

#include <array>

namespace espalier::model {

extern const NetworkKind kGpt, kMlp;

Registry<NetworkKind> networks() {
  static constexpr std::array<const NetworkKind*, 2> kAll{&kGpt, &kMlp};
  return kAll;
}

const NetworkKind& network_of(const io::ModelConfig& config) {
  return find(networks(), "model.kind", config.kind);
}

size_t layer_count(const io::ModelConfig& config) { return network_of(config).layer_count(config); }

std::vector<std::unique_ptr<Layer>> make_layers(const io::ModelConfig& config,
                                                const ProblemShape& problem, size_t first,
                                                size_t end) {
  const NetworkKind& kind = network_of(config);
  check(problem.input_dtype == kind.input_dtype,
        "model.kind = \"{}\" reads {} inputs, and the data hold {}; set "
        "data.kind to one of {}",
        kind.name, name_of(kind.input_dtype), name_of(problem.input_dtype),
        fmt::join(kind.data_kinds, ", "));
  require(first <= end && end <= kind.layer_count(config), "layers of the network", first, end,
          kind.layer_count(config));
  std::vector<std::unique_ptr<Layer>> layers;
  for (size_t number = first; number < end; ++number) {
    layers.push_back(kind.make_layer(config, problem, number));
  }
  return layers;
}

std::vector<std::unique_ptr<Layer>> make_layers(const io::ModelConfig& config,
                                                const ProblemShape& problem) {
  return make_layers(config, problem, 0, layer_count(config));
}

}  // namespace espalier::model
