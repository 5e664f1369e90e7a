#include "io/checkpoint/plain_hdf5.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <new>
#include <numeric>
#include <set>

#include "src/core/error.h"

namespace espalier::io {
namespace {

/// Elements of a sparse matrix for each byte of its file, at most; a few more are ordinary.
constexpr double kMostElementsPerByte = 1024;
constexpr double kElementsSlack = 1 << 20;

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t corner = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = corner + (a[i - 1] == b[j - 1] ? 0 : 1);
      corner = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
    }
  }
  return row[b.size()];
}

template <class T>
std::vector<T> sized(size_t count, const std::filesystem::path& path, const std::string& name) {
  try {
    return std::vector<T>(count);
  } catch (const std::bad_alloc&) {
    fail("{}: {} has {} elements, too many for the free memory; use a machine with more memory",
         path.string(), name, count);
  }
}

/// Element [r, c] of the result is [c, r] of `in`, which has `rows` rows.
template <class T>
void transpose_in_place(std::vector<T>& in, int64_t rows) {
  const auto height = static_cast<size_t>(rows);
  const size_t width = height == 0 ? 0 : in.size() / height;
  std::vector<T> out(in.size());
  for (size_t r = 0; r < height; ++r) {
    for (size_t c = 0; c < width; ++c) {
      out[c * height + r] = in[r * width + c];
    }
  }
  in = std::move(out);
}

/// Each row [channels, positions] becomes [positions, channels].
template <class T>
void move_channels_last(std::vector<T>& values, int64_t rows, int64_t channels) {
  const auto height = static_cast<size_t>(rows);
  const size_t width = height == 0 ? 0 : values.size() / height;
  const auto deep = static_cast<size_t>(channels);
  const size_t positions = deep == 0 ? 0 : width / deep;
  std::vector<T> row(width);
  for (size_t r = 0; r < height; ++r) {
    T* at = values.data() + r * width;
    for (size_t c = 0; c < deep; ++c) {
      for (size_t p = 0; p < positions; ++p) {
        row[p * deep + c] = at[c * positions + p];
      }
    }
    std::copy(row.begin(), row.end(), at);
  }
}

/// Applies the changes of layout of a part to a whole array of this shape.
template <class T>
void change_layout(std::vector<T>& values, const Shape& shape, const ArrayPart& part) {
  if (values.empty()) {
    return;
  }
  int64_t rows = shape.rank() == 0 ? 1 : shape[0];
  if (part.transposed) {
    transpose_in_place(values, rows);
    rows = std::ssize(values) / rows;
  }
  if (part.channels_last) {
    move_channels_last(values, rows, shape[1]);
  }
  if (part.channels > 0) {
    move_channels_last(values, rows, part.channels);
  }
}

}  // namespace

std::string expected_and_found(const NamedShapes& expected, const NamedShapes& found) {
  constexpr size_t kMostExpected = 10;
  constexpr size_t kMostFound = 20;
  constexpr size_t kNearest = 3;
  std::string text;
  std::set<std::string> shown;
  for (size_t i = 0; i < expected.size() && i < kMostExpected; ++i) {
    const auto& [name, shape] = expected[i];
    // Arrays of the same shape first, then by the letters to change.
    std::vector<std::pair<std::pair<bool, size_t>, size_t>> order;
    for (size_t f = 0; f < found.size() && f < 4096; ++f) {
      order.push_back({{found[f].second != shape, edit_distance(name, found[f].first)}, f});
    }
    const size_t near = std::min(kNearest, order.size());
    std::ranges::partial_sort(order, order.begin() + static_cast<std::ptrdiff_t>(near));
    std::vector<std::string> nearest;
    for (size_t n = 0; n < near; ++n) {
      const auto& [other, other_shape] = found[order[n].second];
      nearest.push_back(other + " " + other_shape);
      shown.insert(other);
    }
    text += fmt::format("\n  expected {} {}{}{}", name, shape,
                        nearest.empty() ? "" : "; nearest found: ", fmt::join(nearest, ", "));
  }
  if (expected.size() > kMostExpected) {
    text += fmt::format("\n  and {} more expected", expected.size() - kMostExpected);
  }
  std::vector<std::string> others;
  for (const auto& [name, shape] : found) {
    if (!shown.contains(name)) {
      others.push_back(name + " " + shape);
    }
  }
  const size_t more = others.size() > kMostFound ? others.size() - kMostFound : 0;
  others.resize(others.size() - more);
  if (!others.empty()) {
    text += fmt::format("\n  also found: {}{}", fmt::join(others, ", "),
                        more > 0 ? fmt::format(" and {} more", more) : "");
  }
  return text;
}

