// Checks src/kernels/cuda/cudnn/api.h against cuDNN's headers; compiled where they are installed.
#include <cudnn.h>

#include <array>

#include "src/kernels/cuda/cudnn/api.h"

namespace espalier::kernels::cudnn {
namespace {

template <class Ours, class Theirs>
constexpr bool same(Ours ours, Theirs theirs) {
  return sizeof ours == sizeof theirs && static_cast<int>(ours) == static_cast<int>(theirs);
}
#define ESPALIER_SAME(ours, theirs) static_assert(same(ours, CUDNN_##theirs))

static_assert(CUDNN_MAJOR == 9);
ESPALIER_SAME(Status::success, STATUS_SUCCESS);

using enum Kind;
ESPALIER_SAME(pointwise, BACKEND_POINTWISE_DESCRIPTOR);
ESPALIER_SAME(convolution, BACKEND_CONVOLUTION_DESCRIPTOR);
ESPALIER_SAME(engine, BACKEND_ENGINE_DESCRIPTOR);
ESPALIER_SAME(engine_config, BACKEND_ENGINECFG_DESCRIPTOR);
ESPALIER_SAME(heuristics, BACKEND_ENGINEHEUR_DESCRIPTOR);
ESPALIER_SAME(plan, BACKEND_EXECUTION_PLAN_DESCRIPTOR);
ESPALIER_SAME(operation_convolution_forward, BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR);
ESPALIER_SAME(operation_convolution_weight,
              BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR);
ESPALIER_SAME(operation_convolution_input, BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR);
ESPALIER_SAME(operation_pointwise, BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
ESPALIER_SAME(graph, BACKEND_OPERATIONGRAPH_DESCRIPTOR);
ESPALIER_SAME(variant_pack, BACKEND_VARIANT_PACK_DESCRIPTOR);
ESPALIER_SAME(tensor, BACKEND_TENSOR_DESCRIPTOR);
ESPALIER_SAME(matmul, BACKEND_MATMUL_DESCRIPTOR);
ESPALIER_SAME(operation_matmul, BACKEND_OPERATION_MATMUL_DESCRIPTOR);
ESPALIER_SAME(reduction, BACKEND_REDUCTION_DESCRIPTOR);
ESPALIER_SAME(operation_reduction, BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
ESPALIER_SAME(operation_reshape, BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
ESPALIER_SAME(device, BACKEND_DEVICEPROP_DESCRIPTOR);

using enum Attribute;
ESPALIER_SAME(pointwise_mode, ATTR_POINTWISE_MODE);
ESPALIER_SAME(pointwise_precision, ATTR_POINTWISE_MATH_PREC);
ESPALIER_SAME(pointwise_axis, ATTR_POINTWISE_AXIS);
ESPALIER_SAME(convolution_precision, ATTR_CONVOLUTION_COMP_TYPE);
ESPALIER_SAME(Attribute::convolution_mode, ATTR_CONVOLUTION_CONV_MODE);
ESPALIER_SAME(convolution_dilations, ATTR_CONVOLUTION_DILATIONS);
ESPALIER_SAME(convolution_strides, ATTR_CONVOLUTION_FILTER_STRIDES);
ESPALIER_SAME(convolution_paddings_after, ATTR_CONVOLUTION_POST_PADDINGS);
ESPALIER_SAME(convolution_paddings_before, ATTR_CONVOLUTION_PRE_PADDINGS);
ESPALIER_SAME(convolution_axes, ATTR_CONVOLUTION_SPATIAL_DIMS);
ESPALIER_SAME(heuristics_mode, ATTR_ENGINEHEUR_MODE);
ESPALIER_SAME(heuristics_graph, ATTR_ENGINEHEUR_OPERATION_GRAPH);
ESPALIER_SAME(heuristics_results, ATTR_ENGINEHEUR_RESULTS);
ESPALIER_SAME(heuristics_device, ATTR_ENGINEHEUR_DEVICEPROP);
ESPALIER_SAME(engine_config_engine, ATTR_ENGINECFG_ENGINE);
ESPALIER_SAME(plan_engine_config, ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
ESPALIER_SAME(plan_workspace, ATTR_EXECUTION_PLAN_WORKSPACE_SIZE);
ESPALIER_SAME(plan_device, ATTR_EXECUTION_PLAN_DEVICEPROP);
ESPALIER_SAME(operation_convolution_forward_alpha, ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA);
ESPALIER_SAME(operation_convolution_forward_beta, ATTR_OPERATION_CONVOLUTION_FORWARD_BETA);
ESPALIER_SAME(operation_convolution_forward_mode, ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC);
ESPALIER_SAME(operation_convolution_forward_w, ATTR_OPERATION_CONVOLUTION_FORWARD_W);
ESPALIER_SAME(operation_convolution_forward_x, ATTR_OPERATION_CONVOLUTION_FORWARD_X);
ESPALIER_SAME(operation_convolution_forward_y, ATTR_OPERATION_CONVOLUTION_FORWARD_Y);
ESPALIER_SAME(operation_convolution_input_alpha, ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA);
ESPALIER_SAME(operation_convolution_input_beta, ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA);
ESPALIER_SAME(operation_convolution_input_mode, ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC);
ESPALIER_SAME(operation_convolution_input_w, ATTR_OPERATION_CONVOLUTION_BWD_DATA_W);
ESPALIER_SAME(operation_convolution_input_dx, ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX);
ESPALIER_SAME(operation_convolution_input_dy, ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY);
ESPALIER_SAME(operation_convolution_weight_alpha, ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA);
ESPALIER_SAME(operation_convolution_weight_beta, ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA);
ESPALIER_SAME(operation_convolution_weight_mode, ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC);
ESPALIER_SAME(operation_convolution_weight_dw, ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW);
ESPALIER_SAME(operation_convolution_weight_x, ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X);
ESPALIER_SAME(operation_convolution_weight_dy, ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY);
ESPALIER_SAME(operation_pointwise_mode, ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
ESPALIER_SAME(operation_pointwise_x, ATTR_OPERATION_POINTWISE_XDESC);
ESPALIER_SAME(operation_pointwise_b, ATTR_OPERATION_POINTWISE_BDESC);
ESPALIER_SAME(operation_pointwise_y, ATTR_OPERATION_POINTWISE_YDESC);
ESPALIER_SAME(operation_pointwise_t, ATTR_OPERATION_POINTWISE_TDESC);
ESPALIER_SAME(graph_operations, ATTR_OPERATIONGRAPH_OPS);
ESPALIER_SAME(tensor_alignment, ATTR_TENSOR_BYTE_ALIGNMENT);
ESPALIER_SAME(tensor_type, ATTR_TENSOR_DATA_TYPE);
ESPALIER_SAME(tensor_dimensions, ATTR_TENSOR_DIMENSIONS);
ESPALIER_SAME(tensor_strides, ATTR_TENSOR_STRIDES);
ESPALIER_SAME(tensor_id, ATTR_TENSOR_UNIQUE_ID);
ESPALIER_SAME(tensor_virtual, ATTR_TENSOR_IS_VIRTUAL);
ESPALIER_SAME(tensor_by_value, ATTR_TENSOR_IS_BY_VALUE);
ESPALIER_SAME(variant_pack_ids, ATTR_VARIANT_PACK_UNIQUE_IDS);
ESPALIER_SAME(variant_pack_pointers, ATTR_VARIANT_PACK_DATA_POINTERS);
ESPALIER_SAME(variant_pack_workspace, ATTR_VARIANT_PACK_WORKSPACE);
ESPALIER_SAME(engine_index, ATTR_ENGINE_GLOBAL_INDEX);
ESPALIER_SAME(engine_numerical_notes, ATTR_ENGINE_NUMERICAL_NOTE);
ESPALIER_SAME(matmul_precision, ATTR_MATMUL_COMP_TYPE);
ESPALIER_SAME(operation_matmul_a, ATTR_OPERATION_MATMUL_ADESC);
ESPALIER_SAME(operation_matmul_b, ATTR_OPERATION_MATMUL_BDESC);
ESPALIER_SAME(operation_matmul_c, ATTR_OPERATION_MATMUL_CDESC);
ESPALIER_SAME(operation_matmul_mode, ATTR_OPERATION_MATMUL_DESC);
ESPALIER_SAME(reduction_operator, ATTR_REDUCTION_OPERATOR);
ESPALIER_SAME(reduction_precision, ATTR_REDUCTION_COMP_TYPE);
ESPALIER_SAME(operation_reduction_x, ATTR_OPERATION_REDUCTION_XDESC);
ESPALIER_SAME(operation_reduction_y, ATTR_OPERATION_REDUCTION_YDESC);
ESPALIER_SAME(operation_reduction_mode, ATTR_OPERATION_REDUCTION_DESC);
ESPALIER_SAME(operation_reshape_x, ATTR_OPERATION_RESHAPE_XDESC);
ESPALIER_SAME(operation_reshape_y, ATTR_OPERATION_RESHAPE_YDESC);
ESPALIER_SAME(device_json, ATTR_DEVICEPROP_JSON_REPRESENTATION);
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
ESPALIER_SAME(plan_handle, ATTR_EXECUTION_PLAN_HANDLE);
ESPALIER_SAME(graph_handle, ATTR_OPERATIONGRAPH_HANDLE);

ESPALIER_SAME(Type::handle, TYPE_HANDLE);
ESPALIER_SAME(Type::data, TYPE_DATA_TYPE);
ESPALIER_SAME(Type::boolean, TYPE_BOOLEAN);
ESPALIER_SAME(Type::int64, TYPE_INT64);
ESPALIER_SAME(Type::fp32, TYPE_FLOAT);
ESPALIER_SAME(Type::pointer, TYPE_VOID_PTR);
ESPALIER_SAME(Type::convolution_mode, TYPE_CONVOLUTION_MODE);
ESPALIER_SAME(Type::heuristics, TYPE_HEUR_MODE);
ESPALIER_SAME(Type::numerical_note, TYPE_NUMERICAL_NOTE);
ESPALIER_SAME(Type::pointwise, TYPE_POINTWISE_MODE);
ESPALIER_SAME(Type::object, TYPE_BACKEND_DESCRIPTOR);
ESPALIER_SAME(Type::reduction, TYPE_REDUCTION_OPERATOR_TYPE);
ESPALIER_SAME(Type::character, TYPE_CHAR);

static_assert(same(Data::fp32, CUDNN_DATA_FLOAT) && same(Data::bf16, CUDNN_DATA_BFLOAT16));
ESPALIER_SAME(Data::fp16, DATA_HALF);
static_assert(same(Data::int32, CUDNN_DATA_INT32) && same(Data::boolean, CUDNN_DATA_BOOLEAN));
ESPALIER_SAME(Heuristics::likely_fastest, HEUR_MODE_A);
ESPALIER_SAME(ConvolutionMode::cross_correlation, CROSS_CORRELATION);
ESPALIER_SAME(Note::tensor_core, NUMERICAL_NOTE_TENSOR_CORE);
ESPALIER_SAME(Note::down_convert_inputs, NUMERICAL_NOTE_DOWN_CONVERT_INPUTS);
ESPALIER_SAME(Note::reduced_precision_reduction, NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION);
ESPALIER_SAME(Note::fft, NUMERICAL_NOTE_FFT);
ESPALIER_SAME(Note::nondeterministic, NUMERICAL_NOTE_NONDETERMINISTIC);
ESPALIER_SAME(Note::winograd, NUMERICAL_NOTE_WINOGRAD);
ESPALIER_SAME(Note::winograd_4x4, NUMERICAL_NOTE_WINOGRAD_TILE_4x4);
ESPALIER_SAME(Note::winograd_6x6, NUMERICAL_NOTE_WINOGRAD_TILE_6x6);
ESPALIER_SAME(Note::winograd_13x13, NUMERICAL_NOTE_WINOGRAD_TILE_13x13);
static_assert(kNotes >= CUDNN_NUMERICAL_NOTE_TYPE_COUNT);
ESPALIER_SAME(Pointwise::add, POINTWISE_ADD);
ESPALIER_SAME(Pointwise::multiply, POINTWISE_MUL);
ESPALIER_SAME(Pointwise::divide, POINTWISE_DIV);
ESPALIER_SAME(Pointwise::subtract, POINTWISE_SUB);
ESPALIER_SAME(Pointwise::exp, POINTWISE_EXP);
ESPALIER_SAME(Pointwise::log, POINTWISE_LOG);
ESPALIER_SAME(Pointwise::identity, POINTWISE_IDENTITY);
ESPALIER_SAME(Pointwise::greater_or_equal, POINTWISE_CMP_GE);
ESPALIER_SAME(Pointwise::index, POINTWISE_GEN_INDEX);
ESPALIER_SAME(Pointwise::select, POINTWISE_BINARY_SELECT);
ESPALIER_SAME(Reduction::add, REDUCE_TENSOR_ADD);
ESPALIER_SAME(Reduction::max, REDUCE_TENSOR_MAX);

/// Bytes of the result and of each parameter.
template <class Result, class... Parameters>
constexpr auto bytes_of(Result (*)(Parameters...)) {
  return std::array{sizeof(Result), sizeof(Parameters)...};
}
template <class Theirs, class Ours>
constexpr bool alike(Theirs theirs, Ours ours) {
  return bytes_of(theirs) == bytes_of(ours);
}

constexpr Functions kOurs{};
static_assert(sizeof(decltype(cudnnGetVersion())) == sizeof(decltype(kOurs.GetVersion())));
static_assert(alike(decltype (&cudnnGetErrorString)(nullptr), kOurs.GetErrorString));
static_assert(alike(decltype (&cudnnCreate)(nullptr), kOurs.Create));
static_assert(alike(decltype (&cudnnDestroy)(nullptr), kOurs.Destroy));
static_assert(alike(decltype (&cudnnSetStream)(nullptr), kOurs.SetStream));
static_assert(alike(decltype (&cudnnBackendCreateDescriptor)(nullptr),
                    kOurs.BackendCreateDescriptor));
static_assert(alike(decltype (&cudnnBackendDestroyDescriptor)(nullptr),
                    kOurs.BackendDestroyDescriptor));
static_assert(alike(decltype (&cudnnBackendFinalize)(nullptr), kOurs.BackendFinalize));
static_assert(alike(decltype (&cudnnBackendSetAttribute)(nullptr), kOurs.BackendSetAttribute));
static_assert(alike(decltype (&cudnnBackendGetAttribute)(nullptr), kOurs.BackendGetAttribute));
static_assert(alike(decltype (&cudnnBackendExecute)(nullptr), kOurs.BackendExecute));

}  // namespace
}  // namespace espalier::kernels::cudnn
