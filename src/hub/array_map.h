#pragma once
// Files of `import --map`: which arrays of an HDF5 file become which parameters. A line is
//
//   THEIRS -> OURS [transpose] [channels N]
//
//   h.{}.fc.weight -> blocks.{}.mlp.expand.weight transpose
//   h.{}.q + h.{}.k + h.{}.v -> blocks.{}.attention.qkv.weight     rows one below the other
//   h.{}.qkv -> blocks.{}.attention.query.weight, blocks.{}.attention.key.weight, …   rows apart
//   lm_head.weight -> -                                             not used
//
// "{}" stands for a number, "{*}" at the end for the rest of a name; both sides have the same
// ones. `transpose`: the array is [in, out]. `channels N`: its columns are [N, positions], as
// behind a flattened image [N, height, width]. "/" is the same as ".". Names of arrays may have
// spaces; "+" joins and "#" begins a comment only with a space (or the line's begin) before it.
// In quotes they are parts of a name, as are "->", spaces at its ends, \", \\ and \n (end of a
// line): "a + b" -> c
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace espalier::hub {

struct MapLine {
  std::vector<std::string> theirs{};  ///< patterns
  std::vector<std::string> ours{};    ///< patterns; empty: the arrays are not used
  bool transposed = false;
  int64_t channels = 0;
  std::string text{};  ///< for messages
};

/// Throws Failure that names file, line and fault.
std::vector<MapLine> read_array_map(const std::filesystem::path& path);

/// A name as a line of a map has it, in quotes where it needs them.
std::string name_in_map(const std::string& name);

/// Whether the lines say that an array, or what cannot be used as one, or a group around it is not
/// used.
bool leaves_out(std::span<const MapLine> lines, std::string_view array);

/// The texts in place of the "{}" and "{*}" of `pattern`; false if `name` is not of that form.
bool numbers_in(std::string_view pattern, std::string_view name, std::vector<std::string>& numbers);
/// `pattern` with these texts in their place.
std::string with_numbers(std::string_view pattern, std::span<const std::string> numbers);

}  // namespace espalier::hub
