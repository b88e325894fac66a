// The source's side in a simulation: what //th/transfer's connections and table are around
// ServingSession and ServedTransfers, over the simulated network. It decides nothing itself; it
// judges what they decide. Segments of one pull go one after the other.
//
// Its owner settles the worker's session after every call.
#ifndef TH_SIMULATOR_SIMULATED_SERVING_H_
#define TH_SIMULATOR_SIMULATED_SERVING_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "th/identifiers/identifiers.h"
#include "th/pipeline_replicator/served_transfers.h"
#include "th/pipeline_replicator/serving_session.h"
#include "th/protocol/capability.h"
#include "th/simulator/flow_network.h"
#include "th/simulator/simulated_process.h"
#include "th/weights/checksum.h"
#include "th/weights/segments.h"
#include "th/worker_session/session_types.h"

namespace th {

struct SentSegment;
class SimulatedWorker;

class SimulatedServing {
 public:
  explicit SimulatedServing(SimulatedWorker* worker) : worker_(worker) {}  // outlives this

  // A reader connects to one of the worker's endpoints and says what it wants.
  void Open(SimulatedWorker* reader, TransferId transfer, const std::string& address,
            const Capability& capability, BufferGeneration generation);
  // Takes the answer of the worker's session.
  void Decide(const AdmissionDecided& decided);
  // A request about a transfer that is not there any more is ignored, here and below.
  void Ask(TransferId transfer, SegmentRange range);
  void AskChecksums(TransferId transfer);
  void FinishByReader(TransferId transfer);
  void CloseByReader(TransferId transfer);
  // Ends transfers as the worker's session wants.
  void End(const std::vector<TransferId>& transfers, ServingEnd end);
  // Sends what can be sent now, to one reader or to all (something has arrived here).
  void Pump(TransferId transfer);
  void PumpAll();
  void HandleChunkDelivered(TransferId transfer);
  // The buffer is gone, and the session knows.
  void EndAllOf(BufferId buffer);
  // The process is gone; `tell`: its machine resets the connections.
  void BreakAll(bool report);

  // An endpoint that breaks ends its pulls, and takes none until it is mended. kReset: their
  // readers see the source close; kPath: they see that their path to it has broken, and not who
  // broke it.
  enum class Breakage : uint8_t { kReset, kPath };
  void Break(const std::string& address, Breakage how);
  void Mend(const std::string& address) { broken_.erase(address); }

  void FlipNext(SegmentIndex segment) { flips_.insert(segment); }
  // The bytes that it sends of `segment` until then are wrong, and so is the sum that it claims for
  // them.
  void Forge(SegmentIndex segment, absl::Time until) { forged_until_[segment] = until; }
  uint64_t segments_sent() const { return segments_sent_; }
  std::optional<SegmentIndex> BeingSent(TransferId transfer) const;

 private:
  struct Sending {
    SegmentIndex segment;
    SegmentChecksum value;  // of the bytes when it began
    uint64_t round = 0;     // of the buffer's fill then
  };
  // One connection, which is all of its transfer.
  struct Pull {
    explicit Pull(absl::Time now) : session(ServingLimits{}, now) {}

    SimulatedWorker* reader = nullptr;
    std::string address;
    Capability capability;
    BufferGeneration generation;  // that the reader asks for; then of the admission
    ServingSession session;
    absl::Time timer_at = absl::InfiniteFuture();
    bool reset = false;  // by its machine; the process hears of it when it runs
    std::optional<FlowId> flow;
    Wire wire;  // to the reader
    std::optional<Sending> sending;
    std::optional<SendClose> last_word;  // for when the segment has been sent
    bool watches_bytes = false;

    BufferId buffer() const { return capability.claims.source.buffer; }
  };

  Pull* Find(TransferId transfer);
  // Carries out what the sessions and the table want, until they are quiet.
  void Act(TransferId transfer);
  void CarryOut();
  void Do(TransferId transfer, Pull& pull, const ServingOutput& output);
  void Do(const ServedTransfersOutput& output);
  void Say(Pull& pull, SimulatedEvent word);
  void JudgeAdmitted(const Pull& pull) const;
  void SetTimer(TransferId transfer, Pull& pull);
  void SendNext(TransferId transfer, Pull& pull);
  void SendChecksums(TransferId transfer, Pull& pull);
  bool IsForged(SegmentIndex segment) const;
  SegmentChecksum ForgeryOf(const Pull& pull, SegmentChecksum checksum) const;
  void WatchBytes(TransferId transfer, Pull& pull);
  void CloseFlow(Pull& pull);
  void ReportClosed(TransferId transfer, Pull& pull, const std::string& why);
  void ReportPathBroken(TransferId transfer, Pull& pull);
  SentSegment WhatIsSent(const Pull& pull, const Sending& sent);

  SimulatedWorker* const worker_;
  ServedTransfers transfers_;
  std::map<TransferId, Pull> pulls_;
  std::set<std::string> broken_;  // endpoints
  std::set<SegmentIndex> flips_;
  std::map<SegmentIndex, absl::Time> forged_until_;
  uint64_t segments_sent_ = 0;
};

}  // namespace th

#endif  // TH_SIMULATOR_SIMULATED_SERVING_H_
