#pragma once
// Dense convolutions by oneDNN, for every CPU table. Primitives are cached per shape, type, thread
// count and calling thread. oneDNN is fast only with weights in a blocked layout that it chooses:
// each call converts the weight, or its gradient, which costs 1 / pixels of the products.
//
// Types that oneDNN does not multiply (`multiplies` in product.h) are widened to fp32, a few images
// at a time, so that they stay in cache.
#include "src/kernels/cpu/dense/product_widened.h"
#include "src/kernels/operations/convolution.h"

namespace espalier::kernels::cpu {

void convolve(Stream& stream, const ConvolutionArgs& args, const WideningLoops& loops);
void convolve_input(Stream& stream, const ConvolutionInputArgs& args, const WideningLoops& loops);
void convolve_weight(Stream& stream, const ConvolutionWeightArgs& args, const WideningLoops& loops);

}  // namespace espalier::kernels::cpu
