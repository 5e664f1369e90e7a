#include "src/kernels/operations/convolution.h"

#include "src/kernels/cpu/dense/convolution_library.h"
#include "src/kernels/cpu/dense/widen.h"
#include "src/kernels/cpu/table.h"

namespace espalier::kernels::ESPALIER_ISA {

void convolution(Stream& stream, const ConvolutionArgs& args) {
  cpu::convolve(stream, args, kWideningLoops);
}

void convolution_input(Stream& stream, const ConvolutionInputArgs& args) {
  cpu::convolve_input(stream, args, kWideningLoops);
}

void convolution_weight(Stream& stream, const ConvolutionWeightArgs& args) {
  cpu::convolve_weight(stream, args, kWideningLoops);
}

}  // namespace espalier::kernels::ESPALIER_ISA
