#pragma once
// A look at TOML that may come from anywhere, before toml++ reads it.
#include <cstdint>
#include <string_view>

namespace espalier::io {

/// Parts of a key ("a.b.c": 3) in texts that are read. Each is a level of tables, and toml++
/// destroys and prints tables with a stack frame a level; it limits levels of values only.
inline constexpr int64_t kMaxKeyParts = 8;

/// Parts of the longest key; of invalid TOML, up to where it is invalid at least.
int64_t longest_key(std::string_view toml);

}  // namespace espalier::io
