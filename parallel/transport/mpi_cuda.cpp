// For MPI libraries that report CUDA support (Open MPI's mpi-ext.h).
#include <mpi.h>
// Must follow mpi.h:
#include <mpi-ext.h>

#include "parallel/transport/mpi_communicator.h"

namespace espalier::parallel {

std::string mpi_cuda_support() { return MPIX_Query_cuda_support() != 0 ? "yes" : "no"; }

}  // namespace espalier::parallel
