#include "th/server/event_log.h"

#include <pthread.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "th/status/status_macros.h"

namespace th {

absl::StatusOr<std::unique_ptr<EventLog>> EventLog::Open(std::string path, uint64_t limit_bytes) {
  if (limit_bytes < kLeastEventLogBytes) {
    return absl::InvalidArgumentError(absl::StrCat("an event log of ", limit_bytes,
                                                   " bytes holds too little; give at least ",
                                                   kLeastEventLogBytes));
  }
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  std::error_code no_folder;  // said where the file cannot be opened
  const bool created = std::filesystem::create_directories(folder, no_folder);
  LOG_IF(INFO, created) << "created the folder " << folder << " of --event-log";
  std::unique_ptr<EventLog> log(new EventLog(std::move(path), limit_bytes));
  TH_RETURN_IF_ERROR(log->OpenFile());
  log->thread_ = std::thread([log = log.get()] { log->Run(); });
  return log;
}

EventLog::~EventLog() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  if (thread_.joinable()) thread_.join();
}

void EventLog::Append(LoggedEvent event) {
  absl::MutexLock lock(&mutex_);
  if (queue_.size() < kMaxQueuedLogEvents) {
    queue_.push_back(std::move(event));
  } else {
    ++lost_;
  }
}

uint64_t EventLog::lost() const {
  absl::MutexLock lock(&mutex_);
  return lost_;
}

void EventLog::Run() {
  pthread_setname_np(pthread_self(), "th-event-log");
  for (;;) {
    std::deque<LoggedEvent> events;
    bool last = false;
    {
      absl::MutexLock lock(&mutex_);
      const auto due = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
        return stopping_ || !queue_.empty();
      };
      mutex_.Await(absl::Condition(&due));
      events.swap(queue_);
      last = stopping_;
    }
    for (const LoggedEvent& event : events) Write(event);
    if (last) return;
  }
}

absl::Status EventLog::OpenFile() {
  absl::StatusOr<FileDescriptor> opened = FileDescriptor::OpenForAppending(path_);
  if (!opened.ok()) {
    return absl::Status(
        opened.status().code(),
        absl::StrCat(opened.status().message(),
                     "; let this user write into the folder of --event-log, or name "
                     "another file"));
  }
  FileDescriptor file = *std::move(opened);
  if (!file.TryLock()) {
    return absl::FailedPreconditionError(
        absl::StrCat("the event log ", path_,
                     " is written by another server, or its file system has no locks; give this "
                     "server another --event-log"));
  }
  TH_ASSIGN_OR_RETURN(size_, file.Size());
  file_ = std::move(file);
  // A server that was killed may have left half a line.
  char last = '\n';
  if (size_ > 0) TH_RETURN_IF_ERROR(file_.ReadAt(size_ - 1, &last, 1));
  return last == '\n' ? absl::OkStatus() : WriteLine("\n");
}

absl::Status EventLog::Rotate() {
  const bool moved = std::rename(path_.c_str(), absl::StrCat(path_, ".1").c_str()) == 0;
  return moved ? OpenFile() : FileError("rotate", path_, errno);
}

absl::Status EventLog::WriteLine(const std::string& line) {
  absl::Status written = file_.Write(line.data(), line.size());
  if (written.ok()) {
    size_ += line.size();
  } else {
    written.Update(file_.Truncate(size_));
  }
  return written;
}

void EventLog::Write(const LoggedEvent& event) {
  const uint64_t lost = this->lost();
  std::string lines;
  if (lost > lost_reported_) {
    LoggedEvent loss{.epoch = event.epoch};
    loss.event.at = event.event.at;
    loss.event.who = "server";
    loss.event.what =
        absl::StrCat("events lost: ", lost - lost_reported_, " could not be written to this file");
    lines = EventLogLine(loss);
  }
  lines += EventLogLine(event);
  absl::Status written;
  if (!file_.IsAtItsPath()) {
    written = OpenFile();
  } else if (size_ > 0 && size_ + lines.size() > file_limit_bytes_) {
    written = Rotate();
  }
  if (written.ok()) written = WriteLine(lines);
  const bool failed_before = std::exchange(failing_, !written.ok());
  if (written.ok()) {
    lost_reported_ = lost;
    return;
  }
  LOG_IF(WARNING, !failed_before) << written.message()
                                  << "; events are missing in it until that works again";
  absl::MutexLock lock(&mutex_);
  ++lost_;
}

}  // namespace th
