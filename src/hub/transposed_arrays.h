#pragma once
// The error text of an array with a parameter's name and another shape: if matrices are [in, out],
// it has the lines of a map that transposes them. For array_match.cpp.
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "sparse/store/store.h"

namespace espalier::hub {

struct NamedArrays {
  using Specs = std::vector<sparse::ParameterSpec>;
  using ShapeOf = std::function<std::optional<Shape>(const std::string& parameter)>;

  const std::map<std::string, Shape>& shapes;  ///< by name, below `prefix`
  std::string prefix;
  /// The network whose matrices that determine the extents of the data have these shapes.
  std::function<std::optional<Specs>(const ShapeOf&)> network;
  /// Whether the parameter has an array that fits, or a line of a map.
  std::function<bool(const sparse::ParameterSpec&)> fits;
  std::function<std::string(const std::string& name)> form;  ///< with # for each number
};

/// The fault of the array of `wrong`, a parameter of `specs`.
std::string shape_fault(const NamedArrays& arrays, const NamedArrays::Specs& specs,
                        const sparse::ParameterSpec& wrong);

}  // namespace espalier::hub
