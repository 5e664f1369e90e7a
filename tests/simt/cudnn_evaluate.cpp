// Evaluates a graph of cuDNN's operations one by one; each tensor is an array of fp32 numbers.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "src/core/error.h"
#include "src/core/types.h"
#include "tests/simt/cudnn_host.h"

namespace espalier::simt::cudnn {
namespace {

using kernels::cudnn::Pointwise;
using kernels::cudnn::Reduction;

struct Array {
  std::array<int64_t, 4> extents{};
  std::vector<float> values;

  explicit Array(const Descriptor& tensor) : values(static_cast<size_t>(tensor.count())) {
    for (size_t axis = 0; axis < 4; ++axis) {
      extents[axis] = tensor.extent(axis);
    }
  }
  /// An axis of one element is broadcast.
  float& at(const std::array<int64_t, 4>& place) {
    int64_t i = 0;
    for (size_t axis = 0; axis < 4; ++axis) {
      i = i * extents[axis] + (extents[axis] == 1 ? 0 : place[axis]);
    }
    return values[i];
  }
};

/// An element of a tensor in memory.
float load(const void* data, Data type, int64_t i) {
  switch (type) {
    case Data::bf16:
      return to_float(static_cast<const bf16*>(data)[i]);
    case Data::fp16:
      return to_float(static_cast<const fp16*>(data)[i]);
    default:
      return static_cast<const float*>(data)[i];
  }
}

void store(void* data, Data type, int64_t i, float value) {
  switch (type) {
    case Data::bf16:
      static_cast<bf16*>(data)[i] = to_bf16(value);
      break;
    case Data::fp16:
      static_cast<fp16*>(data)[i] = to_fp16(value);
      break;
    default:
      static_cast<float*>(data)[i] = value;
  }
}

/// Rounded to 10 bits of mantissa, to nearest.
float to_tf32(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  return std::isfinite(x) ? std::bit_cast<float>((bits + 0x1000U) & ~0x1fffU) : x;
}

template <class Body>
void for_each(const std::array<int64_t, 4>& extents, const Body& body) {
  std::array<int64_t, 4> at{};
  for (at[0] = 0; at[0] < extents[0]; ++at[0]) {
    for (at[1] = 0; at[1] < extents[1]; ++at[1]) {
      for (at[2] = 0; at[2] < extents[2]; ++at[2]) {
        for (at[3] = 0; at[3] < extents[3]; ++at[3]) {
          body(at);
        }
      }
    }
  }
}

class Run {
 public:
  Run(const Places& places, const std::map<int64_t, float>& numbers, bool tf32)
      : places_(places), numbers_(numbers), tf32_(tf32) {}

  void compute(const Descriptor& operation) {
    const std::vector<Attribute> names = operands_of(operation);
    const Descriptor& result = operation.object(names.back());
    Array y(result);
    switch (operation.kind) {
      case Kind::operation_matmul:
        multiply(read(operation.object(names[0])), read(operation.object(names[1])), y);
        break;
      case Kind::operation_convolution_forward:
      case Kind::operation_convolution_input:
      case Kind::operation_convolution_weight:
        convolve(operation, read(operation.object(names[0])), read(operation.object(names[1])), y);
        break;
      case Kind::operation_reduction:
        reduce(operation.object(Attribute::operation_reduction_mode),
               read(operation.object(names[0])), y);
        break;
      case Kind::operation_reshape:
        y = turned(read(operation.object(names[0])), y);
        break;
      default:
        combine(operation, y);
    }
    write(result, y);
  }

 private:
  static int64_t offset(const Descriptor& tensor, const std::array<int64_t, 4>& at) {
    int64_t sum = 0;
    for (size_t axis = 0; axis < 4; ++axis) {
      sum += at[axis] * tensor.stride(axis);
    }
    return sum;
  }

