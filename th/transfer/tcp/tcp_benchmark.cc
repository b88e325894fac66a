// Question: how fast do other ways to use TCP move the same cold bytes, and how close does a
// transfer come to the best of them?
//
//   bazel run -c opt //th/transfer/tcp:tcp_benchmark
//   ... -- --mib 1024 --rounds 11 --checksum off transfer blocking/2 epoll/2 uring/2
//   ... -- --source-netns far --address 10.0.0.2 blocking/2 blocking-zerocopy/2
//
// A contender is `transfer`, which is the transport with its defaults, or
// WAY/CONNECTIONS/LOOPS/REQUEST_KIB/SEND_BUFFER_KIB/CONGESTION_CONTROL (tcp_ways.h). Source and
// reader are two processes; the contenders have their turns in each round, so that a neighbour's
// load meets all: read the ratios, not the figures. With checksums every way sums 256 KiB at a time
// as they land; the source's sums were sealed beforehand. Connections have moved bytes before the
// clock starts, except those of `transfer`, which makes its own while it runs.
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "th/transfer/monotonic_clock.h"
#include "th/transfer/stream/socket.h"
#include "th/transfer/tcp/tcp_transport.h"
#include "th/transfer/tcp/tcp_ways.h"
#include "th/transfer/two_process_benchmark.h"
#include "th/weights/checksum.h"

