#pragma once
// Every operation of one CPU table. The sources of this folder are compiled once for each
// instruction set; ESPALIER_ISA (a compile definition, see CMakeLists.txt) names the namespace that
// keeps the copies apart. What such a source calls must be in that namespace, always inlined, or
// compiled elsewhere once: a shared inline function could be linked in its AVX-512 form into the
// portable table.
#include "src/kernels/kernels.h"

namespace espalier::kernels::ESPALIER_ISA {

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

const Kernels& table();

}  // namespace espalier::kernels::ESPALIER_ISA
