// The simulator: a reference server, workers and the network between them on a virtual clock,
// around the cores of the binaries.
//
//   RunAtRandom({.seed = 17})      one run of a fleet that its seed describes, faults included
//   Cluster cluster({...});        a fleet of one's own, driven by hand
#ifndef TH_SIMULATOR_SIMULATOR_H_
#define TH_SIMULATOR_SIMULATOR_H_

#include "th/simulator/cluster.h"
#include "th/simulator/random_run.h"

#endif  // TH_SIMULATOR_SIMULATOR_H_
