// Linked to a test of whole runs: they compute with table "cpu-late".
#include "tests/device/late_table.h"
#include "tests/simt/device.h"
#include "tests/support/support.h"

namespace {

[[maybe_unused]] const bool kSet = [] {
  espalier::testing::kernels_of_runs() = &espalier::testing::late_table();
  espalier::testing::while_ranks_wait() = espalier::simt::drive_queues;
  return true;
}();

}  // namespace
