#pragma once
// A kernel case: operands with initial values, a call, and the expected results. One table of cases
// (kernel_cases.h) drives the comparison of every backend with the reference, the thread-count and
// NaN tests, and the benchmarks.
#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "src/core/mirror.h"
#include "src/core/rng.h"
#include "src/kernels/kernels.h"

namespace espalier::kernels {

using Values = std::vector<double>;
using Tensors = std::vector<Tensor>;

/// |got - want| <= absolute + relative |want|. Results of 16 bits get an additional relative
/// tolerance of `rounding_of`: they are rounded once, and a tie may round the other way when fp32
/// and double differ in the last bit.
struct Tolerance {
  double absolute = 0;
  double relative = 0;
};

struct Operand {
  DType dtype = DType::fp32;
  Shape shape;
  Values values;  ///< initial values; for a pure output, numbers that the call must overwrite
  Tolerance tolerance;
  bool input = false;
  bool output = false;
  int64_t nan_at = 0;  ///< an element on which some output depends
};

struct Case {
  std::string name;
  std::vector<Operand> operands;
  std::function<void(const Kernels&, Stream&, const Tensors&)> run;
  /// Replaces the outputs among the operands' values with the expected ones.
  std::function<void(std::vector<Values>&)> reference;
  /// Whether a table has the rows that `run` calls; empty: all tables do.
  std::function<bool(const Kernels&)> has_rows;
  bool any_thread_count = true;  ///< results are bitwise equal for every number of threads
  bool passes_nan = true;
  bool any_inputs = true;  ///< false: an earlier call computed some inputs from others
};

/// Half a unit in the last place of 1.
inline double rounding_of(DType dtype) {
  return dtype == DType::bf16 ? 0x1p-8 : dtype == DType::fp16 ? 0x1p-11 : 0;
}

/// Tolerance of f(y) with y stored in `dtype`: where the sum lies between two 16-bit numbers, a
/// table may store either.
inline Tolerance of_stored(DType dtype, Tolerance of_y) {
  return dtype == DType::fp32
             ? of_y
             : Tolerance{of_y.absolute + 1e-3, of_y.relative + 2 * rounding_of(dtype)};
}

inline double rounded(DType dtype, double x) {
  switch (dtype) {
    case DType::bf16:
      return to_float(to_bf16(static_cast<float>(x)));
    case DType::fp16:
      return to_float(to_fp16(static_cast<float>(x)));
    case DType::fp32:
      return static_cast<float>(x);
    default:
      return x;
  }
}

/// Numbers in [low, high); a pure function of (seed, element).
inline Values draw(uint64_t seed, int64_t count, double low, double high) {
  Values values(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    const Philox bits = philox(seed, 7, static_cast<uint64_t>(i));
    values[i] = low + (high - low) * uniform(bits[0]);
  }
  return values;
}

inline Operand operand(DType dtype, const Shape& shape, double low, double high) {
  static uint64_t seed = 100;
  Operand made{.dtype = dtype, .shape = shape, .values = draw(++seed, shape.count(), low, high)};
  for (double& value : made.values) {
    value = is_number(dtype) ? rounded(dtype, value) : std::floor(value);
  }
  return made;
}

inline Operand input(DType dtype, const Shape& shape, double low = -1, double high = 1) {
  Operand made = operand(dtype, shape, low, high);
  made.input = true;
  return made;
}

/// Ids in [0, limit).
inline Operand ids(const Shape& shape, int64_t limit) {
  return input(DType::int32, shape, 0, static_cast<double>(limit));
}

inline Operand output(DType dtype, const Shape& shape, Tolerance tolerance) {
  Operand made = operand(dtype, shape, 5, 9);
  made.output = true;
  made.tolerance = tolerance;
  return made;
}

inline Operand in_out(DType dtype, const Shape& shape, Tolerance tolerance, double low = -1,
                      double high = 1) {
  Operand made = input(dtype, shape, low, high);
  made.output = true;
  made.tolerance = tolerance;
  return made;
}

/// An output that the call adds to, or overwrites.
inline Operand in_out_if(bool adds, DType dtype, const Shape& shape, Tolerance tolerance) {
  return adds ? in_out(dtype, shape, tolerance) : output(dtype, shape, tolerance);
}

/// Arrays that a case's calls point to, at an address valid for kernels of a stream: the host array
/// itself, or on a device a copy made by the first call. A case is destroyed before the arenas of
/// its streams.
class Reach {
 public:
  template <class T>
  const T* of(Stream& stream, const std::vector<T>& host) const {
    if (!stream.arena().on_device() || stream.arena().dry() || host.empty()) {
      return host.data();
    }
    const std::pair<const void*, const void*> key{&stream.arena(), host.data()};
    auto found = copies_.find(key);
    if (found == copies_.end()) {
      const Tensor bytes(const_cast<T*>(host.data()), DType::uint8,
                         {static_cast<int64_t>(host.size() * sizeof(T))});
      found = copies_.emplace(key, Mirror::of_host(stream, bytes)).first;
      found->second.write();
    }
    return static_cast<const T*>(found->second.device().data);
  }

