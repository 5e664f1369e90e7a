#pragma once
// The model state of this rank at one moment, to come back to: values, what the optimizer keeps,
// what codecs lost, bit for bit. For training a few steps to see where they lead. Takes as much
// memory again as value, low, master, moments and feedback; masks must not change in between.
#include <vector>

#include "sparse/store/store.h"

namespace espalier::train {

class StateCopy {
 public:
  /// The store must outlive it.
  explicit StateCopy(sparse::Store& store);
  /// As often as wanted. Not collective: every rank goes back to its own.
  void restore();

 private:
  struct Kept {
    Tensor original;
    Buffer copy;
  };
  void keep(const Tensor& tensor);

  sparse::Store& store_;
  std::vector<Kept> kept_;
};

}  // namespace espalier::train
