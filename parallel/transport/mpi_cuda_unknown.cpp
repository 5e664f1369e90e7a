// With MPI libraries that do not tell.
#include "parallel/transport/mpi_communicator.h"

namespace espalier::parallel {

std::string mpi_cuda_support() { return "unknown"; }

}  // namespace espalier::parallel
