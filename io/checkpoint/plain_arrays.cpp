#include "io/checkpoint/plain_arrays.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <numeric>
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
  bool has_elements() const { return !fault.empty() || dataset.count > 0; }
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

/// The name in lower case, without "mask" before a word for what it is: "token" of "mask_token".
std::string without_mask_words(const std::string& name) {
  constexpr std::array<std::string_view, 5> kWords{"token", "emb", "decoder", "predictor",
                                                   "downscaling"};
  std::string text = lower(name);
  for (size_t at = text.find("mask"); at != std::string::npos; at = text.find("mask", at + 1)) {
    const std::string_view rest = std::string_view(text).substr(at);
    const size_t word = rest.find('_') + 1;
    const bool separate = rest.starts_with("mask_") || rest.starts_with("masks_");
    if (separate && std::ranges::any_of(kWords, [&](std::string_view w) {
          return rest.substr(word).starts_with(w);
        })) {
      text.erase(at, word);
    }
  }
  return text;
}

/// Whether something else than "mask_token" and the like says that it is a mask.
bool is_mask_name(const std::string& name) { return says_mask(without_mask_words(name)); }

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
    const std::string name = name_of_place(group);
    if (values == nullptr) {
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
    array.fault = choose_form(array, format, name, values->dataset, pointers);
    Unusable reason;
    if (is_mask_name(name)) {
      reason = {"it is a sparse matrix", "store the mask as a dense array of booleans"};
    } else if (!values->fault.empty()) {
      array.fault = values->fault;
    } else if (!values->is_float()) {
      reason = {"its sparse matrix holds " + values->dataset.content,
                "write matrix.astype(\"float32\")", array.extents};
    }
    for (const std::string& numbers : {array.rows, array.columns}) {
      const Found& found = datasets_.at(name_of_place(numbers));
      if (!found.is_integer()) {
        array.fault = !found.fault.empty()
                          ? found.fault
                          : fmt::format("{} of the sparse matrix holds {}; write int32 or int64",
                                        numbers, found.dataset.content);
      }
    }
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
    if (reason.why.empty()) {
      out_.arrays.emplace(name, std::move(array));
      return;
    }
    if (is_mask_name(name)) {
      out_.loose_masks.push_back(name);
    }
    out_.skipped.push_back(name);
    out_.unusable.emplace(name, std::move(reason));
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

/// Whether a part of a name is that of a tree of masks.
bool is_mask_tree(std::string_view part) {
  return part.ends_with("mask") || part.ends_with("masks");
}

/// Names that the weight of a mask may have, the likeliest first; empty: not named like a mask.
std::vector<std::string> weights_of_mask(const std::string& mask) {
  std::string base = mask;
  if (take_suffix(base, "_mask") || take_suffix(base, ".mask")) {
    return {base, base + ".weight"};
  }
  return {};
}

/// Whether a name is that of a mask of positions, which attention reads: "attn.mask",
/// "causal_mask".
bool says_positions(const std::string& name) {
  constexpr std::array<std::string_view, 4> kReaders{"attn", "attention", "causal", "padding"};
  std::string base = lower(name);
  if (!take_suffix(base, "mask") && !take_suffix(base, "masks")) {
    return false;
  }
  base.resize(base.find_last_not_of("._-") + 1);
  return std::ranges::any_of(kReaders,
                             [&](std::string_view reader) { return base.ends_with(reader); });
}

/// The shapes that a mask of some array may have: as many elements, or a shape that broadcasts.
class MaskShapes {
 public:
  void add(const std::vector<int64_t>& extents) {
    counts_.insert(count_of(extents));
    for (unsigned ones = 0; extents.size() <= Shape::kMaxRank && ones >> extents.size() == 0;
         ++ones) {
      std::vector<int64_t> broadcast = extents;
      for (size_t i = 0; i < extents.size(); ++i) {
        broadcast[i] = (ones >> i & 1U) != 0 ? 1 : extents[i];
      }
      broadcasts_.insert(without_first_ones(broadcast));
    }
  }
  bool contains(const std::vector<int64_t>& extents) const {
    return counts_.contains(count_of(extents)) || broadcasts_.contains(without_first_ones(extents));
  }

 private:
  static double count_of(const std::vector<int64_t>& extents) {
    return std::accumulate(extents.begin(), extents.end(), 1.0,
                           [](double count, int64_t e) { return count * static_cast<double>(e); });
  }
  static std::vector<int64_t> without_first_ones(const std::vector<int64_t>& extents) {
    return {std::ranges::find_if(extents, [](int64_t e) { return e != 1; }), extents.end()};
  }

  std::set<double> counts_{};
  std::set<std::vector<int64_t>> broadcasts_{};
};

/// Pairs masks with weights. Keys are names in lower case.
class MaskPairs {
 public:
  MaskPairs(Datasets& datasets, PlainArrays& out) : datasets_(datasets), out_(out) {}

  void take_all() {
    for (const auto& [name, found] : datasets_) {
      if (found.is_float()) {
        weights_[lower(name)].push_back(name);
      }
    }
    for (const auto& [name, array] : out_.arrays) {
      weights_[lower(name)].push_back(name);  // sparse matrices
    }
    for (const auto& [name, found] : datasets_) {
      if (!says_mask(name)) {
        continue;
      }
      const std::vector<std::string> candidates = candidates_of(name);
      if (masks_positions(name, candidates)) {
        positions_.insert(name);
      } else if (!candidates.empty()) {
        pair(name, candidates);
      } else if (!is_parameter(name)) {
        loose_.insert(name);
      }
    }
  }

  /// As a weight with a mask, or as a mask, perhaps by another name that is no mask's.
  bool used(const std::string& name) const {
    return used_.contains(name) || (masks_.contains(datasets_.at(name).dataset.address) &&
                                    !loose_.contains(name) && !positions_.contains(name));
  }
  /// Whether attention reads the mask.
  bool of_positions(const std::string& name) const { return positions_.contains(name); }
  /// Whether it is named like a mask, and is that of no array.
  bool loose(const std::string& name) const { return loose_.contains(name); }

 private:
  const std::vector<int64_t>& extents_of(const std::string& weight) const {
    const auto dense = datasets_.find(weight);
    return dense != datasets_.end() ? dense->second.dataset.extents
                                    : out_.arrays.at(weight).extents;
  }

  /// A mask that no array of the file can have, and whose name says who reads it.
  bool masks_positions(const std::string& name, const std::vector<std::string>& candidates) {
    const std::vector<int64_t>& extents = datasets_.at(name).dataset.extents;
    const auto fits = [&](const std::string& weight) { return extents_of(weight) == extents; };
    if (extents.size() < 2 || !says_positions(name) || std::ranges::any_of(candidates, fits)) {
      return false;
    }
    if (!shapes_) {
      shapes_.emplace();
      for (const auto& [key, weights] : weights_) {
        for (const std::string& weight : weights) {
          if (!says_mask(weight)) {
            shapes_->add(extents_of(weight));
          }
        }
      }
    }
    return !shapes_->contains(extents);
  }

  /// Whether the words after "mask" say that it is none ("mask_token"), and no array has the name
  /// without "mask" and the same shape.
  bool is_parameter(const std::string& name) const {
    if (is_mask_name(name)) {
      return false;
    }
    const auto weights = weights_.find(without_mask_words(name));
    return weights == weights_.end() ||
           std::ranges::none_of(weights->second, [&](const std::string& weight) {
             return extents_of(weight) == datasets_.at(name).dataset.extents;
           });
  }

  std::vector<std::string> candidates_of(const std::string& mask) {
    constexpr size_t kMostLevels = 16;
    std::vector<std::string> found;
    const std::string key = lower(mask);
    for (const std::string& name : weights_of_mask(key)) {
      add(name, mask, found);
    }
    const std::vector<std::string> parts = parts_of(key);
    for (size_t i = 0; i + 1 < parts.size() && i < kMostLevels; ++i) {
      if (!is_mask_tree(parts[i])) {
        continue;
      }
      std::vector<std::string> rest = parts;
      const bool whole = parts[i] == "mask" || parts[i] == "masks";
      const auto at = rest.begin() + static_cast<std::ptrdiff_t>(i);
      if (!whole) {  // fc1_mask.weight: of fc1.weight
        at->resize(at->rfind("mask"));
        at->resize(at->find_last_not_of("_-") + 1);
        const size_t before = found.size();
        add(joined(rest), mask, found);
        if (found.size() > before) {
          continue;
        }
      }
      rest.erase(at);
      std::vector<std::string> others{joined(rest)};
      for (const std::string& name : weights_of_mask(others[0])) {
        others.push_back(name);
      }
      for (const std::string& name : others) {
        add(name, mask, found);
        if (whole || (i == 0 && rest.size() > 1)) {
          add_other_trees(name, i, mask, found);
        }
      }
    }
    return found;
  }

  void add(const std::string& key, const std::string& mask, std::vector<std::string>& found) const {
    for (const std::string& variant : {key + "_orig", key}) {
      const auto weights = weights_.find(variant);
      if (weights == weights_.end()) {
        continue;
      }
      // Names that differ in case only: the one that is in the mask's.
      const auto exact = [&](const std::string& weight) {
        return weight != mask && mask.find(weight.substr(0, key.size())) != std::string::npos;
      };
      const bool one = weights->second.size() <= kMostCandidates &&
                       std::ranges::count_if(weights->second, exact) == 1;
      bool any = false;
      for (const std::string& weight : weights->second) {
        any = any || weight != mask;
        if (found.size() > kMostCandidates) {
          return;
        }
        if (weight != mask && (!one || exact(weight)) &&
            std::ranges::find(found, weight) == found.end()) {
          found.push_back(weight);
        }
      }
      if (any) {
        return;
      }
    }
  }

  /// Weights named like `key` with other parts, at most kMostParts, inserted before part `at`:
  /// "weights.a" of "a". The fewest count.
  void add_other_trees(const std::string& key, size_t at, const std::string& mask,
                       std::vector<std::string>& found) {
    constexpr size_t kMostParts = 3;
    auto [trees, fresh] = without_parts_.try_emplace(at, kMostParts);
    if (fresh) {
      for (const auto& [name, weights] : weights_) {
        std::vector<std::string> parts = parts_of(name);
        for (Names& tree : trees->second) {
          if (parts.size() <= at + 1 || is_mask_tree(parts[at])) {
            break;
          }
          parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(at));
          tree[joined(parts)].push_back(name);
        }
      }
    }
    for (const Names& tree : trees->second) {
      for (const std::string& variant : {key + "_orig", key}) {
        const auto others = tree.find(variant);
        if (others != tree.end()) {
          for (const std::string& other : others->second) {
            if (found.size() > kMostCandidates) {
              return;
            }
            add(other, mask, found);
          }
          return;
        }
      }
    }
  }

  void pair(const std::string& mask, std::vector<std::string> candidates) {
    const Found& found = datasets_.at(mask);
    if (candidates.size() > 1 && candidates.size() <= kMostCandidates) {
      std::vector<std::string> fitting;
      std::ranges::copy_if(candidates, std::back_inserter(fitting), [&](const std::string& weight) {
        return extents_of(weight) == found.dataset.extents;
      });
      candidates = fitting.size() == 1 ? fitting : candidates;
    }
    const std::string& weight = candidates.front();
    const auto dense = datasets_.find(weight);
    std::string name = weight;
    if (dense != datasets_.end()) {
      take_suffix(name, "_orig");
    }
    PlainArray& array = out_.arrays[name];
    if (dense != datasets_.end() && array.place.empty()) {
      array.place = dense->second.place;
      array.extents = dense->second.dataset.extents;
      used_.insert(weight);
    }
    out_.masks.emplace(mask, name);
    used_.insert(mask);
    if (found.dataset.address != 0) {
      masks_.insert(found.dataset.address);
    }
    if (candidates.size() > 1) {
      array.fault = fmt::format("{} may be the mask of {}; rename one", mask,
                                fmt::join(candidates, " or of "));
    } else if (array.form != PlainArray::Form::dense) {
      array.fault = fmt::format(
          "its stored elements are its mask, because it is a sparse matrix, and {} is a second "
          "one; "
          "remove one",
          mask);
    } else if (!array.mask.empty()) {
      array.fault = fmt::format("{} and {} would both be its mask; remove one",
                                name_of_place(array.mask), mask);
    } else if (!found.fault.empty()) {
      array.fault = fmt::format("its mask {} cannot be read: {}", mask, found.fault);
    } else if (!found.is_float() && !found.is_integer()) {
      array.fault = fmt::format("its mask {} has no numbers; write booleans or uint8", mask);
    } else if (array.extents != found.dataset.extents) {
      array.fault = fmt::format("its mask {} has shape {}, and its values have shape {}", mask,
                                extents_text(found.dataset.extents), extents_text(array.extents));
    }
    array.mask = found.place;
  }

  static constexpr size_t kMostCandidates = 8;  ///< more are one fault
  Datasets& datasets_;
  PlainArrays& out_;
  using Names = std::map<std::string, std::vector<std::string>>;
  Names weights_{};
  /// Keys of weights by their names without 1, 2, … parts from a part on.
  std::map<size_t, std::vector<Names>> without_parts_{};
  std::optional<MaskShapes> shapes_{};  ///< of all weights, once needed
  std::set<std::string> used_{}, positions_{}, loose_{};
  std::set<uint64_t> masks_{};  ///< addresses of used ones
};

