#pragma once
// One way to find the parameters of a network in the arrays of a file. For array_match.cpp.
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "io/checkpoint/plain_hdf5.h"
#include "src/hub/array_names.h"
#include "src/model/networks/registry.h"

namespace espalier::hub {

using Shapes = std::map<std::string, Shape>;

/// "h.#.weight" of "h.12.weight".
std::string form_of(const std::string& name);

/// A whole array as this parameter; none if the shapes differ. An array of four dimensions must be
/// [out, channels, height, width] of the parameter's convolution.
std::optional<io::ArrayView> whole_view(const std::string& name, const Shape& array,
                                        const sparse::ParameterSpec& spec, bool transposed = false,
                                        int64_t channels = 0);

inline constexpr std::string_view kHeadWeight = "head.weight";

struct Candidate {
  std::string title{};
  model::ProblemShape problem{};
  Specs specs{};
  std::map<std::string, io::ArrayView> views{};
  struct Missing {
    std::string parameter{}, array{}, text{};
    bool line = false;  ///< a line of a map names this array
  };
  std::vector<Missing> missing{};
  std::string head{kHeadWeight};  ///< the array of head.weight
  std::set<std::string> used{};
  std::vector<std::string> notes{};

  void add(const std::string& parameter, io::ArrayView view);
  /// Adds parameters that one unused array, or one row of numbered arrays, fits only. True if all
  /// parameters have arrays, and nothing was ambiguous.
  bool fill_by_shape(const Shapes& shapes);
};

}  // namespace espalier::hub
