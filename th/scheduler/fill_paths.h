// The test that a holder can feed a reader: what is above it in the graph of who fills from whom.
//
//   FillPaths paths(graph, reader);
//   std::optional<uint32_t> chain = paths.ChainAbove(candidate);   // none: it cannot
//
// Looks at the graph only where it is asked to, and at every holder once. Not thread-safe.
#ifndef TH_SCHEDULER_FILL_PATHS_H_
#define TH_SCHEDULER_FILL_PATHS_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/types/span.h"
#include "th/identifiers/identifiers.h"

namespace th {

// The graph of fills of one shard of one version: an edge leads from a reader up to each source.
class FillGraph {
 public:
  struct Holder {
    bool complete = false;
    absl::Span<const BufferAddress> sources;  // that it fills from now; valid with the graph
  };
  virtual ~FillGraph() = default;
  // The graph decides what an address is that is no holder's. The registry says that it is
  // complete: it was announced as a source after a restart, and feeds its readers.
  virtual Holder At(const BufferAddress& buffer) const = 0;
};

// The paths above the candidates of one reader, for as long as the graph stays as it is. It
// remembers what it has seen. The graph outlives it.
class FillPaths {
 public:
  FillPaths(const FillGraph& graph, const BufferAddress& reader) : graph_(graph), reader_(reader) {}

  // The longest chain of fills from `holder` up to a complete one: 0 for a complete one. None: no
  // path leads there, or the holder is the reader or fills from it, directly or through others. The
  // graph has no cycle; with one this still ends, but what it says depends on who is asked first.
  std::optional<uint32_t> ChainAbove(const BufferAddress& holder);

 private:
  // A holder whose sources are being looked at.
  struct Step {
    BufferAddress buffer;
    FillGraph::Holder holder;
    size_t next = 0;  // of its sources
    uint32_t chain = 0;
  };

  Step StepTo(const BufferAddress& buffer);
  // Adds to `step` a source whose chain is `above`.
  static void Join(Step& step, uint32_t above);

  const FillGraph& graph_;
  const BufferAddress reader_;
  absl::flat_hash_map<BufferAddress, uint32_t> known_;  // chains, kUnfed or kBelowReader
};

}  // namespace th

#endif  // TH_SCHEDULER_FILL_PATHS_H_
