#include "src/kernels/cuda/table.h"

#include "src/kernels/dry/table.h"

namespace espalier::kernels::ESPALIER_GPU {
namespace {

/// Counted as by the dry table; `Call` does no more on a dry arena than to ask for its workspace.
template <auto Row, auto Call, class Args>
void planned(Stream& stream, const Args& args) {
  (dry::table().*Row)(stream, args);
  Call(stream, args);
}

template <auto Row, auto Call, class Args>
void planned(Stream& stream, Each<Args> all) {
  (dry::table().*Row)(stream, all);
  Call(stream, all);
}

constexpr Kernels kPlan{
    .name = ESPALIER_GPU_NAME "-plan",
    .gemm = planned<&Kernels::gemm, gemm>,
    .column_sum = planned<&Kernels::column_sum, column_sum>,
    .layernorm = planned<&Kernels::layernorm, layernorm>,
    .layernorm_backward = planned<&Kernels::layernorm_backward, layernorm_backward>,
    .activation = planned<&Kernels::activation, activation>,
    .activation_backward = planned<&Kernels::activation_backward, activation_backward>,
    .attention = planned<&Kernels::attention, attention>,
    .attention_backward = planned<&Kernels::attention_backward, attention_backward>,
    .embedding = planned<&Kernels::embedding, embedding>,
    .embedding_backward = planned<&Kernels::embedding_backward, embedding_backward>,
    .cross_entropy = planned<&Kernels::cross_entropy, cross_entropy>,
    .dropout = planned<&Kernels::dropout, dropout>,
    .cast = planned<&Kernels::cast, cast>,
    .ordered_sum = planned<&Kernels::ordered_sum, ordered_sum>,
    .difference = planned<&Kernels::difference, difference>,
    .fill = planned<&Kernels::fill, fill>,
    .sum_squares = planned<&Kernels::sum_squares, sum_squares>,
    .clip = planned<&Kernels::clip, clip>,
    .gather = planned<&Kernels::gather, gather>,
    .scatter = planned<&Kernels::scatter, scatter>,
    .csr = planned<&Kernels::csr, csr>,
    .spmm = planned<&Kernels::spmm, spmm>,
    .spmm_transposed = planned<&Kernels::spmm_transposed, spmm_transposed>,
    .sddmm = planned<&Kernels::sddmm, sddmm>,
    .block_spmm = planned<&Kernels::block_spmm, block_spmm>,
    .block_spmm_transposed = planned<&Kernels::block_spmm_transposed, block_spmm_transposed>,
    .block_sddmm = planned<&Kernels::block_sddmm, block_sddmm>,
    .quantize = planned<&Kernels::quantize, quantize>,
    .dequantize = planned<&Kernels::dequantize, dequantize>,
    .encode = planned<&Kernels::encode, encode>,
    .decode = planned<&Kernels::decode, decode>,
    .adamw = planned<&Kernels::adamw, adamw>,
    .sgd = planned<&Kernels::sgd, sgd>,
    .predict = planned<&Kernels::predict, predict>,
    .orthonormalise = planned<&Kernels::orthonormalise, orthonormalise>,
    .keep_factor = planned<&Kernels::keep_factor, keep_factor>,
};

constexpr Kernels kTable{
    .name = ESPALIER_GPU_NAME,
    .open = open_device,
    .plan = &kPlan,
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
    .clip = clip,
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
    .orthonormalise = orthonormalise,
    .keep_factor = keep_factor,
};

}  // namespace

const Kernels& table() { return kTable; }

}  // namespace espalier::kernels::ESPALIER_GPU
