// The objects behind the handles of tensorhub.h, and the calls that are under way on each.
#ifndef TH_C_INTERFACE_C_HANDLES_H_
#define TH_C_INTERFACE_C_HANDLES_H_

#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "th/c_interface/tensorhub.h"
#include "th/client/attach.h"
#include "th/client/client.h"
#include "th/client/process_guard.h"

namespace th::c {

// A call that was begun on a handle and may be under way.
class Running {
 public:
  virtual ~Running() = default;
  // Cancels it and returns when it does not use the handle any more.
  virtual void End() = 0;
};

// The calls that were begun on one handle. Thread-safe.
class RunningSet {
 public:
  void Add(std::weak_ptr<Running> call);
  // Nothing in a forked child, where none of them runs.
  void EndAll();

 private:
  const ProcessGuard guard_;
  absl::Mutex mu_;
  std::list<std::weak_ptr<Running>> calls_ ABSL_GUARDED_BY(mu_);
};

// Reports of readers that nobody has asked for yet; the newest that fit. Thread-safe.
class ReaderReports {
 public:
  static constexpr size_t kMost = 1024;

  void Add(ReaderReport report);
  // Those since the last Take, and how many were dropped meanwhile.
  std::pair<std::deque<ReaderReport>, uint64_t> Take();

 private:
  absl::Mutex mu_;
  std::deque<ReaderReport> reports_ ABSL_GUARDED_BY(mu_);
  uint64_t dropped_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace th::c

// The names are C's. NOLINTBEGIN(readability-identifier-naming)
struct th_client {
  ~th_client() { running.EndAll(); }
  std::shared_ptr<th::c::ReaderReports> reports;  // shared with on_reader; null: none are kept
  std::unique_ptr<th::Client> client;
  th::c::RunningSet running;
};
struct th_buffer {
  ~th_buffer() { running.EndAll(); }
  th::WeightBuffer buffer;
  th::c::RunningSet running;
};
struct th_attached {
  ~th_attached() { running.EndAll(); }
  th::AttachedVersion version;
  mutable th::c::RunningSet running;
};
struct th_controller {
  ~th_controller() { running.EndAll(); }
  std::unique_ptr<th::Controller> controller;
  th::c::RunningSet running;
};
// NOLINTEND(readability-identifier-naming)

#endif  // TH_C_INTERFACE_C_HANDLES_H_
