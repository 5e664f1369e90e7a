#pragma once
// What must hold of the arguments of each operation: types, shapes, contiguity. Every backend calls
// these first, "dry" included, so a dry run finds the same mistakes. Throws Bug. Reads no element.
#include "src/kernels/kernels.h"

namespace espalier::kernels {

void verify(const GemmArgs& args);
void verify(const ColumnSumArgs& args);
void verify(const LayerNormArgs& args);
void verify(const LayerNormBackwardArgs& args);
void verify(const ActivationArgs& args);
void verify(const ActivationBackwardArgs& args);
void verify(const AttentionArgs& args);
void verify(const AttentionBackwardArgs& args);
void verify(const EmbeddingArgs& args);
void verify(const EmbeddingBackwardArgs& args);
void verify(const CrossEntropyArgs& args);
void verify(const DropoutArgs& args);
void verify(const CastArgs& args);
void verify(const OrderedSumArgs& args);
void verify(const DifferenceArgs& args);
void verify(const FillArgs& args);
void verify(const SumSquaresArgs& args);
void verify(const ClipArgs& args);
void verify(const GatherArgs& args);
void verify(const ScatterArgs& args);
void verify(const CsrArgs& args);
void verify(const SpmmArgs& args);
void verify(const SpmmTransposedArgs& args);
void verify(const SddmmArgs& args);
void verify(const BlockSpmmArgs& args);
void verify(const BlockSpmmTransposedArgs& args);
void verify(const BlockSddmmArgs& args);
void verify(const QuantizeArgs& args);
void verify(const DequantizeArgs& args);
void verify(const WireFormat& format);
void verify(const EncodeArgs& args);
void verify(const DecodeArgs& args);
void verify(const AdamWArgs& args);
void verify(const SgdArgs& args);
void verify(const PredictArgs& args);
void verify(const OrthonormaliseArgs& args);
void verify(const KeepFactorArgs& args);

}  // namespace espalier::kernels
