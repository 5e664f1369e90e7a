#include "src/hub/array_candidate.h"

#include <algorithm>

#include "src/hub/kernel_shape.h"
#include "src/hub/torchvision_names.h"

namespace espalier::hub {
namespace {

/// Consecutive parameters, or arrays, whose names differ in numbers only.
using Row = std::vector<sparse::ParameterSpec>;
std::vector<Row> rows_of(const Row& all, bool grouped) {
  std::vector<Row> rows;
  std::map<std::string, size_t> numbers;
  for (const sparse::ParameterSpec& one : all) {
    const auto [found, fresh] =
        numbers.emplace(grouped ? form_of(one.name) : one.name, rows.size());
    if (fresh) {
      rows.emplace_back();
    }
    rows[found->second].push_back(one);
  }
  return rows;
}

enum class Fit : uint8_t { none, same, transposed };
Fit fit(const Row& parameters, const Row& arrays) {
  if (parameters.size() != arrays.size()) {
    return Fit::none;
  }
  bool same = true;
  bool transposed = true;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const auto fits = [&](bool turned) {
      return whole_view(arrays[i].name, arrays[i].shape, parameters[i], turned).has_value();
    };
    same = same && fits(false);
    transposed = transposed && fits(true);
  }
  return same ? Fit::same : transposed ? Fit::transposed : Fit::none;
}

}  // namespace

std::string form_of(const std::string& name) {
  std::string out;
  for (const char c : name) {
    const bool digit = c >= '0' && c <= '9';
    if (!digit || out.empty() || out.back() != '#') {
      out += digit ? '#' : c;
    }
  }
  return out;
}

std::optional<io::ArrayView> whole_view(const std::string& name, const Shape& array,
                                        const sparse::ParameterSpec& spec, bool transposed,
                                        int64_t channels) {
  const Shape& wanted = spec.shape;
  io::ArrayPart part{.array = name,
                     .rows = wanted.rank() == 0 ? 1 : wanted[0],
                     .transposed = transposed,
                     .channels = channels};
  const bool matrices = array.rank() == 2 && wanted.rank() == 2;
  bool fits = array == wanted;
  if (transposed) {
    fits = matrices && array[0] == wanted[1] && array[1] == wanted[0];
  } else if (array.rank() == 4 && wanted.rank() == 2) {
    part.channels_last = true;
    fits = array[0] == wanted[0] && is_kernel_of(array, spec);
  }
  fits = fits && (channels == 0 || (matrices && wanted[1] % channels == 0));
  return fits ? std::optional(io::ArrayView{.shape = wanted, .parts = {part}}) : std::nullopt;
}

void Candidate::add(const std::string& parameter, io::ArrayView view) {
  for (const io::ArrayPart& part : view.parts) {
    used.insert(part.array);
  }
  if (!view.subtracted.empty()) {
    used.insert(view.subtracted);
  }
  views.insert_or_assign(parameter, std::move(view));
}

bool Candidate::fill_by_shape(const Shapes& shapes) {
  bool any_transposed = false;
  bool any_square = false;
  for (const bool grouped : {true, false}) {
    for (bool progress = true; progress;) {
      progress = false;
      Row wanted;
      Row found;
      for (const sparse::ParameterSpec& spec : specs) {
        if (!views.contains(spec.name)) {
          wanted.push_back(spec);
        }
      }
      for (const auto& [name, one] : shapes) {
        if (!used.contains(name)) {
          found.push_back({.name = name, .shape = one});
        }
      }
      std::ranges::sort(found, natural_less, &sparse::ParameterSpec::name);
      const std::vector<Row> parameters = rows_of(wanted, grouped);
      const std::vector<Row> arrays = rows_of(found, grouped);
      for (const Row& parameter : parameters) {
        const auto fits = [&](const Row& array) { return fit(parameter, array) != Fit::none; };
        const auto array = std::ranges::find_if(arrays, fits);
        if (array == arrays.end() || std::ranges::count_if(arrays, fits) != 1 ||
            std::ranges::count_if(parameters, [&](const Row& other) {
              return fit(other, *array) != Fit::none;
            }) != 1) {
          continue;
        }
        const bool turned = fit(parameter, *array) == Fit::transposed;
        for (size_t i = 0; i < parameter.size(); ++i) {
          const Shape& matrix = parameter[i].shape;
          any_transposed = any_transposed || turned;
          any_square = any_square || (matrix.rank() == 2 && matrix[0] == matrix[1]);
          add(parameter[i].name,
              *whole_view((*array)[i].name, (*array)[i].shape, parameter[i], turned));
        }
        progress = true;
      }
    }
  }
  return views.size() == specs.size() && !(any_transposed && any_square);
}

}  // namespace espalier::hub