  Array read(const Descriptor& tensor) {
    const auto id = tensor.get<int64_t>(Attribute::tensor_id);
    Array made(tensor);
    if (tensor.flag(Attribute::tensor_by_value)) {
      made.values.front() = numbers_.at(id);
    } else if (tensor.flag(Attribute::tensor_virtual)) {
      require(known_.contains(id), "operations come in order", id);
      return known_.at(id);
    } else {
      const void* data = places_.at(id);
      const auto type = tensor.get<Data>(Attribute::tensor_type);
      for_each(made.extents,
               [&](const auto& at) { made.at(at) = load(data, type, offset(tensor, at)); });
    }
    return made;
  }

  void write(const Descriptor& tensor, Array y) {
    const auto id = tensor.get<int64_t>(Attribute::tensor_id);
    const auto type = tensor.get<Data>(Attribute::tensor_type);
    if (tensor.flag(Attribute::tensor_virtual)) {
      for (float& value : y.values) {
        value = type == Data::bf16 ? to_float(to_bf16(value)) : value;
      }
      known_.insert_or_assign(id, std::move(y));
      return;
    }
    void* data = places_.at(id);
    for_each(y.extents, [&](const auto& at) { store(data, type, offset(tensor, at), y.at(at)); });
  }

  static void multiply(Array a, Array b, Array& y) {
    for_each(y.extents, [&](const auto& at) {
      float sum = 0;
      for (int64_t k = 0; k < a.extents[3]; ++k) {
        sum += a.at({at[0], at[1], at[2], k}) * b.at({at[0], at[1], k, at[3]});
      }
      y.at(at) = sum;
    });
  }

  /// The first two operands of operands_of, and the result.
  void convolve(const Descriptor& operation, Array a, Array b, Array& result) {
    for (Array* operand : {&a, &b}) {
      for (float& value : operand->values) {
        value = tf32_ ? to_tf32(value) : value;
      }
    }
    const bool of_input = operation.kind == Kind::operation_convolution_input;
    const bool of_weight = operation.kind == Kind::operation_convolution_weight;
    Array& x = of_input ? result : a;
    Array& w = of_input ? a : of_weight ? result : b;
    Array& y = of_input || of_weight ? b : result;
    const Descriptor& mode = operation.object(mode_of(operation.kind));
    std::ranges::fill(result.values, 0.0F);
    for_each(y.extents, [&](const auto& at) {
      std::array<int64_t, 2> first{};
      for (size_t axis = 0; axis < 2; ++axis) {
        first[axis] = at[axis + 2] * mode.number(Attribute::convolution_strides, axis) -
                      mode.number(Attribute::convolution_paddings_before, axis);
      }
      for_each({1, w.extents[1], w.extents[2], w.extents[3]}, [&](const auto& place) {
        const int64_t row = first[0] + place[2];
        const int64_t column = first[1] + place[3];
        if (row < 0 || row >= x.extents[2] || column < 0 || column >= x.extents[3]) {
          return;
        }
        float& of_x = x.at({at[0], place[1], row, column});
        float& of_w = w.at({at[1], place[1], place[2], place[3]});
        float& of_y = y.at(at);
        if (of_input) {
          of_x += of_w * of_y;
        } else if (of_weight) {
          of_w += of_x * of_y;
        } else {
          of_y += of_x * of_w;
        }
      });
    });
  }

  static void reduce(const Descriptor& mode, Array x, Array& y) {
    const bool adds = mode.get<Reduction>(Attribute::reduction_operator) == Reduction::add;
    std::ranges::fill(y.values, adds ? 0.0F : -INFINITY);
    for_each(x.extents, [&](const auto& at) {
      float& to = y.at(at);
      to = adds ? to + x.at(at) : std::fmax(to, x.at(at));
    });
  }

  /// Transposes: rows become columns.
  static Array turned(Array x, Array y) {
    for_each(x.extents, [&](const auto& at) { y.at({at[0], at[1], at[3], at[2]}) = x.at(at); });
    return y;
  }

