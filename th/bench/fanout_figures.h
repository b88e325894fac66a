// The measurement of `th bench fanout`, and the figures that follow from it. Pure: values in,
// values out; thread-safe.
//
//   FanoutMeasurement measured{.hosts = 4, ...};
//   std::cout << TextOf(measured) << ToJson(measured).dump();
#ifndef TH_BENCH_FANOUT_FIGURES_H_
#define TH_BENCH_FANOUT_FIGURES_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "nlohmann/json.hpp"

namespace th {

// A reader's part of one round.
struct FanoutReader {
  std::string name;           // "reader-1/0"
  double seconds = 0;         // from the first reader's start to this one's end
  uint64_t reread_bytes = 0;  // received, and thrown away because they had to come again
  std::vector<std::pair<std::string, uint64_t>> sources;  // and the bytes that came from each
};
struct FanoutRound {
  std::vector<FanoutReader> readers;
  uint64_t holder_bytes_sent = 0;  // by all holders together

  double last_reader_seconds() const;
};

// All rounds under one policy of the server.
struct FanoutArm {
  std::string name;  // "ours"; the beginning of its keys
  uint32_t holders = 1;
  std::vector<FanoutRound> rounds;
};

// A round in which a reader that others read from was stopped, cut off or left.
struct DisturbedRound {
  std::string victim;
  double at_fraction = 0;      // what it held
  uint32_t dependents = 0;     // readers that read from it
  double noticed_seconds = 0;  // until the last of them received from another source
  double others_seconds = 0;   // from the first reader's start to the last other reader's end
  uint64_t reread_bytes = 0;   // of all others together
  std::vector<FanoutReader> others;
};

// Readers whose links have the same rate.
struct FanoutClass {
  std::string rate;  // as it was asked for
  uint32_t readers = 0;
  // Seconds of one plain TCP flow of the version's bytes from a holder to a reader of the class; an
  // entry a round.
  std::vector<double> flow_seconds;
};

struct FanoutMeasurement {
  std::vector<FanoutClass> classes;  // at least one; readers come in this order
  uint32_t holders = 1;
  std::string holder_rate;
  uint64_t bytes = 0;              // of the version
  bool verified = false;           // after every round all readers had the holder's SHA-256 sums
  std::string congestion_control;  // of the flows and of the transport
  std::vector<FanoutArm> arms;     // "ours" first
  std::string disturbance;         // "stop", "cut", "leave"; empty: none
  std::vector<DisturbedRound> disturbed;

  uint32_t readers() const;
};

// The figures of one arm.
struct FanoutFigures {
  double seconds = 0;                      // the last reader, median of the rounds
  double ratio = 0;                        // over the ideal; 0: there is none
  std::vector<double> per_reader_seconds;  // medians of the rounds
  double copies_sent = 0;                  // by the holders together, the most of any round
};
FanoutFigures FiguresOf(const FanoutMeasurement& measured, const FanoutArm& arm);

// The figures of one class's readers under one arm.
struct FanoutClassFigures {
  double seconds = 0;                     // the slowest of them, median of the rounds
  double ratio = 0;                       // over the median of the class's flow; 0: there is none
  std::vector<double> seconds_of_rounds;  // the slowest of them
};
// In the order of `measured.classes`.
std::vector<FanoutClassFigures> ClassFiguresOf(const FanoutMeasurement& measured,
                                               const FanoutArm& arm);

// The worst figures of all disturbed rounds.
struct DisturbanceFigures {
  double noticed_seconds = 0;
  double delay_seconds = 0;  // the last other reader's end, against the undisturbed median; not < 0
  uint64_t reread_bytes = 0;
};
DisturbanceFigures DisturbanceOf(const FanoutMeasurement& measured);

// The seconds that one flow over the slowest link takes for the bytes: the last reader cannot have
// them earlier.
double IdealSeconds(const FanoutMeasurement& measured);

// The keys that README.md lists.
nlohmann::json ToJson(const FanoutMeasurement& measured);
std::string TextOf(const FanoutMeasurement& measured);

}  // namespace th

#endif  // TH_BENCH_FANOUT_FIGURES_H_
