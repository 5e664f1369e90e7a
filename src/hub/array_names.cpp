#include "src/hub/array_names.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <regex>

#include "src/config/limits.h"
#include "src/core/error.h"

namespace espalier::hub {

Specs specs_for(const io::ModelConfig& model, const model::ProblemShape& problem) {
  return model::parameters_of(model::make_layers(model, problem));
}

/// Extents that follow from the data differ between two networks for different data.
io::NamedShapes expected_of(const io::ModelConfig& model, const model::NetworkKind& kind) {
  const bool tokens = kind.input_dtype == DType::int32;
  const int64_t known = tokens ? model.vocabulary : model.classes;
  const auto specs = [&](int64_t classes, int64_t features) {
    const model::ProblemShape problem = kind.problem_of(model, [&](const std::string&) {
      return Shape{classes, features};
    });
    return specs_for(model, problem);
  };
  // Large primes, which no config has.
  const Specs a = specs(known > 0 ? known : 15'485'863, 32'452'843);
  const Specs b = specs(known > 0 ? known : 49'979'687, 67'867'967);
  io::NamedShapes names;
  for (size_t i = 0; i < a.size(); ++i) {
    std::vector<std::string> extents;
    for (int d = 0; d < a[i].shape.rank(); ++d) {
      const int64_t extent = a[i].shape[d];
      extents.push_back(extent == b[i].shape[d] ? fmt::format("{}", extent)
                        : extent == 15'485'863  ? (tokens ? "vocabulary" : "classes")
                                                : "inputs");
    }
    names.emplace_back(a[i].name, fmt::format("[{}]", fmt::join(extents, ", ")));
  }
  return names;
}

io::NamedShapes expected_names(const io::Config& config) {
  const model::NetworkKind& kind = model::network_of(config.model);
  if (kind.check != nullptr) {
    kind.check(config.model);
  }
  io::ModelConfig model = config.model;
  if (config.data.kind == "bytes") {
    model.vocabulary = 256;
  }
  return expected_of(model, kind);
}

std::string first_of(std::span<const std::string> names) {
  const size_t shown = std::min<size_t>(names.size(), 10);
  return fmt::format("{}{}", fmt::join(names.first(shown), ", "),
                     names.size() > shown ? fmt::format(" and {} more", names.size() - shown) : "");
}

void check_lines(std::span<const MapLine> lines, const io::NamedShapes& parameters) {
  std::vector<std::string> known;
  for (const auto& [name, extents] : parameters) {
    known.push_back(name);
    known.push_back(std::regex_replace(name, std::regex("[0-9]+"), "{}"));
  }
  for (const MapLine& line : lines) {
    for (const std::string& pattern : line.ours) {
      std::vector<std::string> numbers;
      if (std::ranges::any_of(parameters, [&](const auto& parameter) {
            return numbers_in(pattern, parameter.first, numbers);
          })) {
        continue;
      }
      const std::string near = config::nearest(pattern, known);
      fail(
          "{}: the network has no parameter {}{}; `espalier import --names CONFIG.toml` lists its "
          "parameters",
          line.text, pattern, near.empty() ? "" : fmt::format(" (did you mean \"{}\"?)", near));
    }
  }
}

void check_masks(const io::PlainReader& reader, const std::set<std::string>& used) {
  std::vector<std::string> masks = reader.loose_masks();
  std::erase_if(masks, [&](const std::string& mask) { return used.contains(mask); });
  if (masks.empty()) {
    return;
  }
  const std::string& mask = masks.front();
  const auto found = reader.unusable().find(mask);
  // A link or a sparse matrix; others hold numbers.
  const bool unusable = found != reader.unusable().end() && found->second.extents.empty();
  throw MapFailure(fmt::format(
      "{}: {} is named like a mask, and {}, or leave it out by a line \"{} -> -\" in a --map "
      "file{}",
      reader.path().string(), mask,
      unusable ? fmt::format("cannot be used: {}; {}", found->second.why, found->second.fix)
               : "no array has its name; name it after its weight (NAME_mask, NAME.mask or "
                 "masks.NAME)",
      name_in_map(mask),
      masks.size() > 1 ? "; likewise " + first_of(std::span(masks).subspan(1)) : ""));
}

void check_only_one(const io::PlainReader& reader, const std::string& parameter,
                    const std::string& array, const Shape& shape) {
  const std::vector<int64_t> extents(shape.extents().begin(), shape.extents().end());
  for (const auto& [other, unusable] : reader.unusable()) {
    // Masks are refused by name.
    check_map(extents.size() < 2 || unusable.extents != extents || io::says_mask(other),
              "{}: {} may be {} by its shape, but {} has this shape, too, and cannot be used: {}; "
              "{}, or add the lines \"{} -> {}\" and \"{} -> -\" to a --map file",
              reader.path().string(), array, parameter, other, unusable.why, unusable.fix,
              name_in_map(array), parameter, name_in_map(other));
  }
}

}  // namespace espalier::hub
