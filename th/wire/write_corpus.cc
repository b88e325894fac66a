// Writes the corpus of frame_fuzz_test: one file a message, named after it. Run it when messages
// change:
//   bazel run //th/wire:write_corpus -- "$PWD/th/wire/corpus/frame"
#include <fstream>
#include <iostream>
#include <string>
#include <variant>

#include "absl/strings/str_cat.h"
#include "th/wire/message_generator.h"
#include "th/wire/wire.h"

namespace th {
namespace {

// The first seed whose message is of a middling size: everything in it, and small.
constexpr uint32_t kSeed = 3;

template <typename Proto>
void Write(const std::string& folder, const std::string& name, char kind, const Proto& proto) {
  std::ofstream(absl::StrCat(folder, "/", name), std::ios::binary)
      << kind << proto.SerializeAsString();
}

void WriteAll(const std::string& folder) {
  MessageGenerator generator(kSeed);
  for (size_t i = 0; i < std::variant_size_v<WorkerMessage>; ++i) {
    Write(folder, absl::StrCat("worker-", i), 0, ToProto(generator.MakeWorkerMessage(i)));
  }
  for (size_t i = 0; i < std::variant_size_v<ServerMessage>; ++i) {
    Write(folder, absl::StrCat("server-", i), 1, ToProto(generator.MakeServerMessage(i)));
  }
  const ProtocolHello hello{1, 1, 0, "th"};
  const ModelKey key{"r1", "qwen3"};
  Write(folder, "catalog", 2, ToProto(generator.MakeCatalog()));
  Write(folder, "list", 3, ToProto(ListQuery{hello, "r1", "qwen3", true}));
  Write(folder, "resolve", 4, ToProto(ResolveQuery{hello, key, generator.MakeSelector()}));
  Write(folder, "wait", 5,
        ToProto(WaitQuery{hello, key, LatestVersion{}, VersionSequence(3), absl::Seconds(1)}));
  Write(folder, "command", 6,
        ToProto(ControllerCommand{hello, key, generator.MakeRunCommand(), "secret"}));
  Write(folder, "layout", 7, ToProto(LayoutQuery{hello, Sha256("layout")}));
  Write(folder, "events", 8,
        ToProto(EventsQuery{hello, "r1", "qwen3", EventId::Of(Epoch(7), 12), 3, 100}));
  Write(folder, "recent-events", 9, ToProto(generator.MakeEvents()));
  Write(folder, "find-shard", 10,
        ToProto(FindShardQuery{hello, {key, generator.MakeSelector(), "hf", "trainer", Rank(3)}}));
  Write(folder, "found-shard", 11, ToProto(FoundShard{.layout = Sha256("layout")}));
  Write(folder, "claim-form", 12,
        ToProto(ClaimFormQuery{
            hello, {key, generator.MakeSelector(), "engine", "rollout-1", absl::Seconds(60)}}));
  Write(folder, "form-choice", 13,
        ToProto(FormChoice{VersionInfo{VersionSequence(3), VersionLabel::FromStep(7)},
                           FormMaker::kAnother, "rollout-2"}));
}

}  // namespace
}  // namespace th

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: write_corpus FOLDER\n";
    return 2;
  }
  th::WriteAll(argv[1]);
  return 0;
}
