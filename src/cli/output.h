#pragma once
// Standard output of the subcommands: text, one JSON object, tables. Text groups digits of numbers;
// programs use --json.
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace espalier::cli {

/// Writes and flushes. Throws Failure if standard output cannot be written (a full disk).
void print(std::string_view text);
/// Prints the object of --json and a newline.
void print_json(const nlohmann::ordered_json& object);

/// Columns two spaces apart, the first left-aligned, the others right-aligned; one line per row.
std::string table(const std::vector<std::vector<std::string>>& rows);

/// "1,234,567"
std::string grouped(int64_t number);
/// "90.00 %"
std::string percent(double share);

}  // namespace espalier::cli
