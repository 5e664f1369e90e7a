#pragma once
// The array that the contenders of allreduce_benchmark.cpp reduce: one on each rank, with its start
// values and the correct result. MPI's collectives are the competitor.
#include <mpi.h>

#include <algorithm>
#include <array>
#include <functional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "parallel/reduction/buckets.h"
#include "parallel/reduction/sum.h"

namespace espalier::parallel {

/// T: float or bf16. All ranks' slices have the same size.
template <class T>
class BenchArray {
 public:
  BenchArray(Communicator& comm, int64_t count)
      : comm_(comm),
        slice_(std::max(kPeriod, count / comm.size() / kPeriod * kPeriod)),
        data_(static_cast<size_t>(slice_ * comm.size())),
        part_(static_cast<size_t>(slice_)) {
    for (int64_t i = 0; i < kPeriod; ++i) {
      float sum = 0;
      for (int r = 0; r < comm.size(); ++r) {
        sum += value(r, i);
      }
      values_.push_back(rounded(value(comm.rank(), i)));
      sums_.push_back(rounded(sum));
    }
  }

  int64_t count() const { return static_cast<int64_t>(data_.size()); }
  double bytes() const { return static_cast<double>(data_.size() * sizeof(T)); }
  int64_t slice() const { return slice_; }
  T* mine() { return data_.data() + comm_.rank() * slice_; }
  Tensor tensor() { return {data_.data(), dtype_of<T>(), Shape{count()}}; }
  T* data() { return data_.data(); }
  T* part() { return part_.data(); }  ///< a buffer of one slice

  /// Fills in this rank's values; for a gather only the sums of its slice.
  void fill(Phases phases) {
    if (phases != Phases::gather) {
      repeat(values_, data_.data(), count());
    } else {
      std::ranges::fill(data_, T{});
      // A slice is a whole number of periods.
      repeat(sums_, mine(), slice_);
    }
  }
  void verify(Phases phases, const std::string& name) const {
    const bool all = phases != Phases::scatter;
    const int64_t begin = all ? 0 : comm_.rank() * slice_;
    const int64_t end = all ? count() : begin + slice_;
    for (int64_t i = begin; i < end; i += kPeriod) {
      check(std::equal(sums_.begin(), sums_.end(), data_.begin() + i, same),
            "{}: wrong sums behind element {}", name, i);
    }
  }

 private:
  static T rounded(float x) {
    if constexpr (std::is_same_v<T, bf16>) {
      return to_bf16(x);
    } else {
      return x;
    }
  }
  static bool same(T a, T b) { return to_float(a) == to_float(b); }
  static void repeat(const std::vector<T>& period, T* out, int64_t count) {
    for (int64_t i = 0; i < count; i += kPeriod) {
      std::ranges::copy(period, out + i);
    }
  }
  /// Small integers whose sums are exact in 8 bits, in any order.
  float value(int rank, int64_t i) const {
    return static_cast<float>((i + 7 * rank) % std::max(1, std::min(61, 256 / comm_.size())));
  }

  static constexpr int64_t kPeriod = 256;  ///< elements
  Communicator& comm_;
  int64_t slice_;
  std::vector<T> data_;
  std::vector<T> part_;
  std::vector<T> values_;  ///< of this rank, one period
  std::vector<T> sums_;
};

/// The competitor: MPI's collectives. For 16 bits they use a user-defined operation, since MPI has
/// no bf16; it adds as fast as ours.
template <class T>
class MpiRival {
 public:
  explicit MpiRival(BenchArray<T>& array) : array_(array) {
    if constexpr (std::is_same_v<T, bf16>) {
      MPI_Op_create(add, 1, &sum_);
    }
  }
  MpiRival(const MpiRival&) = delete;
  MpiRival& operator=(const MpiRival&) = delete;
  ~MpiRival() {
    if constexpr (std::is_same_v<T, bf16>) {
      MPI_Op_free(&sum_);
    }
  }

  void all_reduce() {
    MPI_Allreduce(MPI_IN_PLACE, array_.data(), static_cast<int>(array_.count()), type(), sum_,
                  MPI_COMM_WORLD);
  }
  void nonblocking() {
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_Iallreduce(MPI_IN_PLACE, array_.data(), static_cast<int>(array_.count()), type(), sum_,
                   MPI_COMM_WORLD, &request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
  }
  /// Writes the sums to `part`.
  void reduce_scatter() {
    int ranks = 0;
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    const std::vector<int> counts(static_cast<size_t>(ranks), static_cast<int>(array_.slice()));
    MPI_Reduce_scatter(array_.data(), array_.part(), counts.data(), type(), sum_, MPI_COMM_WORLD);
  }
  /// Copies `part` to this rank's slice of the array.
  void place() { std::copy_n(array_.part(), array_.slice(), array_.mine()); }
  void all_gather() {
    MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, array_.data(),
                  static_cast<int>(array_.slice()), type(), MPI_COMM_WORLD);
  }
  void both_halves() {
    reduce_scatter();
    MPI_Allgather(array_.part(), static_cast<int>(array_.slice()), type(), array_.data(),
                  static_cast<int>(array_.slice()), type(), MPI_COMM_WORLD);
  }

 private:
  static MPI_Datatype type() { return std::is_same_v<T, bf16> ? MPI_UINT16_T : MPI_FLOAT; }
  static void add(void* in, void* in_out, int* count, MPI_Datatype* /*type*/) {
    const Tensor sum(in_out, DType::bf16, Shape{*count});
    sum_in_order(std::array{Tensor(in, DType::bf16, Shape{*count}), sum}, sum);
  }

  BenchArray<T>& array_;
  MPI_Op sum_ = MPI_SUM;
};

}  // namespace espalier::parallel
