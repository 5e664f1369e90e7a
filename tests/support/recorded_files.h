#pragma once
// Records the file operations of a run, and builds what a crash at any moment may leave on the
// disk. The model is the weakest that POSIX and journaling file systems allow (as in ALICE,
// Pillai et al., OSDI 2014), so code that survives it survives on all of them:
//
//   Content   Since the last fsync of a file each write and each change of size may be on the disk
//             or not, independently of the others; of a write the first part only; the size
//             without the data (zeros).
//   Names     Since the last fsync of a folder each creation, rename and removal in it may be on
//             the disk or not, independently of the others. Each is atomic: a rename gives the old
//             name or the new one. Between two folders it is on the disk after the fsync of both.
//   fsync     of a file does not make its name durable, that of a folder no content. A folder
//             whose own name is lost takes all files in it with it.
//
// A crash of the process alone leaves the state in which everything is on the disk.
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <unordered_set>
#include <vector>

#include "io/files/file_system.h"

namespace espalier::testing {

/// One change. Files and folders are numbered in the order of their creation; 0 is the root.
struct FileOperation {
  enum class Kind { create, make_folder, rename, unlink, write, resize, sync, none };
  Kind kind = Kind::sync;
  int node = 0;
  int folder = -1, to_folder = -1;  ///< of names
  std::string name{}, to_name{};
  uint64_t offset = 0;  ///< of a write; the new size of a resize
  std::string data{};
};

/// The system's calls, recorded for paths below `root`. Its fsync does nothing.
class RecordedFiles : public io::FileSystem {
 public:
  explicit RecordedFiles(std::filesystem::path root);

  int open(const std::filesystem::path& path, int flags) override;
  ssize_t write(int file, const void* data, size_t bytes, uint64_t offset) override;
  int resize(int file, uint64_t size) override;
  int sync(int file) override;
  int close(int file) override;
  int rename(const std::filesystem::path& from, const std::filesystem::path& to) override;
  int unlink(const std::filesystem::path& path) override;
  int make_folder(const std::filesystem::path& path) override;

  const std::vector<FileOperation>& operations() const { return operations_; }

 private:
  struct Place {
    int folder;
    std::string name;
  };
  Place place_of(const std::filesystem::path& path) const;
  int add_node();

  std::filesystem::path root_;
  std::vector<FileOperation> operations_;
  std::vector<std::map<std::string, int>> names_;  ///< [node] entries of a folder
  std::map<int, int> open_;                        ///< descriptor -> node
};

/// Paths relative to the root; folders have no content.
using FileTree = std::map<std::string, std::shared_ptr<const std::string>>;

/// The states of the disk after a growing number of recorded operations.
class CrashStates {
 public:
  /// `most`: states to visit after each operation; more are sampled, with the extremes.
  CrashStates(std::vector<FileOperation> operations, size_t most, uint64_t seed);

  bool done() const { return next_ == operations_.size(); }
  /// Operations that were issued.
  size_t issued() const { return next_; }
  /// Issues the next operation, then visits the states that no earlier call with this `context` has
  /// visited.
  void advance(uint64_t context, const std::function<void(const FileTree&)>& visit);

 private:
  using Names = std::vector<std::map<std::string, int>>;
  struct NameChange {
    size_t operation;
    bool synced_from = false, synced_to = false;
  };
  struct Content {
    std::shared_ptr<const std::string> durable = std::make_shared<std::string>();
    std::vector<size_t> pending{};  ///< operations since the last fsync
  };
  using Contents = std::vector<std::shared_ptr<const std::string>>;

  void issue(const FileOperation& operation);
  bool is_durable(const NameChange& change) const;
  std::vector<std::vector<bool>> subsets_of(size_t count);
  Names names_with(const std::vector<bool>& chosen) const;
  std::string applied(const Content& content, const std::vector<bool>& chosen, bool torn) const;
  Contents variants_of(const Content& content);
  void visit_contents(const Names& names, uint64_t context,
                      const std::function<void(const FileTree&)>& visit);

  std::vector<FileOperation> operations_;
  size_t most_;
  std::mt19937_64 random_;
  size_t next_ = 0;
  std::vector<NameChange> changes_;
  std::vector<Content> contents_;  ///< [node]
  std::unordered_set<uint64_t> seen_;
};

}  // namespace espalier::testing
