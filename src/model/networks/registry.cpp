#include "src/model/networks/registry.h"

namespace espalier::model {

ESPALIER_REGISTRY(kNetworks, NetworkKind, kGpt, kDecoder, kMlp, kVision);

Registry<NetworkKind> networks() { return kNetworks; }

const NetworkKind& network_of(const io::ModelConfig& config) {
  return find(networks(), "model.kind", config.kind);
}

Layers make_layers(const io::ModelConfig& config, const ProblemShape& problem) {
  const NetworkKind& kind = network_of(config);
  check(problem.input_dtype == kind.input_dtype,
        "model.kind = \"{}\" reads {} inputs, and the data hold {}; set "
        "data.kind to one of {}",
        kind.name, name_of(kind.input_dtype), name_of(problem.input_dtype),
        fmt::join(kind.data_kinds, ", "));
  Layers layers;
  for (size_t number = 0; number < kind.layer_count(config); ++number) {
    layers.push_back(kind.make_layer(config, problem, number));
  }
  return layers;
}

}  // namespace espalier::model
