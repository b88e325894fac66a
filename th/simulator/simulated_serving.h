// The source's side of the pulls from one simulated worker: who was admitted, what they have asked
// for, which segment is on its way to whom. Segments of one pull go one after the other; a segment
// that is not here yet is sent as soon as it is.
#ifndef TH_SIMULATOR_SIMULATED_SERVING_H_
#define TH_SIMULATOR_SIMULATED_SERVING_H_

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "th/protocol/capability.h"
#include "th/simulator/flow_network.h"
#include "th/simulator/simulated_process.h"
#include "th/weights/checksum.h"
#include "th/weights/identifiers.h"
#include "th/weights/segments.h"
#include "th/worker_session/session_types.h"

namespace th {

struct SentSegment;
class SimulatedWorker;

// How often a source says that it is there while its reader waits.
inline constexpr absl::Duration kSimulatedKeepAlive = absl::Milliseconds(100);

class SimulatedServing {
 public:
  explicit SimulatedServing(SimulatedWorker* worker) : worker_(worker) {}  // outlives this

  // A reader asks to be admitted, at one of the worker's endpoints: the session is asked, and
  // answers with Decide.
  void Open(SimulatedWorker* reader, TransferId transfer, const std::string& address,
            const Capability& capability, BufferGeneration generation);
  void Decide(const AdmissionDecided& decided);
  // Of a transfer that was admitted; others are ignored, here and below.
  void Ask(TransferId transfer, SegmentRange range);
  void AskSums(TransferId transfer);
  // The reader let go.
  void Release(TransferId transfer);
  // Sends no more than what is on its way; then as Cut.
  void Finish(const std::vector<TransferId>& transfers);
  // Closes them, tells their readers and the session.
  void Cut(const std::vector<TransferId>& transfers);
  // Sends what can be sent now, to one reader or to all (something has arrived here).
  void Pump(TransferId transfer);
  void PumpAll();
  void HandleChunkDelivered(TransferId transfer);
  // The buffer is gone, and the session knows.
  void BreakAllOf(BufferId buffer);
  // The process is gone; `tell`: its machine resets the connections.
  void BreakAll(bool tell);

  // An endpoint that breaks resets its pulls, and takes none until it is mended.
  void Break(const std::string& address);
  void Mend(const std::string& address) { broken_.erase(address); }

  void FlipNext(SegmentIndex segment) { flips_.insert(segment); }
  // What it sends of `segment` until then is wrong, and so is the sum that it claims for it.
  void Forge(SegmentIndex segment, absl::Time until) { forged_until_[segment] = until; }
  uint64_t segments_sent() const { return segments_sent_; }

 private:
  struct Sending {
    SegmentIndex segment;
    SegmentSum value;  // of the bytes when it began
  };
  struct Pull {
    SimulatedWorker* reader = nullptr;
    std::string address;
    Capability capability;
    bool admitted = false;
    FlowId flow;
    Wire wire;  // to the reader
    std::deque<SegmentIndex> asked;
    std::optional<Sending> sending;
    SegmentRange sums_asked;  // that were not sent
    bool beating = false;
    bool finishing = false;

    BufferId buffer() const { return capability.claims.source.buffer; }
  };

  Pull* Find(TransferId transfer);
  void Drop(TransferId transfer);
  void TellSums(TransferId transfer, Pull& pull);
  bool IsForged(SegmentIndex segment) const;
  void StartBeating(TransferId transfer, Pull& pull);
  void Beat(TransferId transfer);
  void TellClosed(TransferId transfer, Pull& pull, const std::string& why);

  SimulatedWorker* const worker_;
  std::map<TransferId, Pull> pulls_;
  SentSegment WhatIsSent(const Pull& pull, const Sending& sent);

  std::set<std::string> broken_;  // endpoints
  std::set<SegmentIndex> flips_;
  std::map<SegmentIndex, absl::Time> forged_until_;
  uint64_t segments_sent_ = 0;
};

}  // namespace th

#endif  // TH_SIMULATOR_SIMULATED_SERVING_H_
