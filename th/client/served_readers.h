// The holder's side of a membership: the readers of its buffers, from the moment that one asks to
// be admitted until it is released, and what is reported of them to the caller.
//
// Not thread-safe: the membership's lock guards it. Reports go on through the ReaderReporter.
#ifndef TH_CLIENT_SERVED_READERS_H_
#define TH_CLIENT_SERVED_READERS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "th/client/client_options.h"
#include "th/client/local_buffer.h"
#include "th/client/membership_figures.h"
#include "th/client/reader_reporter.h"
#include "th/transfer/transport.h"
#include "th/worker_session/session_types.h"

namespace th {

class ServedReaders {
 public:
  using BufferPtr = std::shared_ptr<LocalBuffer>;
  // Answers the reader; to be called without the membership's lock.
  using Decide = std::function<void(Admission)>;

  // `reporter` is null where nobody asked for reports.
  explicit ServedReaders(std::shared_ptr<ReaderReporter> reporter)
      : reporter_(std::move(reporter)) {}

  // A reader asks, and waits for the session's decision.
  void Ask(const AdmissionRequest& request, Decide decide);
  // The session has decided. `find` gives the buffer, null where it is gone: the reader is refused
  // then. nullopt: nobody waits any more.
  struct Answer {
    Decide decide;
    Admission admission;
  };
  std::optional<Answer> Decided(const AdmissionDecided& decided,
                                absl::FunctionRef<BufferPtr(BufferId)> find);
  // Ends the wait of all that have not been decided on, who are to be answered by the caller.
  std::vector<Decide> TakeWaiting();

  // `bytes` counts from the transfer's first byte.
  void NoteSent(TransferId transfer, uint64_t bytes);
  // `why`: see ReaderReport::why_ended.
  void NoteReleased(TransferId transfer, uint64_t bytes, const std::string& why);
  // Forgets those that were decided on but never began: nobody is left to release them.
  void ForgetServed() { served_.clear(); }

  std::vector<TransferId> ReadersOf(const LocalBuffer* buffer) const;
  bool IsRead(const LocalBuffer* buffer) const;
  bool empty() const { return served_.empty() && waiting_.empty(); }
  ServedFigures figures() const;

 private:
  struct Served {
    BufferPtr buffer;
    ReaderReport report;
    uint64_t bytes = 0;
  };
  struct Waiting {
    BufferId buffer;
    Decide decide;
    ReaderReport report;
    bool released = false;  // the reader has gone meanwhile
  };

  void Report(ReaderReport report) const;

  const std::shared_ptr<ReaderReporter> reporter_;
  std::map<TransferId, Served> served_;
  std::map<TransferId, Waiting> waiting_;
  ServedFigures counted_;  // but for `now`
};

}  // namespace th

#endif  // TH_CLIENT_SERVED_READERS_H_
