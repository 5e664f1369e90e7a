#include "src/hub/torchvision_names.h"

#include <algorithm>
#include <cctype>
#include <regex>

#include "src/hub/kernel_shape.h"

namespace espalier::hub {
namespace {

constexpr std::string_view kWeight = ".weight";

bool is_digit(char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; }

std::vector<std::string> name_parts(const std::string& name) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= name.size();) {
    const size_t end = std::min(name.find('.', begin), name.size());
    parts.push_back(name.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

/// The layer of a parameter "2.basic.1.weight": "2.basic.1"; of one group of a convolution with
/// several, "0.conv.3.weight": "0.conv".
struct Owner {
  std::string layer{};
  std::string last{};  ///< "weight", "bias", "mean", "variance"
  int64_t group = -1;
  bool norm = false, linear = false;
};

Owner owner_of(const std::string& parameter) {
  std::vector<std::string> parts = name_parts(parameter);
  Owner owner{.last = parts.back()};
  parts.pop_back();
  owner.norm = parts.back() == "norm";
  owner.linear = parts.front() == "classifier" || (parts.size() > 1 && parts[1] == "linear");
  const size_t needed = owner.linear                             ? parts.size()
                        : parts.size() > 1 && parts[1] == "conv" ? 2
                                                                 : 3;
  if (!owner.norm && parts.size() == needed + 1) {
    owner.group = std::stoll(parts.back());
    parts.pop_back();
  }
  for (const std::string& part : parts) {
    owner.layer += (owner.layer.empty() ? "" : ".") + part;
  }
  return owner;
}

std::string torch_word(const std::string& ours) {
  return ours == "mean" ? "running_mean" : ours == "variance" ? "running_var" : ours;
}

/// Numbers layers in the order of their first parameters.
class Order {
 public:
  size_t number(const std::string& layer) {
    return numbers_.emplace(layer, numbers_.size()).first->second;
  }

 private:
  std::map<std::string, size_t> numbers_;
};

/// The bias of the convolution before a batch norm, as torchvision's VGG has them; empty: none.
/// (x + b - mean) is x - (mean - b): our convolutions before a norm have none.
std::string bias_before(const TorchNames& names, size_t norm, const Shape& mean,
                        const std::map<std::string, Shape>& shapes) {
  if (names.norms.size() != names.convolutions.size()) {
    return "";
  }
  const auto bias = shapes.find(names.convolutions[norm] + ".bias");
  return bias != shapes.end() && bias->second == mean ? bias->first : "";
}

}  // namespace

bool natural_less(std::string_view a, std::string_view b) {
  while (!a.empty() && !b.empty()) {
    if (is_digit(a.front()) && is_digit(b.front())) {
      const auto take = [](std::string_view& text) {
        const size_t zeros = std::min(text.find_first_not_of('0'), text.size());
        text.remove_prefix(zeros);
        const size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
        const std::string_view number = text.substr(0, digits);
        text.remove_prefix(digits);
        return number;
      };
      const std::string_view x = take(a);
      const std::string_view y = take(b);
      if (x != y) {
        return x.size() != y.size() ? x.size() < y.size() : x < y;
      }
      continue;
    }
    if (a.front() != b.front()) {
      return a.front() < b.front();
    }
    a.remove_prefix(1);
    b.remove_prefix(1);
  }
  return a.size() < b.size();
}

std::optional<TorchNames> torchvision_names(const io::PlainReader& reader,
                                            const std::map<std::string, Shape>& shapes) {
  // The shortest prefix: "layer1.0.conv1" has none.
  static const std::regex kModule(
      R"((.*?\.)??(features\.\d+|classifier\.\d+|conv1|bn1|fc|layer\d+\.\d+\.(conv\d|bn\d|downsample\.[01])))");
  TorchNames names;
  std::optional<std::string> prefix;
  for (const std::string& name : reader.names()) {
    const auto found = shapes.find(name);
    if (!name.ends_with(kWeight) || found == shapes.end()) {
      continue;
    }
    const std::string module = name.substr(0, name.size() - kWeight.size());
    std::smatch match;
    if (!std::regex_match(module, match, kModule) || prefix.value_or(match[1]) != match[1]) {
      return std::nullopt;
    }
    prefix = match[1];
    const int rank = found->second.rank();
    if (rank == 1 && !reader.has(module + ".running_mean")) {
      return std::nullopt;
    }
    (rank == 4 ? names.convolutions : rank == 2 ? names.linears : names.norms).push_back(module);
  }
  for (auto* modules : {&names.convolutions, &names.norms, &names.linears}) {
    std::ranges::sort(*modules, natural_less);
  }
  return names.convolutions.empty() || names.linears.empty() ? std::nullopt : std::optional(names);
}

std::vector<TorchPlace> torchvision_places(const TorchNames& names,
                                           const std::vector<sparse::ParameterSpec>& specs,
                                           const std::map<std::string, Shape>& shapes) {
  Order convolutions, norms, linears;
  std::vector<TorchPlace> places;
  int64_t channels = 0;  ///< of the image that the first linear layer reads
  for (const sparse::ParameterSpec& spec : specs) {
    const Owner owner = owner_of(spec.name);
    TorchPlace place{.parameter = spec.name};
    const auto& modules = owner.norm     ? names.norms
                          : owner.linear ? names.linears
                                         : names.convolutions;
    Order& order = owner.norm ? norms : owner.linear ? linears : convolutions;
    const size_t number = order.number(owner.layer);
    const std::string module =
        number < modules.size() ? modules[number] : (owner.norm ? "(a norm)" : "(a further layer)");
    place.array = module + "." + torch_word(owner.last);
    const auto found = shapes.find(place.array);
    if (found != shapes.end()) {
      const Shape& array = found->second;
      io::ArrayPart part{.array = place.array, .rows = spec.shape[0]};
      bool fits = array == spec.shape;
      if (array.rank() == 4 && spec.shape.rank() == 2) {
        part.channels_last = true;
        part.first = owner.group > 0 ? owner.group * spec.shape[0] : 0;
        fits = is_kernel_of(array, spec) && array[0] == part.rows * spec.groups;
        channels = owner.group >= 0 ? array[0] : part.rows;
      } else if (owner.group >= 0 && array.rank() == 1) {
        part.first = owner.group * spec.shape[0];
        fits = part.first + part.rows <= array[0];
      } else if (owner.linear && number == 0 && spec.shape.rank() == 2 && channels > 0 &&
                 spec.shape[1] > channels && spec.shape[1] % channels == 0) {
        part.channels = channels;
      }
      if (fits) {
        place.view = io::ArrayView{.shape = spec.shape, .parts = {part}};
        if (owner.norm && owner.last == "mean") {
          place.view->subtracted = bias_before(names, number, array, shapes);
        }
      }
    }
    places.push_back(std::move(place));
  }
  return places;
}

}  // namespace espalier::hub