/// Why a dataset is no array; none: it is one.
std::optional<Unusable> reason_of(const Found& found) {
  const auto& [type, number, extents, count, fault, content, address] = found.dataset;
  if (!found.fault.empty()) {
    return std::nullopt;  // that of the array
  }
  if (count == 0) {
    return Unusable{"it has no elements", "store its values"};
  }
  if (!found.is_float()) {
    return Unusable{"it holds " + content, "write array.astype(\"float32\")", extents, type};
  }
  if (extents.size() > Shape::kMaxRank) {
    return Unusable{fmt::format("it has {} dimensions", extents.size()),
                    fmt::format("reshape it to {} at most", Shape::kMaxRank), extents, type};
  }
  return std::nullopt;
}

/// Text, and numbers that are no array, do not mask.
bool is_note(const Found& found) {
  const size_t rank = found.dataset.extents.size();
  return found.fault.empty() && (rank == 0 || (rank == 1 && found.dataset.content == "text"));
}

}  // namespace

bool says_mask(std::string_view name) {
  constexpr std::string_view kWord = "mask";
  const std::string text = lower(std::string(name));
  for (size_t at = text.find(kWord); at != std::string::npos; at = text.find(kWord, at + 1)) {
    size_t end = at + kWord.size();
    end += end < text.size() && text[end] == 's' ? 1 : 0;
    if (end == text.size() || text[end] < 'a' || text[end] > 'z') {
      return true;
    }
  }
  return false;
}

