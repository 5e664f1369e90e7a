#include "src/kernels/cuda/table.h"

namespace espalier::kernels::ESPALIER_GPU {
namespace {

constexpr Kernels kTable{
    .name = ESPALIER_GPU_NAME,
    .column_sum = column_sum,
    .layernorm = layernorm,
    .layernorm_backward = layernorm_backward,
    .activation = activation,
    .activation_backward = activation_backward,
    .embedding = embedding,
    .embedding_backward = embedding_backward,
    .cross_entropy = cross_entropy,
    .dropout = dropout,
    .cast = cast,
    .fill = fill,
    .sum_squares = sum_squares,
    .gather = gather,
    .scatter = scatter,
    .quantize = quantize,
    .dequantize = dequantize,
    .encode = encode,
    .decode = decode,
    .adamw = adamw,
    .sgd = sgd,
    .predict = predict,
};

}  // namespace

const Kernels& table() { return kTable; }

}  // namespace espalier::kernels::ESPALIER_GPU
