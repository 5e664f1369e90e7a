#include "src/hub/transposed_arrays.h"

#include <fmt/ranges.h>

#include <set>

#include "src/hub/array_map.h"
#include "src/hub/kernel_shape.h"

namespace espalier::hub {
namespace {

/// The array of the parameter; null: there is none.
const Shape* shape_in(const NamedArrays& arrays, const std::string& parameter) {
  const auto found = arrays.shapes.find(arrays.prefix + parameter);
  return found == arrays.shapes.end() ? nullptr : &found->second;
}

/// Parameters of `specs` whose arrays have transposed shapes; none if another array does not fit.
std::vector<std::string> transposed_in(const NamedArrays& arrays, const NamedArrays::Specs& specs) {
  std::vector<std::string> found;
  for (const sparse::ParameterSpec& spec : specs) {
    const Shape* array = shape_in(arrays, spec.name);
    if (array == nullptr || arrays.fits(spec)) {
      continue;
    }
    if (array->rank() != 2 || spec.shape.rank() != 2 ||
        *array != Shape{spec.shape[1], spec.shape[0]}) {
      return {};
    }
    found.push_back(spec.name);
  }
  return found;
}

/// `X -> X transpose` for each of `transposed`; one line where all of a form are transposed.
std::set<std::string> transposing_lines(const NamedArrays& arrays,
                                        const std::vector<std::string>& transposed,
                                        const NamedArrays::Specs& specs) {
  std::map<std::string, int64_t> others;  // parameters of a form that are not transposed
  for (const sparse::ParameterSpec& spec : specs) {
    ++others[arrays.form(spec.name)];
  }
  for (const std::string& name : transposed) {
    --others[arrays.form(name)];
  }
  std::set<std::string> lines;
  for (const std::string& name : transposed) {
    std::string text = arrays.form(name);
    const bool all = others[text] == 0;
    for (size_t at = 0; (at = text.find('#', at)) != std::string::npos; at += 2) {
      text.replace(at, 1, "{}");
    }
    text = all ? text : name;
    lines.insert(fmt::format("\n  {} -> {} transpose", name_in_map(arrays.prefix + text), text));
  }
  return lines;
}

}  // namespace

std::string shape_fault(const NamedArrays& arrays, const NamedArrays::Specs& specs,
                        const sparse::ParameterSpec& wrong) {
  std::vector<std::string> transposed;
  // Matrices that determine the extents of the data, at most two, may be transposed, too.
  for (unsigned turned = 0; turned < 4 && transposed.empty(); ++turned) {
    unsigned number = 0;
    const auto network = arrays.network([&](const std::string& parameter) -> std::optional<Shape> {
      const bool turn = (turned >> number++ & 1U) != 0;
      const Shape* found = shape_in(arrays, parameter);
      if (found == nullptr || found->rank() != 2) {
        return std::nullopt;
      }
      return turn ? Shape{(*found)[1], (*found)[0]} : *found;
    });
    transposed = network ? transposed_in(arrays, *network) : transposed;
  }
  if (transposed.empty()) {
    return fmt::format(
        "\"{}{}\" has shape {}, and the network needs {}; correct [model] in the config, or say "
        "with --map FILE which array it is (docs/bring-your-masks.md)",
        arrays.prefix, wrong.name, shape_in(arrays, wrong.name)->text(),
        expected_shape(wrong, shape_in(arrays, wrong.name)->rank()));
  }
  std::vector<std::string> square;
  for (const sparse::ParameterSpec& spec : specs) {
    const Shape* array = shape_in(arrays, spec.name);
    if (array != nullptr && array->rank() == 2 && (*array)[0] == (*array)[1]) {
      square.push_back(arrays.prefix + spec.name);
    }
  }
  return fmt::format(
      "matrices are transposed, [in, out] instead of [out, in]; name them in a --map FILE with "
      "these lines{}:{}",
      square.empty() ? ""
                     : fmt::format(" (and the square {}, if they are transposed, too)",
                                   fmt::join(square, ", ")),
      fmt::join(transposing_lines(arrays, transposed, specs), ""));
}

}  // namespace espalier::hub