  static float apply(Pointwise how, float x, float b, float t) {
    switch (how) {
      case Pointwise::add:
        return x + b;
      case Pointwise::multiply:
        return x * b;
      case Pointwise::divide:
        return x / b;
      case Pointwise::subtract:
        return x - b;
      case Pointwise::exp:
        return std::exp(x);
      case Pointwise::log:
        return std::log(x);
      case Pointwise::identity:
        return x;
      case Pointwise::greater_or_equal:
        return x >= b ? 1.0F : 0.0F;
      case Pointwise::select:
        return t != 0 ? x : b;
      case Pointwise::index:
        break;
    }
    return 0;
  }

  void combine(const Descriptor& operation, Array& y) {
    const Descriptor& mode = operation.object(Attribute::operation_pointwise_mode);
    const auto how = mode.get<Pointwise>(Attribute::pointwise_mode);
    if (how == Pointwise::index) {
      const auto axis = static_cast<size_t>(mode.get<int64_t>(Attribute::pointwise_axis));
      for_each(y.extents, [&](const auto& at) { y.at(at) = static_cast<float>(at[axis]); });
      return;
    }
    Array x = read(operation.object(Attribute::operation_pointwise_x));
    const auto optional = [&](Attribute what) {
      return operation.has(what) ? read(operation.object(what)) : x;
    };
    Array b = optional(Attribute::operation_pointwise_b);
    Array t = optional(Attribute::operation_pointwise_t);
    for_each(y.extents,
             [&](const auto& at) { y.at(at) = apply(how, x.at(at), b.at(at), t.at(at)); });
  }

  const Places& places_;
  const std::map<int64_t, float>& numbers_;
  const bool tf32_;
  std::map<int64_t, Array> known_;
};

}  // namespace

bool is_convolution(Kind kind) {
  return kind == Kind::operation_convolution_forward || kind == Kind::operation_convolution_input ||
         kind == Kind::operation_convolution_weight;
}

Attribute mode_of(Kind convolution) {
  switch (convolution) {
    case Kind::operation_convolution_input:
      return Attribute::operation_convolution_input_mode;
    case Kind::operation_convolution_weight:
      return Attribute::operation_convolution_weight_mode;
    default:
      return Attribute::operation_convolution_forward_mode;
  }
}

std::vector<Attribute> operands_of(const Descriptor& operation) {
  switch (operation.kind) {
    case Kind::operation_convolution_forward:
      return {Attribute::operation_convolution_forward_x,
              Attribute::operation_convolution_forward_w,
              Attribute::operation_convolution_forward_y};
    case Kind::operation_convolution_input:
      return {Attribute::operation_convolution_input_w, Attribute::operation_convolution_input_dy,
              Attribute::operation_convolution_input_dx};
    case Kind::operation_convolution_weight:
      return {Attribute::operation_convolution_weight_x, Attribute::operation_convolution_weight_dy,
              Attribute::operation_convolution_weight_dw};
    case Kind::operation_matmul:
      return {Attribute::operation_matmul_a, Attribute::operation_matmul_b,
              Attribute::operation_matmul_c};
    case Kind::operation_reduction:
      return {Attribute::operation_reduction_x, Attribute::operation_reduction_y};
    case Kind::operation_reshape:
      return {Attribute::operation_reshape_x, Attribute::operation_reshape_y};
    default:
      break;
  }
  std::vector<Attribute> names{Attribute::operation_pointwise_x};
  for (const Attribute more :
       {Attribute::operation_pointwise_b, Attribute::operation_pointwise_t}) {
    if (operation.has(more)) {
      names.push_back(more);
    }
  }
  names.push_back(Attribute::operation_pointwise_y);
  return names;
}

void evaluate(const Descriptor& graph, const Places& places,
              const std::map<int64_t, float>& numbers, bool tf32) {
  Run run(places, numbers, tf32);
  for (const auto& operation : graph.values.at(Attribute::graph_operations).objects) {
    run.compute(*operation);
  }
}

}  // namespace espalier::simt::cudnn
