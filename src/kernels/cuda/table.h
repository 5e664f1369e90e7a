#pragma once
// Every operation of the table "cuda"; see launch.h for the namespace.
#include "src/kernels/kernels.h"

namespace espalier::kernels::ESPALIER_GPU {

void gemm(Stream& stream, const GemmArgs& args);
void column_sum(Stream& stream, const ColumnSumArgs& args);
void layernorm(Stream& stream, const LayerNormArgs& args);
void layernorm_backward(Stream& stream, const LayerNormBackwardArgs& args);
void activation(Stream& stream, const ActivationArgs& args);
void activation_backward(Stream& stream, const ActivationBackwardArgs& args);
void attention(Stream& stream, const AttentionArgs& args);
void attention_backward(Stream& stream, const AttentionBackwardArgs& args);
void embedding(Stream& stream, const EmbeddingArgs& args);
void embedding_backward(Stream& stream, const EmbeddingBackwardArgs& args);
void cross_entropy(Stream& stream, const CrossEntropyArgs& args);
void dropout(Stream& stream, const DropoutArgs& args);
void cast(Stream& stream, const CastArgs& args);
void ordered_sum(Stream& stream, const OrderedSumArgs& args);
void difference(Stream& stream, const DifferenceArgs& args);
void fill(Stream& stream, const FillArgs& args);
void sum_squares(Stream& stream, Each<SumSquaresArgs> all);
void clip(Stream& stream, const ClipArgs& args);
void gather(Stream& stream, const GatherArgs& args);
void scatter(Stream& stream, const ScatterArgs& args);
void csr(Stream& stream, const CsrArgs& args);
void spmm(Stream& stream, const SpmmArgs& args);
void spmm_transposed(Stream& stream, const SpmmTransposedArgs& args);
void sddmm(Stream& stream, const SddmmArgs& args);
void block_spmm(Stream& stream, const BlockSpmmArgs& args);
void block_spmm_transposed(Stream& stream, const BlockSpmmTransposedArgs& args);
void block_sddmm(Stream& stream, const BlockSddmmArgs& args);
void quantize(Stream& stream, const QuantizeArgs& args);
void dequantize(Stream& stream, const DequantizeArgs& args);
void encode(Stream& stream, const EncodeArgs& args);
void decode(Stream& stream, const DecodeArgs& args);
void adamw(Stream& stream, Each<AdamWArgs> all);
void sgd(Stream& stream, Each<SgdArgs> all);
void predict(Stream& stream, const PredictArgs& args);
void orthonormalise(Stream& stream, const OrthonormaliseArgs& args);
void keep_factor(Stream& stream, const KeepFactorArgs& args);

/// The device of a rank; throws Failure when there is none for it.
std::unique_ptr<Device> open_device(int local_rank);

const Kernels& table();

}  // namespace espalier::kernels::ESPALIER_GPU
