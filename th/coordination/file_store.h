// The store of a server that runs alone: one fsync'd file in a directory of its own.
//
//   DIR/lock    held by flock(2) while the store is open; its text is the holder's process id
//   DIR/state   the state; replaced by writing DIR/state.new, fsync, rename, fsync of DIR
//
// docs/decisions/0003-durable-state.md says why.
#ifndef TH_COORDINATION_FILE_STORE_H_
#define TH_COORDINATION_FILE_STORE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "th/coordination/durable_store.h"
#include "th/coordination/epoch_start.h"
#include "th/coordination/state_encoding.h"

namespace th {

// The steps of one write, in order.
enum class WriteStep { kCreate, kWrite, kSync, kRename, kSyncDirectory };

struct FileStoreOptions {
  // Called before each step; an error stands for the step's own. For tests of failing disks.
  std::function<absl::Status(WriteStep)> before_step;
  // No larger file is written: it could not be read again.
  size_t max_bytes = kMaxStateBytes;
  std::function<absl::Time()> now = absl::Now;
  std::function<uint64_t()> random = RandomFromSystem;
};

// Not thread-safe. The lock goes when the store does, or its process.
class FileStore : public DurableStore {
 public:
  // Creates the directory when it is missing, and raises the epoch durably before it returns.
  // FAILED_PRECONDITION when another server has it open (names the path and the process), DATA_LOSS
  // when the file is damaged, UNIMPLEMENTED when a newer server wrote it, and what the system says
  // (PERMISSION_DENIED, RESOURCE_EXHAUSTED, …). It never begins afresh over a file that it cannot
  // read.
  static absl::StatusOr<std::unique_ptr<FileStore>> Open(std::string directory,
                                                         FileStoreOptions options = {});
  ~FileStore() override;

  const OpenedState& opened() const override { return opened_; }
  // RESOURCE_EXHAUSTED beyond max_bytes; the file is as it was.
  absl::Status Write(const DurableState& state) override;
  absl::Status BeginAbove(Epoch heard, const DurableState& state) override;

 private:
  FileStore(std::string directory, FileStoreOptions options);
  absl::Status OpenDirectory();
  absl::Status Lock();
  absl::Status LoadAndBeginEpoch();
  // Durable, and in opened_, when it returns OK.
  absl::Status BeginEpoch(OpenedState opened);
  absl::Status Replace(const std::string& content);
  absl::Status WriteNewFile(const std::string& content);
  absl::Status Before(WriteStep step) const;

  const std::string directory_;
  const FileStoreOptions options_;
  int directory_fd_ = -1;
  int lock_fd_ = -1;
  OpenedState opened_;
};

}  // namespace th

#endif  // TH_COORDINATION_FILE_STORE_H_
