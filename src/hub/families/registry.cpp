#include "src/config/limits.h"
#include "src/hub/families/family.h"

namespace espalier::hub {

ESPALIER_REGISTRY(kFamilies, Family, kGpt2, kLlama, kMistral, kQwen2, kQwen3, kGemma, kGemma3,
                  kNeox, kOpt);

Registry<Family> families() { return kFamilies; }

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
    if (architecture.empty()
            ? family->name == type
            : family->architecture == architecture || family->base == architecture) {
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
  json.only("is_causal", true, "attention is causal");
  if (json.has_members("pruned_heads")) {
    json.refuse("pruned_heads", "all blocks have all heads");
  }
  for (const char* key : {"per_layer_config", "transformers_weights"}) {
    if (json.has(key)) {
      json.refuse(key, "all blocks are alike, and weights are in model.safetensors or its shards");
    }
  }
}

std::vector<std::string> keys_without_effect(const ConfigJson& json) {
  // Keys of every model, and keys that matter only in training, in other tasks or in generation.
  static constexpr std::string_view kKnown =
      " _attn_implementation_autoset _commit_hash _flash_attn_2_enabled _model_name_or_path"
      " _name_or_path _sliding_window_pattern activation_dropout architectures"
      " attention_dropout attn_implementation attn_pdrop auto_map bos_token_id"
      " cache_implementation chunk_size_feed_forward classifier_dropout"
      " cross_attention_hidden_size dropout dtype embd_pdrop eos_token_id finetuning_task"
      " gradient_checkpointing hidden_dropout id2label init_std initializer_range"
      " is_decoder label2id layerdrop model_max_length model_type n_ctx name_or_path"
      " num_labels output_attentions output_hidden_states output_past pad_token_id prefix"
      " pretraining_tp problem_type reorder_and_upcast_attn resid_pdrop return_dict"
      " summary_activation summary_first_dropout summary_proj_to_labels summary_type"
      " summary_use_proj task_specific_params tie_encoder_decoder tokenizer_class"
      " torch_dtype torchscript transformers_version unk_token_id use_bfloat16 use_cache ";
  std::vector<std::string> keys = json.unread();
  std::erase_if(keys,
                [](const std::string& key) { return kKnown.find(" " + key + " ") != kKnown.npos; });
  return keys;
}

}  // namespace espalier::hub
