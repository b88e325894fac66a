// Where a server keeps what must survive it, and the epoch that it begins by opening it.
//
//   TH_ASSIGN_OR_RETURN(std::unique_ptr<FileStore> store, FileStore::Open("./tensorhub-state"));
//   Registry registry({.epoch = store->opened().epoch, .durable = store->opened().durable, …});
//   TH_RETURN_IF_ERROR(store->Write(state));   // on disk when it returns
//
// At most one server at a time has a store open: opening it is the election.
// Not thread-safe: the thread that owns the registry owns its store.
#ifndef TH_COORDINATION_DURABLE_STORE_H_
#define TH_COORDINATION_DURABLE_STORE_H_

#include "absl/status/status.h"
#include "th/identifiers/identifiers.h"
#include "th/registry_state/registry_types.h"

namespace th {

// The content of a store when it was opened.
struct OpenedState {
  Epoch epoch;             // that the opening began: durable already, above every one before
  StateIdentity identity;  // likewise; its last epoch id is that of the one that began
  DurableState durable;
  bool started_before = false;  // a server with this state ran before
};

class DurableStore {
 public:
  virtual ~DurableStore() = default;

  virtual const OpenedState& opened() const = 0;
  // Begins an epoch above `heard`, which a worker has lived in, with this state:
  // durable, and in opened(), when it returns OK. After an error nothing may be told any more, as
  // with Write.
  virtual absl::Status BeginAbove(Epoch heard, const DurableState& state) = 0;
  // Replaces the whole state, all or nothing: a crash at any moment leaves the old or the new one.
  // It survives a power loss when this returns OK. After an error nobody may be told of `state`.
  virtual absl::Status Write(const DurableState& state) = 0;
};

}  // namespace th

#endif  // TH_COORDINATION_DURABLE_STORE_H_
