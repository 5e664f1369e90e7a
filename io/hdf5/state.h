#pragma once
// What the parts of hdf5.h share: the lock, ids that are given back, and the state of an open file.
#include <hdf5.h>

#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "io/files/raw_file.h"
#include "io/hdf5/hdf5.h"

namespace espalier::io::hdf5 {

/// One visit to the library: holds the process-wide lock. Printing goes off for good: HDF5 also
/// prints when the process exits after it has met a damaged file.
class Visit {
 public:
  Visit();
  Visit(const Visit&) = delete;
  Visit& operator=(const Visit&) = delete;

 private:
  std::lock_guard<std::recursive_mutex> lock_;
};

/// An id that is given back; lives within one Visit.
class Id {
 public:
  explicit Id(hid_t id) : id_(id) {}
  ~Id() {
    if (id_ >= 0) {
      H5Idec_ref(id_);
    }
  }
  Id(const Id&) = delete;
  Id& operator=(const Id&) = delete;
  // NOLINTNEXTLINE(google-explicit-constructor): ids are passed to HDF5's functions
  operator hid_t() const { return id_; }

 private:
  hid_t id_;
};

struct File::State {
  std::string label;
  std::shared_ptr<RawFile> raw;
  hid_t id = -1;
  bool writing = false;

  State() = default;
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State();

  /// Throws, with the system's or else HDF5's cause, unless `ok` and every write so far went
  /// through.
  void expect(bool ok, std::string_view action, std::string_view path) const;
  std::vector<std::string> children(const std::string& group) const;
  void walk(const std::string& group, int depth, std::vector<std::string>& out) const;
};

}  // namespace espalier::io::hdf5
