// The simulator: a reference server, workers and the network between them on a virtual clock,
// around the cores of the binaries.
//
//   Cluster cluster({...});        a fleet of one's own, driven by hand
//
// th/simulator/random_runs runs fleets that a seed describes, th/simulator/scenarios those that a
// file describes.
#ifndef TH_SIMULATOR_SIMULATOR_H_
#define TH_SIMULATOR_SIMULATOR_H_

#include "th/simulator/cluster.h"
#include "th/simulator/transition_coverage.h"
#include "th/simulator/transition_tables.h"

#endif  // TH_SIMULATOR_SIMULATOR_H_