 private:
  mutable std::map<std::pair<const void*, const void*>, Mirror> copies_;
};

/// Forms in which a kernel gets the positions of kept elements.
enum class Form : uint8_t { all, list, bitmap };
inline std::string name_of(Form form) {
  return form == Form::all ? "all" : form == Form::list ? "list" : "bitmap";
}

/// The kept elements of a random mask, in all forms.
struct Kept {
  Form form = Form::all;
  int64_t size = 0;
  std::vector<int32_t> list;
  std::vector<uint64_t> bitmap;
  std::vector<uint32_t> prefix_counts;

  Kept(Form which, int64_t elements, double density) : form(which), size(elements) {
    bitmap.assign(static_cast<size_t>((elements + 63) / 64), 0);
    for (int64_t i = 0; i < elements; ++i) {
      if (which == Form::all || uniform(philox(3, 9, static_cast<uint64_t>(i))[0]) < density) {
        list.push_back(static_cast<int32_t>(i));
        bitmap[i / 64] |= uint64_t{1} << (i % 64);
      }
    }
    uint32_t before = 0;
    for (size_t word = 0; word < bitmap.size(); ++word) {
      if (word % 8 == 0) {
        prefix_counts.push_back(before);
      }
      before += static_cast<uint32_t>(__builtin_popcountll(bitmap[word]));
    }
  }

  int64_t count() const { return static_cast<int64_t>(list.size()); }
  int64_t first() const { return list.empty() ? 0 : list[0]; }
  Positions positions() const {
    return {.size = size,
            .count = count(),
            .list = form == Form::list ? list.data() : nullptr,
            .bitmap = form == Form::bitmap ? bitmap.data() : nullptr,
            .prefix_counts = form == Form::bitmap ? prefix_counts.data() : nullptr};
  }
  /// Positions for kernels of a stream.
  Positions positions(Stream& stream) const {
    Positions made = positions();
    made.list = form == Form::list ? reach_.of(stream, list) : nullptr;
    made.bitmap = form == Form::bitmap ? reach_.of(stream, bitmap) : nullptr;
    made.prefix_counts = form == Form::bitmap ? reach_.of(stream, prefix_counts) : nullptr;
    return made;
  }

 private:
  Reach reach_;
};

/// Writes x to element i of a tensor; a uint64 element stores the bits of the double.
inline void write(const Tensor& t, int64_t i, double x) {
  switch (t.dtype) {
    case DType::fp32:
      t.get<float>()[i] = static_cast<float>(x);
      return;
    case DType::bf16:
      t.get<bf16>()[i] = to_bf16(static_cast<float>(x));
      return;
    case DType::fp16:
      t.get<fp16>()[i] = to_fp16(static_cast<float>(x));
      return;
    case DType::int32:
      t.get<int32_t>()[i] = static_cast<int32_t>(x);
      return;
    case DType::uint16:
      t.get<uint16_t>()[i] = static_cast<uint16_t>(x);
      return;
    case DType::uint8:
      t.get<uint8_t>()[i] = static_cast<uint8_t>(x);
      return;
    default:
      t.get<uint64_t>()[i] = std::bit_cast<uint64_t>(x);
  }
}

inline double read(const Tensor& t, int64_t i) {
  switch (t.dtype) {
    case DType::fp32:
      return t.get<float>()[i];
    case DType::bf16:
      return to_float(t.get<bf16>()[i]);
    case DType::fp16:
      return to_float(t.get<fp16>()[i]);
    case DType::int32:
      return t.get<int32_t>()[i];
    case DType::uint16:
      return t.get<uint16_t>()[i];
    case DType::uint8:
      return t.get<uint8_t>()[i];
    default:
      return std::bit_cast<double>(t.get<uint64_t>()[i]);
  }
}

inline void write_all(const Operand& operand, const Tensor& t) {
  for (int64_t i = 0; i < t.count(); ++i) {
    write(t, i, operand.values[i]);
  }
}

/// Describes the first element outside its tolerance; empty: none. NaN must match NaN.
inline std::string mismatch(const Operand& operand, const Tensor& got, const Values& want) {
  const double rounding = rounding_of(operand.dtype);
  const double least = operand.dtype == DType::fp16 ? 0x1p-25 : 0;  // of subnormal numbers
  for (int64_t i = 0; i < got.count(); ++i) {
    const double value = read(got, i);
    const double right = want[i];
    const double allowed = operand.tolerance.absolute + least +
                           (operand.tolerance.relative + rounding) * std::fabs(right);
    const bool same = value == right || (std::isnan(value) && std::isnan(right));
    if (!same && !(std::fabs(value - right) <= allowed)) {
      return fmt::format("element {}: {} instead of {}, allowed {}", i, value, right, allowed);
    }
  }
  return "";
}

/// Values of all operands after the call.
inline std::vector<Values> expected(const Case& one) {
  std::vector<Values> values;
  for (const Operand& operand : one.operands) {
    values.push_back(operand.values);
  }
  one.reference(values);
  return values;
}

/// Describes the first wrong element of any operand; empty: none. Inputs must not have changed.
inline std::string mismatch(const Case& one, const Tensors& got, const std::vector<Values>& want) {
  for (size_t i = 0; i < want.size(); ++i) {
    const std::string wrong = mismatch(one.operands[i], got[i], want[i]);
    if (!wrong.empty()) {
      return fmt::format("operand {}, {}", i, wrong);
    }
  }
  return "";
}

}  // namespace espalier::kernels