PlainReader::PlainReader(std::filesystem::path path, const LeftOut& left_out)
    : path_(std::move(path)),
      file_(path_),
      arrays_(plain_arrays(file_, path_.string(), left_out)) {}

const PlainArray& PlainReader::array(const std::string& name) const {
  const auto found = arrays_.arrays.find(name);
  const auto unusable = arrays_.unusable.find(name);
  if (found == arrays_.arrays.end() && unusable != arrays_.unusable.end()) {
    fail("{}: {} cannot be used: {}; {}", path_.string(), name, unusable->second.why,
         unusable->second.fix);
  }
  check(found != arrays_.arrays.end(),
        "{} has no floating-point dataset for {}; compare names with `espalier inspect` ('/' "
        "counts as '.')",
        path_.string(), name);
  const std::string& fault = found->second.fault;
  if (!fault.empty()) {
    fail("{}", fault.starts_with(path_.string())
                   ? fault
                   : fmt::format("{}: {}: {}", path_.string(), name, fault));
  }
  return found->second;
}

bool PlainReader::has(const std::string& name) const {
  return views_.empty() ? arrays_.arrays.contains(name) || arrays_.unusable.contains(name)
                        : views_.contains(name);
}

std::vector<std::string> PlainReader::names() const {
  std::vector<std::string> out;
  const auto add = [&](const auto& all) {
    for (const auto& [name, what] : all) {
      out.push_back(name);
    }
  };
  views_.empty() ? add(arrays_.arrays) : add(views_);
  return out;
}

Shape PlainReader::array_shape(const std::string& name) const {
  const auto& extents = array(name).extents;  // of a masked array perhaps more
  check(extents.size() <= Shape::kMaxRank,
        "{}: {} has {} dimensions, but at most {} are supported; remove it", path_.string(), name,
        extents.size(), Shape::kMaxRank);
  return Shape(extents);
}

Shape PlainReader::shape(const std::string& name) const {
  const auto view = views_.find(name);
  return view == views_.end() ? array_shape(name) : view->second.shape;
}

NamedShapes PlainReader::named_shapes() const {
  NamedShapes out;
  for (const auto& [name, array] : arrays_.arrays) {
    out.emplace_back(name, array.fault.empty() ? fmt::format("[{}]", fmt::join(array.extents, ", "))
                                               : fmt::format("({})", array.fault));
  }
  for (const auto& [name, unusable] : arrays_.unusable) {
    out.emplace_back(name, fmt::format("({})", unusable.why));
  }
  return out;
}

bool PlainReader::is_masked(const std::string& array_name) const {
  const PlainArray& found = array(array_name);
  return !found.mask.empty() || found.form != PlainArray::Form::dense;
}

bool PlainReader::is_masked(const ArrayView& view) const {
  return std::ranges::any_of(view.parts,
                             [&](const ArrayPart& part) { return is_masked(part.array); });
}

bool PlainReader::has_mask(const std::string& name) const {
  const auto view = views_.find(name);
  return view == views_.end() ? is_masked(name) : is_masked(view->second);
}

DType PlainReader::type(const std::string& name) const {
  const auto of_array = [&](const std::string& array_name) {
    const hdf5::Type type = file_.describe(array(array_name).place).number;
    return type == hdf5::Type::fp16   ? DType::fp16
           : type == hdf5::Type::bf16 ? DType::bf16
                                      : DType::fp32;
  };
  const auto view = views_.find(name);
  if (view == views_.end()) {
    return of_array(name);
  }
  const ArrayView& wanted = view->second;
  if (wanted.parts.empty() || wanted.added != 0.0F || !wanted.subtracted.empty()) {
    return DType::fp32;
  }
  const DType first = of_array(wanted.parts.front().array);
  const bool same = std::ranges::all_of(
      wanted.parts, [&](const ArrayPart& part) { return of_array(part.array) == first; });
  return same ? first : DType::fp32;
}

