// For MPI libraries that do not report CUDA support.
#include "parallel/transport/mpi_communicator.h"

namespace espalier::parallel {

std::string mpi_cuda_support() { return "unknown"; }

}  // namespace espalier::parallel
