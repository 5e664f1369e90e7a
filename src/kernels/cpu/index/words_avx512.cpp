#include "src/kernels/cpu/index/words_lanes.h"

namespace espalier::kernels::ESPALIER_ISA {

template void gather_words(const WordRun&, const bf16*, bf16*, bool);
template void gather_words(const WordRun&, const fp16*, fp16*, bool);
template void scatter_words(const WordRun&, const bf16*, bf16*, bool);
template void scatter_words(const WordRun&, const fp16*, fp16*, bool);

}  // namespace espalier::kernels::ESPALIER_ISA