bool says_optimizer(std::string_view name) {
  constexpr std::array<std::string_view, 7> kStates{
      "exp_avg", "exp_avg_sq", "max_exp_avg_sq", "exp_inf",
      "moment1", "moment2",    "momentum_buffer"};
  const std::vector<std::string> parts = parts_of(lower(std::string(name)));
  return parts.front().starts_with("optim") ||
         std::ranges::any_of(parts, [&](const std::string& part) {
           return std::ranges::any_of(
               kStates, [&](std::string_view state) { return part.ends_with(state); });
         });
}

PlainArrays plain_arrays(const hdf5::Reader& file, const std::string& label,
                         const LeftOut& left_out) {
  PlainArrays out;
  Datasets datasets;
  for (const std::string& place : file.datasets()) {
    const std::string name = name_of_place(place);
    if (left_out && left_out(name)) {
      continue;
    }
    Found found{.place = place};
    try {
      found.dataset = file.describe(place);
      found.fault = found.dataset.fault;
    } catch (const hdf5::ReadFailure&) {
      throw;
    } catch (const Failure& failure) {
      found.fault = failure.what();
    }
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
    if (pairs.loose(name) && found.has_elements() && !is_note(found)) {
      out.loose_masks.push_back(name);
    }
    if (pairs.of_positions(name)) {
      out.skipped.push_back(name + " (masks positions, not weights)");
      out.unusable.emplace(name, Unusable{.why = "it masks positions, as attention reads it",
                                          .fix = "rename it if it holds weights",
                                          .extents = found.dataset.extents,
                                          .type = found.dataset.type});
      continue;
    }
    if (std::optional<Unusable> reason = reason_of(found)) {
      out.skipped.push_back(name);
      out.unusable.emplace(name, std::move(*reason));
      continue;
    }
    std::string fault = found.fault;
    std::string base = name;
    if (fault.empty() && take_suffix(base, "_orig") && !datasets.contains(base)) {
      const Unusable reason{
          fmt::format("{0}_orig is {0} before torch.nn.utils.prune masks it, and there is no "
                      "{0}_mask",
                      base),
          fmt::format("store {0}_mask, or rename {0}_orig to {0} if all elements are kept", base),
          found.dataset.extents};
      fault = reason.why + "; " + reason.fix;
      out.unusable.emplace(base, reason);
    }
    const auto [other, fresh] = out.arrays.emplace(
        name, PlainArray{.place = found.place, .extents = found.dataset.extents, .fault = fault});
    check(fresh, "{}: datasets {} and {} would both be named {}; rename one", label,
          other->second.place, found.place, name);
  }
  for (const hdf5::DeadLink& link : file.dead_links()) {
    const std::string name = name_of_place(link.path);
    if (left_out && left_out(name)) {
      continue;
    }
    const char* what = link.other_file ? "link to another file" : "link that leads nowhere";
    out.skipped.push_back(fmt::format("{} ({})", name, what));
    out.unusable.emplace(name, Unusable{.why = fmt::format("it is a {}", what),
                                        .fix = "store the array itself in this file",
                                        .link = true});
    if (is_mask_name(name)) {
      out.loose_masks.push_back(name);
    }
  }
  return out;
}

}  // namespace espalier::io
