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
/// One value as TOML.
std::string toml_value(const Field& field, const io::Config& config);
/// "section.key=VALUE", as TOML, of each key that `other` changes in `config`.
std::vector<std::string> changes(const io::Config& config, const io::Config& other);
/// Every key with its default, limits and meaning, and the choices of each kind with theirs.
std::string help();

}  // namespace espalier::config
