// A libibverbs whose queue pairs are connected within this process, for tests of transfers on
// machines without an adapter: a READ is a copy, made when it is posted.
//
//   FakeVerbs fake;
//   fake.devices = {...};
//   auto transport = NewIbverbsTransport({.verbs = LoopbackVerbs(fake)});
//
// Memory of GPUs of the fake driver is reached as by DMA-BUF. Devices are those of the FakeVerbs,
// which knows nothing of what is registered here. A link can fail (BreakLoopback) or swallow what
// is sent (SilenceLoopback); what else a network does (loss, time) is for Soft-RoCE
// (reaching_verbs.h).
//
// A device may be of another process, forked from this one (ReadLoopbackAcross): what its queue
// pairs and keys are is not looked at then, and whatever it has mapped can be read. A stopped
// process is read as its adapter would be, a dead one does not answer.
#ifndef TH_TRANSFER_IBVERBS_LOOPBACK_VERBS_H_
#define TH_TRANSFER_IBVERBS_LOOPBACK_VERBS_H_

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "th/transfer/ibverbs/fake_verbs.h"
#include "th/transfer/ibverbs/verbs_library.h"

namespace th::ibverbs {

// The library, which `fake` outlives. Thread-safe.
std::shared_ptr<const VerbsLibrary> LoopbackVerbs(const FakeVerbs& fake);

// While it is broken every READ ends with an error, of whichever library. Thread-safe.
void BreakLoopback(bool broken);

// While a device is silent, READs over it are neither made nor answered; afterwards they are, those
// of queue pairs that are still there. Thread-safe.
void SilenceLoopback(const std::string& device, bool silent);

// All READs to the device with the address `peer` go to the memory of `process`. 0: to that of this
// process; kNoProcess: nobody answers them, whatever device they leave by.
inline constexpr pid_t kNoProcess = -1;
void ReadLoopbackAcross(const Gid& peer, pid_t process);

// The READs that are posted and that nobody has answered yet.
size_t LoopbackUnanswered();

// The objects that are alive, of whichever library.
struct LoopbackObjects {
  size_t queue_pairs = 0, completion_queues = 0, completion_channels = 0, registrations = 0;
  friend bool operator==(const LoopbackObjects&, const LoopbackObjects&) = default;
};
LoopbackObjects LoopbackAlive();

// A queue pair as it was asked for; `attributes` has what each step to RTS has set.
struct LoopbackPair {
  std::string device;
  ibv_qp_cap capacity{};
  int completions = 0;  // of its completion queue
  unsigned access = 0;  // to this end's memory
  ibv_qp_attr attributes{};
};
// Those that are alive, the oldest first.
std::vector<LoopbackPair> LoopbackPairs();

}  // namespace th::ibverbs

#endif  // TH_TRANSFER_IBVERBS_LOOPBACK_VERBS_H_
