#pragma once
// Writes a Config as TOML, JSON and help, from the schema.
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "io/config/config.h"
#include "src/config/schema.h"

namespace espalier::config {

/// All keys; `parse` returns the same config.
std::string to_toml(const io::Config& config);
nlohmann::json to_json(const io::Config& config);
/// One value as TOML, with its options.
std::string toml_value(const Field& field, const io::Config& config);
/// The word of a key with options, and those that differ from their defaults: "nm:1:4".
std::string text_of(const Field& key, const io::Config& config);
/// The value of an option behind its label: "30,60".
std::string option_value(const Field& option, const io::Config& config);
/// An assignment of this value to an option: section.key = "WORD:LABEL=VALUE".
std::string text_with(const Field& option, const io::Config& config);
/// "section.key=VALUE", as TOML, of each key that `other` changes in `config`.
std::vector<std::string> changes(const io::Config& config, const io::Config& other);
/// The members that differ from their defaults and have no effect: "optimizer.offload (only on a
/// GPU)".
std::vector<std::string> keys_without_effect(const io::Config& config, const RunFacts& run);
/// Every key with its default, limits and meaning, and the choices of each kind with theirs.
std::string help();

}  // namespace espalier::config
