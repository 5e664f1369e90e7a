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

static_assert(CUDNN_MAJOR == 9);
static_assert(same(Status::success, CUDNN_STATUS_SUCCESS));

using enum Kind;
static_assert(same(pointwise, CUDNN_BACKEND_POINTWISE_DESCRIPTOR));
static_assert(same(convolution, CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR));
static_assert(same(engine, CUDNN_BACKEND_ENGINE_DESCRIPTOR));
static_assert(same(engine_config, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR));
static_assert(same(heuristics, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR));
static_assert(same(plan, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR));
static_assert(same(operation_convolution_forward,
                   CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR));
static_assert(same(operation_convolution_weight,
                   CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR));
static_assert(same(operation_convolution_input,
                   CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR));
static_assert(same(operation_pointwise, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR));
static_assert(same(graph, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR));
static_assert(same(variant_pack, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR));
static_assert(same(tensor, CUDNN_BACKEND_TENSOR_DESCRIPTOR));
static_assert(same(matmul, CUDNN_BACKEND_MATMUL_DESCRIPTOR));
static_assert(same(operation_matmul, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR));
static_assert(same(reduction, CUDNN_BACKEND_REDUCTION_DESCRIPTOR));
static_assert(same(operation_reduction, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR));
static_assert(same(operation_reshape, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR));
static_assert(same(device, CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR));

using enum Attribute;
static_assert(same(pointwise_mode, CUDNN_ATTR_POINTWISE_MODE));
static_assert(same(pointwise_precision, CUDNN_ATTR_POINTWISE_MATH_PREC));
static_assert(same(pointwise_axis, CUDNN_ATTR_POINTWISE_AXIS));
static_assert(same(convolution_precision, CUDNN_ATTR_CONVOLUTION_COMP_TYPE));
static_assert(same(Attribute::convolution_mode, CUDNN_ATTR_CONVOLUTION_CONV_MODE));
static_assert(same(convolution_dilations, CUDNN_ATTR_CONVOLUTION_DILATIONS));
static_assert(same(convolution_strides, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES));
static_assert(same(convolution_paddings_after, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS));
static_assert(same(convolution_paddings_before, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS));
static_assert(same(convolution_axes, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS));
static_assert(same(heuristics_mode, CUDNN_ATTR_ENGINEHEUR_MODE));
static_assert(same(heuristics_graph, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH));
static_assert(same(heuristics_results, CUDNN_ATTR_ENGINEHEUR_RESULTS));
static_assert(same(heuristics_device, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP));
static_assert(same(engine_config_engine, CUDNN_ATTR_ENGINECFG_ENGINE));
static_assert(same(plan_engine_config, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG));
static_assert(same(plan_workspace, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE));
static_assert(same(plan_device, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP));
static_assert(same(operation_convolution_forward_alpha,
                   CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA));
static_assert(same(operation_convolution_forward_beta,
                   CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA));
static_assert(same(operation_convolution_forward_mode,
                   CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC));
static_assert(same(operation_convolution_forward_w, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W));
static_assert(same(operation_convolution_forward_x, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X));
static_assert(same(operation_convolution_forward_y, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y));
static_assert(same(operation_convolution_input_alpha,
                   CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA));
static_assert(same(operation_convolution_input_beta,
                   CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA));
static_assert(same(operation_convolution_input_mode,
                   CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC));
static_assert(same(operation_convolution_input_w, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W));
static_assert(same(operation_convolution_input_dx, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX));
static_assert(same(operation_convolution_input_dy, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY));
static_assert(same(operation_convolution_weight_alpha,
                   CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA));
static_assert(same(operation_convolution_weight_beta,
                   CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA));
static_assert(same(operation_convolution_weight_mode,
                   CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC));
static_assert(same(operation_convolution_weight_dw,
                   CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW));
static_assert(same(operation_convolution_weight_x, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X));
static_assert(same(operation_convolution_weight_dy,
                   CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY));