namespace th::stream {
namespace {

constexpr char kTransfer[] = "transfer";
// The reader to the source, once in each turn.
constexpr char kBegin = 'b';
constexpr char kEnd = 'e';
constexpr uint64_t kMaxMib = 1 << 20;
constexpr uint64_t kWarmUpBytes = uint64_t{32} << 20;

struct Options {
  uint64_t bytes = uint64_t{1} << 30;
  int rounds = 5;
  ChecksumAlgorithm checksum = ChecksumAlgorithm::kXxh3Leaves;
  std::string source_netns;
  std::string address = "127.0.0.1";
  std::vector<std::string> contenders;
};

[[noreturn]] void Fail(const std::string& why) {
  std::fprintf(stderr, "tcp_benchmark: %s\n", why.c_str());
  std::exit(1);
}

template <typename T>
void Send(int control, const T& value) {
  if (send(control, &value, sizeof(value), MSG_NOSIGNAL) != sizeof(value))
    Fail("lost the other process");
}
// nullopt: the other process has ended its side.
template <typename T>
std::optional<T> Hear(int control) {
  T value;
  const ssize_t got = recv(control, &value, sizeof(value), MSG_WAITALL);
  return got == sizeof(value) ? std::optional<T>(value) : std::nullopt;
}

double ProcessorSeconds() {
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

void Tune(int socket, const TcpSettings& settings) {
  const int on = 1;
  const int bytes = static_cast<int>(settings.send_buffer_bytes);
  setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  if (bytes != 0) setsockopt(socket, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes));
  const char* const name = settings.congestion_control;
  if (setsockopt(socket, IPPROTO_TCP, TCP_CONGESTION, name, static_cast<socklen_t>(strlen(name))) !=
      0) {
    Fail(std::string("there is no congestion control ") + name);
  }
}

std::vector<int> DescriptorsOf(const std::vector<Socket>& sockets) {
  std::vector<int> descriptors;
  descriptors.reserve(sockets.size());
  for (const Socket& socket : sockets) descriptors.push_back(socket.fd());
  return descriptors;
}

// ---- the source's process

struct Ports {
  uint16_t transport = 0;
  uint16_t plain = 0;
};
// A contender's turn, told to the source; `plain` is false for the transport.
struct Turn {
  bool plain = false;
  TcpSettings settings;
};
struct SourcesEnd {
  double processor_seconds = 0;
  ZeroCopies zero_copies;
};

void EnterNetwork(const std::string& name) {
  const Socket file(open(("/run/netns/" + name).c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.open() || setns(file.fd(), CLONE_NEWNET) != 0)
    Fail("cannot enter the network " + name + " (ip netns list): " + ErrnoText(errno));
}

// Serves one turn after the other until the reader closes its end of `control`.
void RunSource(int control, const Options& options) {
  if (!options.source_netns.empty()) EnterNetwork(options.source_netns);
  BenchmarkShard shard(options.bytes, options.checksum);
  shard.Write();
  shard.Publish();
  AdmitsAll holder(shard.store);
  auto transport =
      *NewTcpTransport({.listen_address = "0.0.0.0:0", .advertised_hosts = {options.address}});
  transport->AddHolder(kBenchmarkWorker, &holder);
  const Socket listener(::socket(AF_INET, SOCK_STREAM, 0));
  const SocketAddress any = *SocketAddress::Parse("0.0.0.0:0");
  if (bind(listener.fd(), any.get(), any.size()) != 0 || listen(listener.fd(), 64) != 0)
    Fail("cannot listen");
  Send(control, Ports{.transport = SocketAddress::Parse(transport->endpoints()[0].address)->port(),
                      .plain = SocketAddress::OfSelf(listener.fd()).port()});
  while (const auto turn = Hear<Turn>(control)) {
    SourcesEnd end;
    std::vector<Socket> sockets;
    for (uint32_t i = 0; turn->plain && i < turn->settings.connections; ++i) {
      sockets.emplace_back(accept(listener.fd(), nullptr, nullptr));
      Tune(sockets.back().fd(), turn->settings);
    }
    const std::vector<int> descriptors = DescriptorsOf(sockets);
    if (turn->plain)
      SendStripes(turn->settings, descriptors, {shard.data, std::min(kWarmUpBytes, options.bytes)});
    if (Hear<char>(control) != kBegin) break;
    const double before = ProcessorSeconds();
    if (turn->plain)
      end.zero_copies = SendStripes(turn->settings, descriptors, {shard.data, options.bytes});
    if (Hear<char>(control) != kEnd) break;
    end.processor_seconds = ProcessorSeconds() - before;
    Send(control, end);
  }
  transport->RemoveHolder(kBenchmarkWorker);
}

// ---- the reader's process

struct Contender {
  std::string name;
  std::optional<TcpSettings> settings;  // none: the transport
  std::vector<double> seconds;
  std::vector<double> ratios;  // the first contender's seconds over ours, in the same round
  double source_processor = 0;
  double reader_processor = 0;
  ZeroCopies zero_copies;
};

class Reader {
 public:
  Reader(int control, const Options& options)
      : control_(control), options_(options), shard_(options.bytes, options.checksum) {
    shard_.Write();
    const auto ports = Hear<Ports>(control);
    if (!ports) Fail("the source has ended");
    ports_ = *ports;
    transport_ = *NewTcpTransport({});
  }

  void Run(Contender& contender) {
    std::vector<Socket> sockets;
    Send(control_, Turn{.plain = contender.settings.has_value(),
                        .settings = contender.settings.value_or(TcpSettings())});
    if (contender.settings) sockets = Connect(*contender.settings);
    const std::vector<int> descriptors = DescriptorsOf(sockets);
    const auto receive = [&](uint64_t bytes) {
      ReceiveStripes(*contender.settings, descriptors, {shard_.data, bytes},
                     [&](const char* data, size_t landed) { Checksum(data, landed); });
    };
    if (contender.settings) receive(std::min(kWarmUpBytes, options_.bytes));
    const double before = ProcessorSeconds();
    const absl::Time start = MonotonicNow();
    Send(control_, kBegin);
    if (contender.settings) {
      receive(options_.bytes);
      contender.seconds.push_back(absl::ToDoubleSeconds(MonotonicNow() - start));
    } else {
      contender.seconds.push_back(SecondsToReceive(shard_.store, transport_.get(), Source(), {}));
    }
    contender.reader_processor += ProcessorSeconds() - before;
    Send(control_, kEnd);
    const auto end = Hear<SourcesEnd>(control_);
    if (!end) Fail("the source has ended");
    contender.source_processor += end->processor_seconds;
    contender.zero_copies.sends += end->zero_copies.sends;
    contender.zero_copies.copied += end->zero_copies.copied;
  }

 private:
  Endpoint Source() const {
    return {.address = options_.address + ":" + std::to_string(ports_.transport)};
  }
  void Checksum(const char* data, size_t bytes) const {
    if (options_.checksum == ChecksumAlgorithm::kNone) return;
    volatile SegmentChecksum checksum = ChecksumBytes(data, bytes);  // so that it is made
    static_cast<void>(checksum);
  }
  std::vector<Socket> Connect(const TcpSettings& settings) const {
    std::vector<Socket> sockets;
    const SocketAddress address =
        *SocketAddress::Parse(options_.address + ":" + std::to_string(ports_.plain));
    for (uint32_t i = 0; i < settings.connections; ++i) {
      sockets.emplace_back(::socket(AF_INET, SOCK_STREAM, 0));
      if (connect(sockets.back().fd(), address.get(), address.size()) != 0) {
        Fail("cannot connect to " + address.ToString() + ": " + ErrnoText(errno));
      }
      Tune(sockets.back().fd(), settings);
    }
    return sockets;
  }

  const int control_;
  const Options& options_;
  BenchmarkShard shard_;
  Ports ports_;
  std::unique_ptr<Transport> transport_;
};

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void Print(const Options& options, const std::vector<Contender>& contenders) {
  const double gigabytes = static_cast<double>(options.bytes) / 1e9;
  std::printf("%-36s %6s %15s %6s %15s %17s\n", "", "GB/s", "least - most", "ratio", "least - most",
              "processor s/GB");
  for (const Contender& each : contenders) {
    const auto [least, most] = std::minmax_element(each.seconds.begin(), each.seconds.end());
    const auto [low, high] = std::minmax_element(each.ratios.begin(), each.ratios.end());
    const double moved = gigabytes * options.rounds;
    std::printf("%-36s %6.2f %6.2f - %6.2f %6.2f %6.2f - %6.2f %8.3f + %6.3f", each.name.c_str(),
                gigabytes / Median(each.seconds), gigabytes / *most, gigabytes / *least,
                Median(each.ratios), *low, *high, each.source_processor / moved,
                each.reader_processor / moved);
    if (each.zero_copies.sends > 0) {
      std::printf("  %llu of %llu sends were copied",
                  static_cast<unsigned long long>(each.zero_copies.copied),
                  static_cast<unsigned long long>(each.zero_copies.sends));
    }
    std::printf("\n");
  }
  std::printf(
      "ratio: the rate over that of %s in the same round, above 1 is faster; processor: source + "
      "reader\n",
      contenders[0].name.c_str());
}

void RunReader(int control, const Options& options) {
  std::vector<Contender> contenders;
  for (const std::string& name : options.contenders) {
    contenders.push_back({.name = name});
    if (name != kTransfer) contenders.back().settings = *ParseTcpSettings(name);
  }
  Reader reader(control, options);
  for (int round = 0; round < options.rounds; ++round) {
    for (size_t i = 0; i < contenders.size(); ++i) {
      // Every other round goes backwards.
      reader.Run(contenders[round % 2 == 0 ? i : contenders.size() - 1 - i]);
    }
    for (Contender& each : contenders)
      each.ratios.push_back(contenders[0].seconds.back() / each.seconds.back());
    std::fprintf(stderr, "round %d of %d\n", round + 1, options.rounds);
  }
  Print(options, contenders);
}

std::string Parse(int argc, char** argv, Options* options) {
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument.rfind("--", 0) != 0) {
      if (argument != kTransfer && !ParseTcpSettings(argument).ok()) {
        return std::string(ParseTcpSettings(argument).status().message());
      }
      options->contenders.push_back(argument);
      continue;
    }
    if (++i == argc) return argument + " needs a value";
    const std::string value = argv[i];
    if (argument == "--mib") {
      uint64_t mib = 0;
      if (!absl::SimpleAtoi(value, &mib) || mib == 0 || mib > kMaxMib) {
        return absl::StrCat("--mib ", value, " is no number from 1 to ", kMaxMib);
      }
      options->bytes = mib << 20;
    } else if (argument == "--rounds") {
      if (!absl::SimpleAtoi(value, &options->rounds) || options->rounds <= 0) {
        return absl::StrCat("--rounds ", value, " is no number from 1 on");
      }
    } else if (argument == "--checksum" && (value == "on" || value == "off")) {
      if (value == "off") options->checksum = ChecksumAlgorithm::kNone;
    } else if (argument == "--source-netns") {
      options->source_netns = value;
    } else if (argument == "--address") {
      if (!SocketAddress::Parse(value + ":0").ok()) {
        return absl::StrCat("--address ", value, " is no numeric address");
      }
      options->address = value;
    } else {
      return absl::StrCat("there is no ", argument, " ", value);
    }
  }
  if (options->contenders.empty()) options->contenders = {"blocking/2", kTransfer};
  return "";
}

int Main(int argc, char** argv) {
  Options options;
  if (const std::string wrong = Parse(argc, argv, &options); !wrong.empty()) {
    std::fprintf(
        stderr,
        "tcp_benchmark: %s\nusage: tcp_benchmark [--mib N] [--rounds N] [--checksum on|off] "
        "[--source-netns NAME] [--address A] [CONTENDER...]\n",
        wrong.c_str());
    return 64;
  }
  return RunInTwoProcesses([&](int control) { RunSource(control, options); },
                           [&](int control) { RunReader(control, options); });
}

}  // namespace
}  // namespace th::stream

int main(int argc, char** argv) { return th::stream::Main(argc, argv); }
