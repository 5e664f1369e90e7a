#include "src/kernels/cpu/table.h"

#include "src/kernels/cpu/support.h"

namespace espalier::kernels::ESPALIER_ISA {
namespace {

constexpr Kernels kTable{
    .name = ESPALIER_ISA_NAME,
    .gemm = gemm,
    .column_sum = column_sum,
    .layernorm = layernorm,
    .layernorm_backward = layernorm_backward,
    .activation = activation,
    .activation_backward = activation_backward,
    .attention = attention,
    .attention_backward = attention_backward,
    .embedding = embedding,
    .embedding_backward = embedding_backward,
    .cross_entropy = cross_entropy,
    .dropout = dropout,
    .cast = cast,
    .ordered_sum = ordered_sum,
    .difference = difference,
    .fill = fill,
    .sum_squares = sum_squares,
    .clip = cpu::clip,
    .gather = gather,
    .scatter = scatter,
    .csr = csr,
    .spmm = spmm,
    .spmm_transposed = spmm_transposed,
    .sddmm = sddmm,
    .block_spmm = block_spmm,
    .block_spmm_transposed = block_spmm_transposed,
    .block_sddmm = block_sddmm,
    .quantize = quantize,
    .dequantize = dequantize,
    .encode = encode,
    .decode = decode,
    .adamw = adamw,
    .sgd = sgd,
    .predict = predict,
    .orthonormalise = cpu::orthonormalise,
    .keep_factor = cpu::keep_factor,
};

}  // namespace

const Kernels& table() { return kTable; }

}  // namespace espalier::kernels::ESPALIER_ISA
