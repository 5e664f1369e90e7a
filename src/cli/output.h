#pragma once
// Standard output of the subcommands: text, one JSON object, tables. Numbers for people use digits
// in groups, programs get --json.
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace espalier::cli {

/// Writes and flushes; Failure when standard output takes no more (a full disk).
void print(std::string_view text);
/// The one object of --json, and a line end.
void print_json(const nlohmann::ordered_json& object);

/// Columns two blanks apart, the first one left-aligned, the others right-aligned; a line each row.
std::string table(const std::vector<std::vector<std::string>>& rows);

/// "1,234,567"
std::string grouped(int64_t number);
/// "90.00 %"
std::string percent(double share);

}  // namespace espalier::cli
