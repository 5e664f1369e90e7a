#pragma once
// Keys, and values of keys, that earlier versions of the program had. Configs that old runs and
// checkpoints hold stay readable: a removed key with its old default is ignored. Anything else is
// an error that says what to write instead. The same holds for members that became options or
// hidden rows of the schema; configs of old runs set them.
//
// To remove a key and its member: delete its row in schema.cpp and add one in removed.cpp.
#include <string>
#include <string_view>

namespace espalier::config {

/// The name that a renamed key has now.
std::string_view current_key(std::string_view key);
/// The advice for a removed key ("section.name"): its replacement. Empty: no such key was removed.
std::string_view removed_key(std::string_view key);
/// Whether this TOML value was the default of a removed key.
bool was_default(std::string_view key, const std::string& source_text);
/// The advice for a removed value of a key: a word, such as a codec, or a word with an option.
/// Empty: no such value was removed.
std::string_view removed_value(std::string_view key, std::string_view value);

}  // namespace espalier::config
