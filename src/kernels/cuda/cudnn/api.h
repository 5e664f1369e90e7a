#pragma once
// The part of cuDNN's graph interface that attention and convolutions use, as of 9.10; later
// libraries of version 9 keep it. The declarations are here so that every build has them. The
// library itself is loaded on first use (library.h). A test compares them with cudnn.h where that
// exists.
// Source: NVIDIA cuDNN 9, "Backend API", docs.nvidia.com/deeplearning/cudnn.
#include <cstddef>
#include <cstdint>

namespace espalier::kernels::cudnn {

using Handle = void*;
using Stream = void*;
/// An opaque descriptor of any kind.
using Object = void*;

enum class Status : int { success = 0 };  ///< others are errors; GetErrorString describes them

/// The kind of a descriptor.
enum class Kind : int {
  pointwise = 0,
  convolution = 1,
  engine = 2,
  engine_config = 3,
  heuristics = 4,
  plan = 5,
  operation_convolution_forward = 10,
  operation_convolution_weight = 11,
  operation_convolution_input = 12,
  operation_pointwise = 13,
  graph = 15,
  variant_pack = 16,
  tensor = 17,
  matmul = 18,
  operation_matmul = 19,
  reduction = 21,
  operation_reduction = 22,
  operation_reshape = 31,
  device = 38
};

enum class Attribute : int {
  pointwise_mode = 0,
  pointwise_precision = 1,
  pointwise_axis = 9,
  convolution_precision = 100,
  convolution_mode = 101,
  convolution_dilations = 102,
  convolution_strides = 103,
  convolution_paddings_after = 104,
  convolution_paddings_before = 105,
  convolution_axes = 106,
  heuristics_mode = 200,
  heuristics_graph = 201,
  heuristics_results = 202,
  heuristics_device = 204,
  engine_config_engine = 300,
  plan_handle = 400,
  plan_engine_config = 401,
  plan_workspace = 402,
  plan_device = 407,
  operation_convolution_forward_alpha = 700,
  operation_convolution_forward_beta = 701,
  operation_convolution_forward_mode = 702,
  operation_convolution_forward_w = 703,
  operation_convolution_forward_x = 704,
  operation_convolution_forward_y = 705,
  operation_convolution_input_alpha = 706,
  operation_convolution_input_beta = 707,
  operation_convolution_input_mode = 708,
  operation_convolution_input_w = 709,
  operation_convolution_input_dx = 710,
  operation_convolution_input_dy = 711,
  operation_convolution_weight_alpha = 712,
  operation_convolution_weight_beta = 713,
  operation_convolution_weight_mode = 714,
  operation_convolution_weight_dw = 715,
  operation_convolution_weight_x = 716,
  operation_convolution_weight_dy = 717,
  operation_pointwise_mode = 750,
  operation_pointwise_x = 751,
  operation_pointwise_b = 752,
  operation_pointwise_y = 753,
  operation_pointwise_t = 758,
  graph_handle = 800,
  graph_operations = 801,
  tensor_alignment = 900,
  tensor_type = 901,
  tensor_dimensions = 902,
  tensor_strides = 903,
  tensor_id = 906,
  tensor_virtual = 907,
  tensor_by_value = 908,
  variant_pack_ids = 1000,
  variant_pack_pointers = 1001,
  variant_pack_workspace = 1003,
  engine_index = 1301,
  engine_numerical_notes = 1303,
  matmul_precision = 1500,
  operation_matmul_a = 1520,
  operation_matmul_b = 1521,
  operation_matmul_c = 1522,
  operation_matmul_mode = 1523,
  reduction_operator = 1600,
  reduction_precision = 1601,
  operation_reduction_x = 1610,
  operation_reduction_y = 1611,
  operation_reduction_mode = 1612,
  operation_reshape_x = 2200,
  operation_reshape_y = 2201,
  device_json = 2702
};

/// The type of an attribute's elements.
enum class Type : int {
  handle = 0,
  data = 1,
  boolean = 2,
  int64 = 3,
  fp32 = 4,
  pointer = 6,
  convolution_mode = 7,
  heuristics = 8,
  numerical_note = 11,
  pointwise = 14,
  object = 15,
  reduction = 18,
  character = 24
};

enum class Data : int { fp32 = 0, fp16 = 2, int32 = 4, bf16 = 9, boolean = 11 };
enum class Heuristics : int { likely_fastest = 3 };  ///< mode A
/// The filter is not mirrored: y = the sum of w[i, j] x[top + i, left + j].
enum class ConvolutionMode : int { cross_correlation = 1 };
/// Numerical properties of an engine.
enum class Note : int {
  tensor_core = 0,  ///< fp32 operands are rounded to TF32
  down_convert_inputs = 1,
  reduced_precision_reduction = 2,
  fft = 3,
  nondeterministic = 4,
  winograd = 5,
  winograd_4x4 = 6,
  winograd_6x6 = 7,
  winograd_13x13 = 8
};
constexpr int kNotes = 32;  ///< upper bound of the number of note kinds
enum class Pointwise : int {
  add = 0,
  multiply = 1,
  divide = 6,
  subtract = 9,
  exp = 13,
  log = 15,
  identity = 21,
  greater_or_equal = 303,
  index = 501,
  select = 601
};
enum class Reduction : int { add = 0, max = 3 };

struct Functions {
  size_t (*GetVersion)() = nullptr;  ///< 10,000 major + 100 minor + patch
  const char* (*GetErrorString)(Status) = nullptr;
  void (*GetLastErrorString)(char* text, size_t size) = nullptr;
  Status (*Create)(Handle*) = nullptr;
  Status (*Destroy)(Handle) = nullptr;
  Status (*SetStream)(Handle, Stream) = nullptr;
  Status (*BackendCreateDescriptor)(Kind, Object*) = nullptr;
  Status (*BackendDestroyDescriptor)(Object) = nullptr;
  Status (*BackendFinalize)(Object) = nullptr;
  Status (*BackendSetAttribute)(Object, Attribute, Type, int64_t count, const void*) = nullptr;
  Status (*BackendGetAttribute)(Object, Attribute, Type, int64_t capacity, int64_t* count,
                                void*) = nullptr;
  Status (*BackendExecute)(Handle, Object plan, Object variant_pack) = nullptr;
};

}  // namespace espalier::kernels::cudnn
