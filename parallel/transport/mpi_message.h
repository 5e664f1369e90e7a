#pragma once
// One message over MPI, and MPI's error codes as Failure. Only mpi_communicator.cpp uses it.
#include <mpi.h>

#include <vector>

#include "parallel/transport/communicator.h"

namespace espalier::parallel {

/// Throws Failure with MPI's own text unless the call succeeded.
void check_mpi(int code, std::string_view call);

/// MPI's number of a tag. Every MPI library supports at least 0 … 32767; these end below
/// kPoisonTag.
constexpr int mpi_tag(Tag tag) { return static_cast<int>(tag.kind) * kTagNumbers + tag.number; }
inline constexpr int kPoisonTag = 32766;

/// Source or destination of a message.
struct MpiAddress {
  MPI_Comm comm = MPI_COMM_NULL;
  int peer = 0;
  int tag = 0;
  size_t part_bytes = 0;  ///< a longer message is sent in parts of this size
};

class MpiOperation final : public Operation {
 public:
  MpiOperation(const MpiAddress& to, std::span<const std::byte> data);
  MpiOperation(const MpiAddress& from, std::span<std::byte> data);
  ~MpiOperation() override;
  bool test() override;

 private:
  struct Part {
    MPI_Request request = MPI_REQUEST_NULL;
    int bytes = 0;
  };
  void check_size(const Part& part, const MPI_Status& status) const;

  std::vector<Part> parts_;
  size_t done_ = 0;  ///< parts
  int peer_;
  bool receives_;
};

/// All-reduce by MPI itself; fp32, or 16 bits added in fp32 and rounded at each step.
class MpiAllReduce final : public Operation {
 public:
  MpiAllReduce(MPI_Comm comm, const Tensor& data);
  /// MPI cannot cancel a collective: one in flight is abandoned (the job then ends).
  ~MpiAllReduce() override = default;
  bool test() override;

 private:
  std::vector<MPI_Request> parts_;
};

}  // namespace espalier::parallel
