// A file of weights, a checkpoint or plain HDF5, into a store: the state of a run and its optimizer
// from a checkpoint, weights and masks from both.
#include "io/checkpoint/checkpoint.h"
#include "src/train/checkpoint/snapshot.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/small_store.h"

namespace espalier::fuzz {
namespace {

void read(Input input) {
  static MemoryFile file;
  file.fill(input);
  SmallStore small;
  if (io::is_checkpoint(file.path())) {
    const io::CheckpointReader reader(file.path());
    train::load(reader, small.store, {.optimizer = true});
    train::load_feedback(reader, small.store, 0, 1);
    train::load_feedback(reader, small.store, 1, 3);
    train::progress_of(reader);
  }
  train::load_weights(file.path(), small.store, {true, false, true});
}

const Registration kTarget({"weights", read});

}  // namespace
}  // namespace espalier::fuzz
