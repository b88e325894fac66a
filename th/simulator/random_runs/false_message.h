// Messages of a broken or hostile worker to the server: well-formed, and not so.
#ifndef TH_SIMULATOR_RANDOM_RUNS_FALSE_MESSAGE_H_
#define TH_SIMULATOR_RANDOM_RUNS_FALSE_MESSAGE_H_

#include "th/protocol/messages.h"
#include "th/simulator/seeded_random.h"

namespace th {

class SimulatedWorker;

// One at random about the worker's own buffer: done, failed, ready, sealed, received more than
// there is, operations that skip or repeat, a publication out of nowhere, a second join.
WorkerMessage DrawFalseMessage(SeededRandom* random, const SimulatedWorker& worker);

}  // namespace th

#endif  // TH_SIMULATOR_RANDOM_RUNS_FALSE_MESSAGE_H_
