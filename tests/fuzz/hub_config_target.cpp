// config.json of a Hugging Face model, and the text that a checkpoint holds about its files, with a
// byte 0 between them: reads the keys, and lists the tensors of the network.
#include "src/core/error.h"
#include "src/hub/directory.h"
#include "src/hub/layout.h"
#include "tests/fuzz/fuzz.h"

namespace espalier::fuzz {
namespace {

void read_hub_config(Input input) {
  const std::vector<Input> parts = split(input, 0, 2);
  const hub::ConfigJson json(text_of(parts[0]), "config.json");
  hub::check_common_keys(json);
  const hub::Family& family = hub::family_of(json);
  io::ModelConfig model;
  family.read(json, model);
  model.context = json.number(std::string(family.positions_key));
  hub::check_sizes(model, json.file());
  const hub::FileFacts facts = hub::file_facts_of(text_of(parts[1]), "checkpoint");
  require(hub::file_facts_of(hub::text_of(facts), "checkpoint").prefix == facts.prefix,
          "facts are read as they are written", facts.prefix);
  constexpr int64_t kMostLayers = 100;
  if (model.layers <= kMostLayers) {
    const hub::Layout layout(family, model, hub::specs_of(model), facts.prefix);
    require(!layout.tensors().empty(), "a network has tensors");
  }
}

const Registration kHubConfig({"hub_config", read_hub_config});

}  // namespace
}  // namespace espalier::fuzz
