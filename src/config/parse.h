#pragma once
// Reads a Config. Sources in ascending order of priority: defaults, the TOML file,
// `--set section.key=value`. An unknown key, a wrong type or a value out of range throws Failure
// with file:line, the value and the allowed values.
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "io/config/config.h"

namespace espalier::config {

/// Reads a file, applies `overrides` ("section.key=value") in order, and validates. `model` returns
/// the network of a file without a section [model], from its other keys; null: the default one.
/// Last come the members that the environment variable ESPALIER_TEST sets, for tests and
/// measurements: "parallel.overlap=false run.graphs=false".
io::Config load(const std::filesystem::path& path, std::span<const std::string> overrides = {},
                const std::function<io::ModelConfig(const io::Config& rest)>& model = {});
/// The same from text; `name` is the file's name in messages, `defaults` are of omitted keys.
io::Config parse(std::string_view text, std::string_view name,
                 std::span<const std::string> overrides = {}, const io::Config& defaults = {});
/// The config that a run or a checkpoint holds. Removed keys and values (removed.h) count as not
/// set: weights and results stay readable. Keys that became options set these.
io::Config parse_saved(std::string_view text, std::string_view name,
                       std::span<const std::string> overrides = {},
                       const io::Config& defaults = {});
/// The same from a file.
io::Config load_saved(const std::filesystem::path& path);
/// Whether a file has a section; false for text that is not TOML.
bool has_section(const std::filesystem::path& path, std::string_view section);
/// Rules across fields, which the limits of one field cannot express (width divisible by heads,
/// from_step < to_step, ...). Throws Failure: the cause and the fix.
void validate(const io::Config& config);
/// Of a run that starts: throws Failure if it would end before it prunes. `validate` does not: the
/// checkpoints of such runs can be read.
void check_prunes_in_time(const io::Config& config);
/// "section.key=value": a TOML value, or a bare word, which is a string. Checks the field's limits;
/// does not validate across fields.
void apply_override(io::Config& config, std::string_view assignment);
/// Sets a key whose value is a string, from its text: "pruning.method", "nm:1:4". `where` begins
/// the errors.
void set_text(io::Config& config, std::string_view key, const std::string& text,
              std::string_view where);
/// The same as apply_override for any member of the config, also one without a key (schema.h):
/// "pruning.m=8". Options that the value does not have stay.
void set_member(io::Config& config, std::string_view assignment);

/// "16GiB", "500 MB", "1024" -> bytes. Throws Failure that lists the units.
int64_t parse_bytes(std::string_view text);

}  // namespace espalier::config