std::vector<float> PlainReader::floats(const std::string& place, const std::string& name) const {
  auto out = sized<float>(static_cast<size_t>(file_.describe(place).count), path_, name);
  file_.read(place, hdf5::Type::fp32, std::as_writable_bytes(std::span(out)));
  return out;
}

std::vector<int64_t> PlainReader::integers(const std::string& place,
                                           const std::string& name) const {
  auto out = sized<int64_t>(static_cast<size_t>(file_.describe(place).count), path_, name);
  file_.read(place, hdf5::Type::int64, std::as_writable_bytes(std::span(out)));
  return out;
}

void PlainReader::read_sparse(const std::string& name, const PlainArray& array,
                              Contents& out) const {
  const auto [rows, columns] = std::pair(array.extents[0], array.extents[1]);
  const auto bad = [&](bool ok, std::string_view what) {
    check(ok, "{}: sparse matrix {}: {}; write it again with scipy", path_.string(), name, what);
  };
  const double elements = static_cast<double>(rows) * static_cast<double>(columns);
  bad(elements <= kMostElementsPerByte * static_cast<double>(file_.size()) + kElementsSlack,
      "its shape is impossible in a file of this size");
  const std::vector<float> values = floats(array.place, name);
  std::vector<int64_t> row_numbers = integers(array.rows, name);
  std::vector<int64_t> column_numbers =
      array.columns == array.rows ? std::vector<int64_t>() : integers(array.columns, name);
  const size_t count = values.size();
  if (array.columns == array.rows) {  // [2, count]
    bad(row_numbers.size() == 2 * count, "its indices are not two rows of one for each value");
    column_numbers.assign(row_numbers.begin() + static_cast<std::ptrdiff_t>(count),
                          row_numbers.end());
    row_numbers.resize(count);
  }
  const auto expand = [&](std::vector<int64_t>& pointers, int64_t lines) {
    bad(static_cast<int64_t>(pointers.size()) == lines + 1 && pointers.front() == 0 &&
            std::ranges::is_sorted(pointers) && pointers.back() == static_cast<int64_t>(count),
        "its pointers do not ascend from 0 to the number of values");
    std::vector<int64_t> numbers;
    numbers.reserve(count);
    for (int64_t line = 0; line < lines; ++line) {
      numbers.insert(numbers.end(),
                     static_cast<size_t>(pointers[static_cast<size_t>(line) + 1] -
                                         pointers[static_cast<size_t>(line)]),
                     line);
    }
    pointers = std::move(numbers);
  };
  if (array.form == PlainArray::Form::csr) {
    expand(row_numbers, rows);
  } else if (array.form == PlainArray::Form::csc) {
    expand(column_numbers, columns);
  }
  bad(row_numbers.size() == count && column_numbers.size() == count,
      "it has not one index for each value");
  out.values = sized<float>(static_cast<size_t>(rows * columns), path_, name);
  out.kept = sized<uint8_t>(out.values.size(), path_, name);
  for (size_t i = 0; i < count; ++i) {
    const int64_t row = row_numbers[i];
    const int64_t column = column_numbers[i];
    bad(row >= 0 && row < rows && column >= 0 && column < columns,
        "an index lies outside of its shape");
    const auto at = static_cast<size_t>(row * columns + column);
    bad(out.kept[at] == 0, "an element is stored twice (scipy: sum_duplicates)");
    out.kept[at] = 1;
    out.values[at] = values[i];
  }
}

