#pragma once
// Names that match_arrays expects, and the names of a file that it refuses.
#include <set>
#include <span>
#include <string>
#include <vector>

#include "io/checkpoint/plain_hdf5.h"
#include "io/config/config.h"
#include "sparse/store/store.h"
#include "src/core/error.h"
#include "src/hub/array_map.h"
#include "src/model/networks/registry.h"

namespace espalier::hub {

using Specs = std::vector<sparse::ParameterSpec>;

/// Parameters of the network for the extents of the data.
Specs specs_for(const io::ModelConfig& model, const model::ProblemShape& problem);

/// Names and shapes of the network's parameters; an extent that only data or weights determine is
/// the word "vocabulary" or "classes".
io::NamedShapes expected_of(const io::ModelConfig& model, const model::NetworkKind& kind);
io::NamedShapes expected_names(const io::Config& config);

/// "a, b and 3 more"
std::string first_of(std::span<const std::string> names);

/// A failure that lines of a --map file mend.
class MapFailure : public Failure {
 public:
  using Failure::Failure;
};

/// Throws MapFailure with a formatted message unless `ok`.
template <class... Args>
void check_map(bool ok, fmt::format_string<Args...> message, Args&&... args) {
  if (!ok) [[unlikely]] {
    throw MapFailure(fmt::format(message, std::forward<Args>(args)...));
  }
}

// Each throws Failure (MapFailure where a line of a map is a fix) with names and fix:

/// A right side of a line is none of the parameters.
void check_lines(std::span<const MapLine> lines, const io::NamedShapes& parameters);
/// The file has masks of no array that are not `used` themselves.
void check_masks(const io::PlainReader& reader, const std::set<std::string>& used);
/// An array was chosen by its shape, which something that cannot be used has, too.
void check_only_one(const io::PlainReader& reader, const std::string& parameter,
                    const std::string& array, const Shape& shape);

}  // namespace espalier::hub
