// The events on disk, for whoever looks days later or after a restart: a file that is appended to
// and rotated, so that it and the file before it take at most a given size.
//
//   TH_ASSIGN_OR_RETURN(auto log, EventLog::Open("/var/log/tensorhub/events", 64 << 20));
//   log->Append({.epoch = epoch, .event = event});   // `th events --log FILE` shows it
//
// FILE holds the newest events, FILE.1 those before them; event_log_lines.h has the format. Lines
// are not synced to disk: a crash of the host loses some seconds of them. A file that somebody
// moves or removes is begun anew. A disk that is full or fails costs events and no service: a line
// says how many were lost, once there is room.
#ifndef TH_SERVER_EVENT_LOG_H_
#define TH_SERVER_EVENT_LOG_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "th/memory/file_descriptor.h"
#include "th/server/event_log_lines.h"

namespace th {

// The most events that wait for a slow disk; beyond them events are lost.
inline constexpr size_t kMaxQueuedLogEvents = 16384;
// The least limit: some thousand events.
inline constexpr uint64_t kLeastEventLogBytes = uint64_t{1} << 20;

// Thread-safe. One thread, th-event-log, writes.
class EventLog {
 public:
  // FAILED_PRECONDITION: another server writes this file, or its file system has no locks.
  // Makes the file's folder where there is none. INVALID_ARGUMENT: `limit_bytes` is below
  // kLeastEventLogBytes. Any other code: the file cannot be opened; the message names it.
  static absl::StatusOr<std::unique_ptr<EventLog>> Open(std::string path, uint64_t limit_bytes);
  // Writes what has been appended.
  ~EventLog();
  EventLog(const EventLog&) = delete;
  EventLog& operator=(const EventLog&) = delete;

  // Never waits for the disk.
  void Append(LoggedEvent event);
  // Events since Open that are in no file: the queue was full, or a write failed.
  uint64_t lost() const;

 private:
  EventLog(std::string path, uint64_t limit_bytes)
      : path_(std::move(path)), file_limit_bytes_(limit_bytes / 2) {}
  void Run();

  // Called by Open, then by th-event-log alone.
  absl::Status OpenFile();
  absl::Status Rotate();
  void Write(const LoggedEvent& event);
  // After an error the file has its old size.
  absl::Status WriteLine(const std::string& line);

  const std::string path_;
  const uint64_t file_limit_bytes_;
  FileDescriptor file_;
  uint64_t size_ = 0;           // of the file
  uint64_t lost_reported_ = 0;  // of lost_, those that a line in the file counts
  bool failing_ = false;        // the last write failed

  mutable absl::Mutex mutex_;
  std::deque<LoggedEvent> queue_ ABSL_GUARDED_BY(mutex_);
  uint64_t lost_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: it uses the rest
};

}  // namespace th

#endif  // TH_SERVER_EVENT_LOG_H_
