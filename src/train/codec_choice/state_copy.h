#pragma once
// Copies this rank's model state and restores it bit for bit: values, optimizer state, error
// feedback. AdaPrec uses it to train a few trial steps and go back. Memory: value, low, master,
// moments and feedback once more. Masks must not change between copy and restore.
#include <vector>

#include "sparse/store/store.h"

namespace espalier::train {

class StateCopy {
 public:
  /// The store must outlive it.
  explicit StateCopy(sparse::Store& store);
  /// Restores the copy; callable any number of times. Not collective: each rank restores its own.
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
