// The transfers that a process serves: of which of its holders, over which connections, who is
// asked to admit one, which connections join it, when it is cut and when it is released.
// ServingSession decides for each of the connections.
//
//   ServedTransfers transfers;
//   transfers.AddHolder(worker);
//   transfers.HandleOpened(connection, NextTransferId(), opening);  // on a session's AskToAdmit
//   transfers.HandleDecided(transfer, {status, layout});            // the answer to AskHolder
//   transfers.HandleClosed(connection);                             // it reads no byte any more
//   while (auto output = transfers.PollOutput()) Do(*output);       // after everything that
//   happens
//
//   asked -> served -> released       a transfer; released when its last connection is closed
//        `-> refused                  by the holder, or because the layouts differ
//
// A transfer is what one reader's pull is at its source: admitted once, carried by one or several
// connections. Every transfer that a holder has admitted is released exactly once, also one that
// was cut or whose reader was gone before it was served.
//
// Pure; not thread-safe: the owner serialises calls.
#ifndef TH_PIPELINE_REPLICATOR_SERVED_TRANSFERS_H_
#define TH_PIPELINE_REPLICATOR_SERVED_TRANSFERS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <variant>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "th/identifiers/identifiers.h"
#include "th/mutability_contract/mutability_contract.h"  // TransferId
#include "th/pipeline_replicator/serving_session.h"
#include "th/protocol/capability.h"
#include "th/weights/digest.h"

namespace th {

// The connections of one transfer, at most.
inline constexpr size_t kMaxConnectionsPerTransfer = 8;
// A holder is told of its reader's bytes this often at most.
inline constexpr absl::Duration kReaderBytesInterval = absl::Milliseconds(100);

// Chosen by the reader at random; the connections of one pull share it.
using PullNonce = std::array<uint8_t, 16>;
// A reader's connection; the owner numbers them and never gives a number twice.
using ServingConnection = StrongInt<struct ServingConnectionTag>;

// ---- outputs

// Ask the holder whether it admits the transfer. Answered by HandleDecided.
struct AskHolder {
  WorkerId holder;
  TransferId transfer;
};
// To the connection's session.
struct AdmitConnection {
  ServingConnection connection;
  TransferId transfer;
};
struct RefuseConnection {
  ServingConnection connection;
  absl::Status why;
};
struct EndConnection {
  ServingConnection connection;
  ServingEnd end = ServingEnd::kNow;
};
// Tell the holder that the transfer is over: nothing is read from the buffer for it any more.
struct ReleaseTransfer {
  WorkerId holder;
  TransferId transfer;
};
using ServedTransfersOutput =
    std::variant<AskHolder, AdmitConnection, RefuseConnection, EndConnection, ReleaseTransfer>;

class ServedTransfers {
 public:
  // The words of a reader that connects.
  struct Opening {
    bool joins = false;  // a further connection of a pull that was admitted already
    PullNonce nonce{};
    Capability capability;
    Digest layout;
  };
  // The holder's answer, and the layout of the buffer that it admits to, if there is one.
  struct Decision {
    absl::Status status;
    std::optional<Digest> layout;
  };

  // ---- holders
  // Again after RemoveHolder: what is under way is still counted.
  void AddHolder(WorkerId holder);
  // Ends its connections; nobody is admitted or joins any more.
  void RemoveHolder(WorkerId holder);
  // Every transfer that was served is released.
  bool IsQuiet(WorkerId holder) const;
  // One that was removed and is quiet. What it has been asked and decides later has no effect.
  void ForgetHolder(WorkerId holder);

  // ---- connections
  // `transfer` is the number of the transfer, should this be a new one.
  void HandleOpened(ServingConnection connection, TransferId transfer, Opening opening);
  // Idempotent.
  void HandleClosed(ServingConnection connection);

  // ---- the holder's owner
  // Void for a transfer that nobody asked for, and a second time.
  void HandleDecided(TransferId id, Decision decision);
  // Ends `transfer` for good: one that was not served yet never is, and no connection joins it.
  void End(TransferId transfer, ServingEnd end);

  std::optional<ServedTransfersOutput> PollOutput();

  // ---- state
  // What the reader of a transfer that is asked for or served has said. Null: there is none.
  const Opening* FindOpening(TransferId transfer) const;
  uint64_t served() const { return served_; }    // transfers
  uint64_t refused() const { return refused_; }  // connections

 private:
  struct Holder {
    uint32_t served = 0;  // transfers that are not released
    bool removed = false;
  };
  struct Transfer {
    WorkerId holder;
    Opening opening;  // of the first connection
    bool served = false;
    bool cut = false;  // every connection was told to end, and none may join
    std::set<ServingConnection> connections;
  };
  using Transfers = std::map<TransferId, Transfer>;

  bool Serves(WorkerId holder) const;
  void Ask(ServingConnection connection, TransferId id, Opening opening);
  absl::Status Join(ServingConnection connection, const Opening& opening);
  // OK: the transfer may begin.
  static absl::Status Check(const Transfer& transfer, const Decision& decision);
  void Begin(TransferId id, Transfer& transfer);
  void Refuse(ServingConnection connection, absl::Status why);
  void EndConnections(Transfer& transfer, ServingEnd end);
  void Erase(Transfers::iterator transfer);

  std::map<WorkerId, Holder> holders_;
  Transfers transfers_;
  std::map<ServingConnection, TransferId> of_connection_;
  std::map<PullNonce, TransferId> by_nonce_;  // served ones
  std::deque<ServedTransfersOutput> outputs_;
  uint64_t served_ = 0;
  uint64_t refused_ = 0;
};

}  // namespace th

#endif  // TH_PIPELINE_REPLICATOR_SERVED_TRANSFERS_H_
