#include "parallel/transport/mpi_message.h"

#include <algorithm>
#include <array>

namespace espalier::parallel {

namespace {

/// Calls `part` for each part of the data; an empty message has one empty part.
template <class Byte, class Call>
void each_part(std::span<Byte> data, size_t part_bytes, const Call& part) {
  do {
    const size_t n = std::min(part_bytes, data.size());
    part(data.first(n));
    data = data.subspan(n);
  } while (!data.empty());
}

}  // namespace

void check_mpi(int code, std::string_view call) {
  if (code == MPI_SUCCESS) {
    return;
  }
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  fail("{} failed: {}", call, std::string_view(text.data(), static_cast<size_t>(length)));
}

MpiOperation::MpiOperation(const MpiAddress& to, std::span<const std::byte> data)
    : peer_(to.peer), receives_(false) {
  each_part(data, to.part_bytes, [&](std::span<const std::byte> bytes) {
    Part& part = parts_.emplace_back();
    part.bytes = static_cast<int>(bytes.size());
    check_mpi(
        MPI_Isend(bytes.data(), part.bytes, MPI_BYTE, to.peer, to.tag, to.comm, &part.request),
        "MPI_Isend");
  });
}

MpiOperation::MpiOperation(const MpiAddress& from, std::span<std::byte> data)
    : peer_(from.peer), receives_(true) {
  each_part(data, from.part_bytes, [&](std::span<std::byte> bytes) {
    Part& part = parts_.emplace_back();
    part.bytes = static_cast<int>(bytes.size());
    check_mpi(MPI_Irecv(bytes.data(), part.bytes, MPI_BYTE, from.peer, from.tag, from.comm,
                        &part.request),
              "MPI_Irecv");
  });
}

MpiOperation::~MpiOperation() {
  // After an error no rank calls MPI again except to abort. Only calls make progress, so MPI no
  // longer writes to the buffer. Waiting for the cancellation could hang on the lost peer.
  for (Part& part : parts_) {
    if (part.request != MPI_REQUEST_NULL) {
      if (receives_) {
        MPI_Cancel(&part.request);
      }
      MPI_Request_free(&part.request);
    }
  }
}

bool MpiOperation::test() {
  for (; done_ < parts_.size(); ++done_) {
    int flag = 0;
    MPI_Status status{};
    const int code = MPI_Test(&parts_[done_].request, &flag, &status);
    if (code != MPI_SUCCESS) {
      int kind = MPI_SUCCESS;
      MPI_Error_class(code, &kind);
      check(
          kind != MPI_ERR_TRUNCATE,
          "rank {} sent more than the {} bytes that were expected: ranks must run the same program "
          "and config",
          peer_, parts_[done_].bytes);
      check_mpi(code, "MPI_Test");
    }
    if (flag == 0) {
      return false;
    }
    if (receives_) {
      check_size(parts_[done_], status);
    }
  }
  return true;
}

void MpiOperation::check_size(const Part& part, const MPI_Status& status) const {
  int bytes = 0;
  check_mpi(MPI_Get_count(&status, MPI_BYTE, &bytes), "MPI_Get_count");
  check(bytes == part.bytes,
        "rank {} sent {} bytes where {} were expected: ranks must run the same program and config",
        peer_, bytes, part.bytes);
}

namespace {

// MPI prescribes this signature.
template <class Half>
void add_halves(void* in, void* in_out, int* count, MPI_Datatype*) {
  const auto* x = static_cast<const Half*>(in);
  auto* y = static_cast<Half*>(in_out);
  for (int i = 0; i < *count; ++i) {
    y[i] = from_float<Half>(to_float(x[i]) + to_float(y[i]));
  }
}

/// Created once, and freed with MPI.
template <class Half>
MPI_Op sum_of_halves() {
  static const MPI_Op op = [] {
    MPI_Op made = MPI_OP_NULL;
    check_mpi(MPI_Op_create(&add_halves<Half>, 1, &made), "MPI_Op_create");
    return made;
  }();
  return op;
}

MPI_Op sum_of(DType dtype) {
  return dtype == DType::fp32   ? MPI_SUM
         : dtype == DType::bf16 ? sum_of_halves<bf16>()
                                : sum_of_halves<fp16>();
}

}  // namespace

MpiAllReduce::MpiAllReduce(MPI_Comm comm, const Tensor& data) {
  constexpr int64_t kPart = int64_t{1} << 28;  // elements; MPI counts in int
  const bool wide = data.dtype == DType::fp32;
  require(is_number(data.dtype), "fp32, bf16 or fp16", name_of(data.dtype));
  auto* memory = static_cast<std::byte*>(data.data);
  for (int64_t at = 0; at < data.count(); at += kPart) {
    const auto count = static_cast<int>(std::min(kPart, data.count() - at));
    check_mpi(MPI_Iallreduce(MPI_IN_PLACE, memory + static_cast<size_t>(at) * size_of(data.dtype),
                             count, wide ? MPI_FLOAT : MPI_UINT16_T, sum_of(data.dtype), comm,
                             &parts_.emplace_back()),
              "MPI_Iallreduce");
  }
}

bool MpiAllReduce::test() {
  for (MPI_Request& part : parts_) {
    int flag = 0;
    check_mpi(MPI_Test(&part, &flag, MPI_STATUS_IGNORE), "MPI_Test");
    if (flag == 0) {
      return false;
    }
  }
  return true;
}

}  // namespace espalier::parallel