static_assert(same(operation_pointwise_mode, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR));
static_assert(same(operation_pointwise_x, CUDNN_ATTR_OPERATION_POINTWISE_XDESC));
static_assert(same(operation_pointwise_b, CUDNN_ATTR_OPERATION_POINTWISE_BDESC));
static_assert(same(operation_pointwise_y, CUDNN_ATTR_OPERATION_POINTWISE_YDESC));
static_assert(same(operation_pointwise_t, CUDNN_ATTR_OPERATION_POINTWISE_TDESC));
static_assert(same(graph_operations, CUDNN_ATTR_OPERATIONGRAPH_OPS));
static_assert(same(tensor_alignment, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT));
static_assert(same(tensor_type, CUDNN_ATTR_TENSOR_DATA_TYPE));
static_assert(same(tensor_dimensions, CUDNN_ATTR_TENSOR_DIMENSIONS));
static_assert(same(tensor_strides, CUDNN_ATTR_TENSOR_STRIDES));
static_assert(same(tensor_id, CUDNN_ATTR_TENSOR_UNIQUE_ID));
static_assert(same(tensor_virtual, CUDNN_ATTR_TENSOR_IS_VIRTUAL));
static_assert(same(tensor_by_value, CUDNN_ATTR_TENSOR_IS_BY_VALUE));
static_assert(same(variant_pack_ids, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS));
static_assert(same(variant_pack_pointers, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS));
static_assert(same(variant_pack_workspace, CUDNN_ATTR_VARIANT_PACK_WORKSPACE));
static_assert(same(engine_index, CUDNN_ATTR_ENGINE_GLOBAL_INDEX));
static_assert(same(engine_numerical_notes, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE));
static_assert(same(matmul_precision, CUDNN_ATTR_MATMUL_COMP_TYPE));
static_assert(same(operation_matmul_a, CUDNN_ATTR_OPERATION_MATMUL_ADESC));
static_assert(same(operation_matmul_b, CUDNN_ATTR_OPERATION_MATMUL_BDESC));
static_assert(same(operation_matmul_c, CUDNN_ATTR_OPERATION_MATMUL_CDESC));
static_assert(same(operation_matmul_mode, CUDNN_ATTR_OPERATION_MATMUL_DESC));
static_assert(same(reduction_operator, CUDNN_ATTR_REDUCTION_OPERATOR));
static_assert(same(reduction_precision, CUDNN_ATTR_REDUCTION_COMP_TYPE));
static_assert(same(operation_reduction_x, CUDNN_ATTR_OPERATION_REDUCTION_XDESC));
static_assert(same(operation_reduction_y, CUDNN_ATTR_OPERATION_REDUCTION_YDESC));
static_assert(same(operation_reduction_mode, CUDNN_ATTR_OPERATION_REDUCTION_DESC));
static_assert(same(operation_reshape_x, CUDNN_ATTR_OPERATION_RESHAPE_XDESC));
static_assert(same(operation_reshape_y, CUDNN_ATTR_OPERATION_RESHAPE_YDESC));
static_assert(same(device_json, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION));
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
static_assert(same(plan_handle, CUDNN_ATTR_EXECUTION_PLAN_HANDLE));
static_assert(same(graph_handle, CUDNN_ATTR_OPERATIONGRAPH_HANDLE));

static_assert(same(Type::handle, CUDNN_TYPE_HANDLE));
static_assert(same(Type::data, CUDNN_TYPE_DATA_TYPE));
static_assert(same(Type::boolean, CUDNN_TYPE_BOOLEAN));
static_assert(same(Type::int64, CUDNN_TYPE_INT64));
static_assert(same(Type::fp32, CUDNN_TYPE_FLOAT));
static_assert(same(Type::pointer, CUDNN_TYPE_VOID_PTR));
static_assert(same(Type::convolution_mode, CUDNN_TYPE_CONVOLUTION_MODE));
static_assert(same(Type::heuristics, CUDNN_TYPE_HEUR_MODE));
static_assert(same(Type::numerical_note, CUDNN_TYPE_NUMERICAL_NOTE));
static_assert(same(Type::pointwise, CUDNN_TYPE_POINTWISE_MODE));
static_assert(same(Type::object, CUDNN_TYPE_BACKEND_DESCRIPTOR));
static_assert(same(Type::reduction, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE));
static_assert(same(Type::character, CUDNN_TYPE_CHAR));

static_assert(same(Data::fp32, CUDNN_DATA_FLOAT) && same(Data::bf16, CUDNN_DATA_BFLOAT16));
static_assert(same(Data::fp16, CUDNN_DATA_HALF));
static_assert(same(Data::int32, CUDNN_DATA_INT32) && same(Data::boolean, CUDNN_DATA_BOOLEAN));
static_assert(same(Heuristics::likely_fastest, CUDNN_HEUR_MODE_A));
static_assert(same(ConvolutionMode::cross_correlation, CUDNN_CROSS_CORRELATION));
static_assert(same(Note::tensor_core, CUDNN_NUMERICAL_NOTE_TENSOR_CORE));
static_assert(same(Note::down_convert_inputs, CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS));
static_assert(same(Note::reduced_precision_reduction,
                   CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION));
static_assert(same(Note::fft, CUDNN_NUMERICAL_NOTE_FFT));
static_assert(same(Note::nondeterministic, CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC));
static_assert(same(Note::winograd, CUDNN_NUMERICAL_NOTE_WINOGRAD));
static_assert(same(Note::winograd_4x4, CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_4x4));
static_assert(same(Note::winograd_6x6, CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_6x6));
static_assert(same(Note::winograd_13x13, CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_13x13));
static_assert(kNotes >= CUDNN_NUMERICAL_NOTE_TYPE_COUNT);
static_assert(same(Pointwise::add, CUDNN_POINTWISE_ADD));
static_assert(same(Pointwise::multiply, CUDNN_POINTWISE_MUL));
static_assert(same(Pointwise::divide, CUDNN_POINTWISE_DIV));
static_assert(same(Pointwise::subtract, CUDNN_POINTWISE_SUB));
static_assert(same(Pointwise::exp, CUDNN_POINTWISE_EXP));
static_assert(same(Pointwise::log, CUDNN_POINTWISE_LOG));
static_assert(same(Pointwise::identity, CUDNN_POINTWISE_IDENTITY));
static_assert(same(Pointwise::greater_or_equal, CUDNN_POINTWISE_CMP_GE));
static_assert(same(Pointwise::index, CUDNN_POINTWISE_GEN_INDEX));
static_assert(same(Pointwise::select, CUDNN_POINTWISE_BINARY_SELECT));
static_assert(same(Reduction::add, CUDNN_REDUCE_TENSOR_ADD));
static_assert(same(Reduction::max, CUDNN_REDUCE_TENSOR_MAX));

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
