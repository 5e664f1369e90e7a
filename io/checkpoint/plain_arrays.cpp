#include "io/checkpoint/plain_arrays.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <set>
#include <string_view>

#include "src/core/error.h"

namespace espalier::io {
namespace {

struct Found {
  std::string place;
  hdf5::Dataset dataset{};
  std::string fault{};
  bool is_float() const { return fault.empty() && hdf5::is_float(dataset.type); }
  bool is_integer() const { return fault.empty() && hdf5::is_integer(dataset.type); }
};
using Datasets = std::map<std::string, Found>;

std::string name_of_place(const std::string& place) {
  std::string name = place.substr(1);
  std::ranges::replace(name, '/', '.');
  return name;
}

std::vector<std::string> parts_of(std::string_view name) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= name.size();) {
    const size_t end = std::min(name.find('.', begin), name.size());
    parts.emplace_back(name.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

std::string joined(std::span<const std::string> parts) {
  return fmt::format("{}", fmt::join(parts, "."));
}

bool take_suffix(std::string& name, std::string_view suffix) {
  if (name.size() <= suffix.size() || !name.ends_with(suffix)) {
    return false;
  }
  name.resize(name.size() - suffix.size());
  return true;
}

std::string lower(std::string text) {
  std::ranges::transform(text, text.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

std::string extents_text(const std::vector<int64_t>& extents) {
  return fmt::format("[{}]", fmt::join(extents, ", "));
}

/// Finds groups that hold a sparse matrix.
class SparseGroups {
 public:
  SparseGroups(const hdf5::Reader& file, Datasets& datasets, PlainArrays& out)
      : file_(file), datasets_(datasets), out_(out) {}

  void take_all() {
    std::set<std::string> groups;
    for (const auto& [name, found] : datasets_) {
      const size_t slash = found.place.rfind('/');
      if (slash > 0) {
        groups.insert(found.place.substr(0, slash));
      }
    }
    for (const std::string& group : groups) {
      take(group);
    }
  }

 private:
  /// The dataset of the group with one of the names; null if there is none.
  const Found* part(const std::string& group, std::initializer_list<std::string_view> names) const {
    for (const std::string_view name : names) {
      const auto found = datasets_.find(name_of_place(fmt::format("{}/{}", group, name)));
      if (found != datasets_.end() && found->second.place == fmt::format("{}/{}", group, name)) {
        return &found->second;
      }
    }
    return nullptr;
  }

  void take(const std::string& group) {
    const Found* values = part(group, {"data", "values"});
    if (values == nullptr || !values->is_float()) {
      return;
    }
    const Found* pointers = part(group, {"indptr"});
    const Found* indices = part(group, {"indices"});
    PlainArray array{.place = values->place};
    std::string format = text(group, {"format", "encoding-type", "h5sparse_format"});
    if (pointers != nullptr && indices != nullptr) {
      array.rows = pointers->place;
      array.columns = indices->place;
    } else if (const Found* rows = part(group, {"row", "row_indices", "crow_indices"})) {
      const Found* columns = part(group, {"col", "col_indices", "ccol_indices"});
      if (columns == nullptr) {
        return;
      }
      array.rows = rows->place;
      array.columns = columns->place;
      const bool compressed_rows = rows->place.ends_with("/crow_indices");
      const bool compressed_columns = columns->place.ends_with("/ccol_indices");
      format = compressed_rows ? "csr" : compressed_columns ? "csc" : "coo";
    } else if (indices != nullptr && indices->dataset.extents.size() == 2) {  // torch's COO
      array.rows = array.columns = indices->place;
      format = "coo";
    } else {
      return;
    }
    array.extents = shape(group);
    const std::string name = name_of_place(group);
    array.fault = choose_form(array, format, name, values->dataset, pointers);
    if (array.form == PlainArray::Form::csc && pointers != nullptr) {
      std::swap(array.rows, array.columns);
    }
    for (const std::string_view other :
         {"data", "values", "indptr", "indices", "row", "col", "shape", "size", "format",
          "row_indices", "col_indices", "crow_indices", "ccol_indices", "has_canonical_format"}) {
      const auto found = datasets_.find(name_of_place(fmt::format("{}/{}", group, other)));
      if (found != datasets_.end()) {
        datasets_.erase(found);
      }
    }
    out_.arrays.emplace(name, std::move(array));
  }

  /// Returns the reason if the form is not clear.
  static std::string choose_form(PlainArray& array, const std::string& format,
                                 const std::string& name, const hdf5::Dataset& values,
                                 const Found* pointers) {
    if (array.extents.size() != 2 || array.extents[0] < 0 || array.extents[1] < 0) {
      return fmt::format(
          "sparse matrix {} has no shape of two extents; write a dataset or attribute \"shape\" "
          "into its group",
          name);
    }
    if (values.extents.size() != 1) {
      return fmt::format(
          "sparse matrix {} has blocks as values (BSR), which are not read; store matrix.tocsr()",
          name);
    }
    if (format.find("coo") != std::string::npos) {
      array.form = PlainArray::Form::coo;
      return {};
    }
    const auto [rows, columns] = std::pair(array.extents[0], array.extents[1]);
    const int64_t count = pointers != nullptr ? pointers->dataset.count - 1 : -1;
    const bool says_rows = format.find("csr") != std::string::npos;
    const bool says_columns = format.find("csc") != std::string::npos;
    if (!says_rows && !says_columns && (rows == columns || (count != rows && count != columns))) {
      return fmt::format(
          "sparse matrix {} may be CSR or CSC (shape {}, {} pointers); write a dataset or "
          "attribute \"format\" with \"csr\" or \"csc\" into its group",
          name, extents_text(array.extents), count + 1);
    }
    array.form = says_rows || (!says_columns && count == rows) ? PlainArray::Form::csr
                                                               : PlainArray::Form::csc;
    return {};
  }

  std::string text(const std::string& group, std::initializer_list<std::string_view> names) const {
    const std::vector<std::string> attributes = file_.attributes(group);
    for (const std::string_view name : names) {
      try {
        if (std::ranges::find(attributes, name) != attributes.end()) {
          return lower(file_.text(group, std::string(name)));
        }
        if (const Found* found = part(group, {name})) {
          return lower(file_.text_of(found->place));
        }
      } catch (const Failure&) {  // not a text: as if it were missing
      }
    }
    return {};
  }

  std::vector<int64_t> shape(const std::string& group) const {
    const std::vector<std::string> attributes = file_.attributes(group);
    for (const std::string name : {"shape", "size", "h5sparse_shape"}) {
      if (const Found* found = part(group, {name})) {
        if (found->is_integer() && found->dataset.count <= 4) {
          std::vector<int64_t> extents(static_cast<size_t>(found->dataset.count));
          file_.read(found->place, hdf5::Type::int64, std::as_writable_bytes(std::span(extents)));
          return extents;
        }
      }
      if (std::ranges::find(attributes, name) != attributes.end()) {
        return file_.integers(group, name);
      }
    }
    return {};
  }

  const hdf5::Reader& file_;
  Datasets& datasets_;
  PlainArrays& out_;
};

/// Names that the weight of a mask may have, the likeliest first; empty: not named like a mask.
std::vector<std::string> weights_of_mask(const std::string& mask) {
  std::vector<std::string> names;
  std::string base = mask;
  if (take_suffix(base, "_mask") || take_suffix(base, ".mask")) {
    names = {base, base + ".weight"};
  }
  return names;
}

/// Pairs masks with weights.
class MaskPairs {
 public:
  MaskPairs(Datasets& datasets, PlainArrays& out) : datasets_(datasets), out_(out) {}

  void take_all() {
    for (const auto& [name, found] : datasets_) {
      if (found.is_float()) {
        by_length_[parts_of(name).size()].push_back(name);
      }
    }
    std::vector<std::string> names;
    for (const auto& [name, found] : datasets_) {
      names.push_back(name);
    }
    for (const std::string& name : names) {
      const auto candidates = candidates_of(name);
      if (candidates) {
        pair(name, *candidates);
      }
    }
  }

 private:
  /// None: the name is not that of a mask.
  std::optional<std::vector<std::string>> candidates_of(const std::string& mask) const {
    std::vector<std::string> found;
    const std::vector<std::string> direct = weights_of_mask(mask);
    for (const std::string& name : direct) {
      add(name, mask, found);
    }
    const std::vector<std::string> parts = parts_of(mask);
    bool tree = false;
    for (size_t i = 0; i + 1 < parts.size(); ++i) {
      const std::string word = lower(parts[i]);
      if (word != "mask" && word != "masks") {
        continue;
      }
      tree = true;
      std::vector<std::string> rest = parts;
      rest.erase(rest.begin() + static_cast<std::ptrdiff_t>(i));
      std::vector<std::string> others{joined(rest)};
      for (const std::string& name : weights_of_mask(others[0])) {
        others.push_back(name);
      }
      for (const std::string& name : others) {
        add(name, mask, found);
        add_other_trees(name, i, mask, found);
      }
    }
    return direct.empty() && !tree ? std::nullopt : std::optional(found);
  }

  void add(const std::string& name, const std::string& mask,
           std::vector<std::string>& found) const {
    for (const std::string& variant : {name + "_orig", name}) {
      const auto weight = datasets_.find(variant);
      if (variant != mask && weight != datasets_.end() && weight->second.is_float() &&
          std::ranges::find(found, variant) == found.end()) {
        found.push_back(variant);
        return;
      }
    }
  }

  /// Weights named like `name` with another part inserted before part `at`: "weights.a" of "a".
  void add_other_trees(const std::string& name, size_t at, const std::string& mask,
                       std::vector<std::string>& found) const {
    const std::vector<std::string> wanted = parts_of(name);
    const auto same_length = by_length_.find(wanted.size() + 1);
    if (same_length == by_length_.end()) {
      return;
    }
    for (const std::string& other : same_length->second) {
      std::vector<std::string> parts = parts_of(other);
      const std::string word = lower(parts[at]);
      parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(at));
      if (word != "mask" && word != "masks" && parts == wanted) {
        add(other, mask, found);
      }
    }
  }

  void pair(const std::string& mask, std::vector<std::string> candidates) {
    const Found& found = datasets_.at(mask);
    const auto same_shape = [&](const std::string& weight) {
      return datasets_.at(weight).dataset.extents == found.dataset.extents;
    };
    if (candidates.size() > 1) {
      std::vector<std::string> fitting;
      std::ranges::copy_if(candidates, std::back_inserter(fitting), same_shape);
      candidates = fitting.size() == 1 ? fitting : candidates;
    }
    if (candidates.empty()) {
      const bool a_shape = std::ranges::any_of(datasets_, [&](const auto& other) {
        return other.first != mask && other.second.is_float() && found.dataset.count > 1 &&
               other.second.dataset.extents == found.dataset.extents;
      });
      if (a_shape) {
        out_.loose_masks.push_back(mask);
      }
      return;
    }
    std::string name = candidates.front();
    PlainArray& array = out_.arrays[take_suffix(name, "_orig") ? name : candidates.front()];
    if (array.place.empty()) {
      array.place = datasets_.at(candidates.front()).place;
      array.extents = datasets_.at(candidates.front()).dataset.extents;
      used_.insert(candidates.front());
    }
    out_.masks.emplace(mask, name);
    if (candidates.size() > 1) {
      array.fault = fmt::format("{} may be the mask of {}; rename one", mask,
                                fmt::join(candidates, " or of "));
    } else if (!array.mask.empty()) {
      array.fault = fmt::format("{} and {} would both be its mask; remove one",
                                name_of_place(array.mask), mask);
    } else if (!found.is_float() && !found.is_integer()) {
      array.fault = fmt::format("its mask {} has no numbers{}{}; write booleans or uint8", mask,
                                found.fault.empty() ? "" : ": ", found.fault);
    } else if (!same_shape(candidates.front())) {
      array.fault = fmt::format("its mask {} has shape {}, and its values have shape {}", mask,
                                extents_text(found.dataset.extents), extents_text(array.extents));
    }
    array.mask = found.place;
    used_.insert(mask);
  }

 public:
  bool used(const std::string& name) const { return used_.contains(name); }

 private:
  Datasets& datasets_;
  PlainArrays& out_;
  std::map<size_t, std::vector<std::string>> by_length_{};  ///< weights, by parts of their names
  std::set<std::string> used_{};
};

}  // namespace

PlainArrays plain_arrays(const hdf5::Reader& file, const std::string& label) {
  PlainArrays out;
  Datasets datasets;
  for (const std::string& place : file.datasets()) {
    Found found{.place = place};
    try {
      found.dataset = file.describe(place);
      found.fault = found.dataset.fault;
    } catch (const hdf5::ReadFailure&) {
      throw;
    } catch (const Failure& failure) {
      found.fault = failure.what();
    }
    const std::string name = name_of_place(place);
    const auto [other, fresh] = datasets.emplace(name, std::move(found));
    check(fresh, "{}: datasets {} and {} would both be named {}; rename one", label,
          other->second.place, place, name);
  }
  SparseGroups(file, datasets, out).take_all();
  MaskPairs pairs(datasets, out);
  pairs.take_all();
  for (const auto& [name, found] : datasets) {
    if (pairs.used(name)) {
      continue;
    }
    if (found.fault.empty() && !found.is_float()) {
      out.skipped.push_back(name);
      continue;
    }
    const auto [other, fresh] = out.arrays.emplace(
        name,
        PlainArray{.place = found.place, .extents = found.dataset.extents, .fault = found.fault});
    check(fresh, "{}: datasets {} and {} would both be named {}; rename one", label,
          other->second.place, found.place, name);
  }
  for (const std::string& link : file.external_links()) {
    out.skipped.push_back(name_of_place(link) + " (link to another file)");
  }
  return out;
}

}  // namespace espalier::io
