// A libibverbs whose queue pairs are connected within this process, for tests of transfers on
// machines without an adapter: a READ is a copy, made when it is posted.
//
//   FakeVerbs fake;
//   fake.devices = {...};
//   auto transport = NewIbverbsTransport({.verbs = LoopbackVerbs(fake)});
//
// Memory of GPUs of the fake driver is reached as by DMA-BUF. Devices are those of the FakeVerbs,
// which knows nothing of what is registered here. What a network does (loss, time, failures of
// ports) is not shown: that is for Soft-RoCE (reaching_verbs.h).
#ifndef TH_TRANSFER_IBVERBS_LOOPBACK_VERBS_H_
#define TH_TRANSFER_IBVERBS_LOOPBACK_VERBS_H_

#include <memory>

#include "th/transfer/ibverbs/fake_verbs.h"
#include "th/transfer/ibverbs/verbs_library.h"

namespace th::ibverbs {

// The library, which `fake` outlives. Thread-safe.
std::shared_ptr<const VerbsLibrary> LoopbackVerbs(const FakeVerbs& fake);

// While it is broken every READ ends with an error, of whichever library. Thread-safe.
void BreakLoopback(bool broken);

}  // namespace th::ibverbs

#endif  // TH_TRANSFER_IBVERBS_LOOPBACK_VERBS_H_