PlainReader::Contents PlainReader::contents(const std::string& name) const {
  const PlainArray& found = array(name);
  Contents out;
  if (found.form != PlainArray::Form::dense) {
    read_sparse(name, found, out);
    return out;
  }
  out.values = floats(found.place, name);
  if (found.mask.empty()) {
    return out;
  }
  const std::vector<float> mask = floats(found.mask, name);
  out.kept = sized<uint8_t>(mask.size(), path_, name);
  bool inverted = true;  // 1 for zeros, 0 for others
  for (size_t i = 0; i < mask.size(); ++i) {
    inverted = inverted && (mask[i] == 1.0F) == (out.values[i] == 0.0F);
    check(mask[i] == 0.0F || mask[i] == 1.0F,
          "{}: {}, the mask of {}, has the value {} (element {}); a mask holds 0 and 1 only: 0 "
          "where an element is pruned",
          path_.string(), found.mask, name, mask[i], i);
    out.kept[i] = mask[i] == 1.0F ? 1 : 0;
    out.values[i] = out.kept[i] == 1 ? out.values[i] : 0.0F;
  }
  const auto kept = std::ranges::count(out.kept, uint8_t{1});
  check(
      !inverted || kept == 0 || kept == std::ssize(out.kept),
      "{}: {}, the mask of {}, keeps its zeros, and nothing else; a mask holds 1 where an element "
      "is kept: store its inverse",
      path_.string(), found.mask, name);
  return out;
}

PlainReader::Contents PlainReader::viewed(const std::string& name) const {
  const auto view = views_.find(name);
  return view == views_.end() ? contents(name) : viewed(view->second);
}

PlainReader::Contents PlainReader::viewed(const ArrayView& wanted) const {
  const auto count = static_cast<size_t>(wanted.shape.count());
  const bool masked = is_masked(wanted);
  Contents out;
  out.values.reserve(count);
  Contents whole;
  const ArrayPart* last = nullptr;
  for (const ArrayPart& part : wanted.parts) {
    const bool same = last != nullptr && last->array == part.array &&
                      last->transposed == part.transposed &&
                      last->channels_last == part.channels_last && last->channels == part.channels;
    if (!same) {
      whole = contents(part.array);
      change_layout(whole.values, array_shape(part.array), part);
      change_layout(whole.kept, array_shape(part.array), part);
    }
    last = &part;
    const auto row = static_cast<size_t>(wanted.shape.rank() == 2 ? wanted.shape[1] : 1);
    const size_t begin = static_cast<size_t>(part.first) * row;
    const size_t end = begin + static_cast<size_t>(part.rows) * row;
    require(end <= whole.values.size(), "a part lies within its array", part.array);
    const auto append = [&](const auto& from, auto& to) {
      to.insert(to.end(), from.begin() + static_cast<std::ptrdiff_t>(begin),
                from.begin() + static_cast<std::ptrdiff_t>(end));
    };
    append(whole.values, out.values);
    if (masked && whole.kept.empty()) {
      out.kept.insert(out.kept.end(), end - begin, uint8_t{1});
    } else if (masked) {
      append(whole.kept, out.kept);
    }
  }
  out.values.resize(wanted.parts.empty() ? count : out.values.size());
  require(out.values.size() == count, "parts fill the parameter", wanted.shape.text());
  if (wanted.added != 0.0F) {
    for (float& value : out.values) {
      value += wanted.added;
    }
  }
  if (!wanted.subtracted.empty()) {
    const std::vector<float> less = contents(wanted.subtracted).values;
    require(less.size() == count, "as many elements", wanted.subtracted);
    std::ranges::transform(out.values, less, out.values.begin(), std::minus{});
  }
  return out;
}

std::vector<float> PlainReader::read(const std::string& name) const { return viewed(name).values; }

std::vector<uint8_t> PlainReader::kept(const std::string& name) const {
  return has_mask(name) ? viewed(name).kept : std::vector<uint8_t>();
}

void PlainWriter::write(const std::string& name, const Shape& shape,
                        std::span<const float> values) {
  require(static_cast<size_t>(shape.count()) == values.size(), "values must fill the shape", name,
          shape.text(), values.size());
  require(!name.empty() && name.find('/') == std::string::npos && name != ".", "a name has no '/'",
          name);
  file_.write("/" + name, hdf5::Type::fp32, shape.extents(), values.data());
}

}  // namespace espalier::io
