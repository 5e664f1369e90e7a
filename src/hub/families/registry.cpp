#include <array>

#include "src/config/limits.h"
#include "src/hub/families/family.h"

namespace espalier::hub {

extern const Family kGpt2, kLlama, kMistral, kQwen2, kQwen3, kGemma, kGemma3, kNeox, kOpt;

Registry<Family> families() {
  static constexpr std::array<const Family*, 9> kAll{&kGpt2,  &kLlama,  &kMistral, &kQwen2, &kQwen3,
                                                     &kGemma, &kGemma3, &kNeox,    &kOpt};
  return kAll;
}

namespace {

std::vector<std::string> architectures() {
  std::vector<std::string> all;
  for (const Family* family : families()) {
    all.emplace_back(family->architecture);
  }
  return all;
}

/// The first text of `architectures`; empty if there is none.
std::string architecture_in(const ConfigJson& json) {
  const auto found = json.json().find("architectures");
  const bool listed = found != json.json().end() && found->is_array() && !found->empty();
  return listed && found->front().is_string() ? found->front().get<std::string>() : "";
}

}  // namespace

const Family& family_of(const ConfigJson& json) {
  const std::string architecture = architecture_in(json);
  const std::string type = json.word("model_type", "");
  check(!architecture.empty() || !type.empty(),
        "{} names no architecture (\"architectures\", \"model_type\"); name the directory of a "
        "model as save_pretrained writes it",
        json.file());
  for (const Family* family : families()) {
    if (architecture.empty() ? family->name == type : family->architecture == architecture) {
      if (!type.empty() && type != family->name) {  // transformers' Auto classes read it
        json.refuse("model_type", fmt::format("\"architectures\" has {}, whose type is \"{}\"",
                                              architecture, family->name));
      }
      return *family;
    }
  }
  const std::vector<std::string> known = architectures();
  const std::string& wanted = architecture.empty() ? type : architecture;
  const std::string near = config::nearest(wanted, known);
  fail("{}: architecture {} is not supported{}; supported: {}", json.file(),
       Json(wanted).dump(-1, ' ', true, Json::error_handler_t::replace),
       near.empty() ? "" : fmt::format(" (nearest: {})", near), fmt::join(known, ", "));
}

const Family& family_of(const io::ModelConfig& model) {
  for (const Family* family : families()) {
    if (family->fits(model)) {
      return *family;
    }
  }
  fail(
      "no Hugging Face architecture computes this network (model.kind = \"{}\", model.norm = "
      "\"{}\"); supported: {} (docs/hub.md); export plain arrays with -o FILE.h5",
      model.kind, model.norm, fmt::join(architectures(), ", "));
}

void check_common_keys(const ConfigJson& json) {
  if (json.has("quantization_config")) {
    json.refuse("quantization_config",
                "the weights are quantized; import the model that it was made from, or load it in "
                "transformers and save it dequantized");
  }
  json.only("is_encoder_decoder", false, "only decoders are read");
  json.only("add_cross_attention", false, "blocks have no attention to another sequence");
}

}  // namespace espalier::hub
