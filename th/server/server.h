// The reference server: a gRPC shell around the registry, with a status page.
//
//   TH_ASSIGN_OR_RETURN(std::unique_ptr<FileStore> store, FileStore::Open("./tensorhub-state"));
//   TH_ASSIGN_OR_RETURN(std::unique_ptr<Server> server,
//                       Server::Start({.listen = "127.0.0.1:0", .store = std::move(store)}));
//   LOG(INFO) << "listening on " << server->address();
//   … until someone wants it to end, or server->WaitForFailure(…) …
//   server->Shutdown();
//
// Threads: gRPC's own, one for the registry (th/server/registry_loop.h), one for HTTP when asked
// for.
#ifndef TH_SERVER_SERVER_H_
#define TH_SERVER_SERVER_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "th/coordination/durable_store.h"
#include "th/identifiers/identifiers.h"
#include "th/registry_state/registry_types.h"
#include "th/server/controller_call.h"
#include "th/server/event_log.h"
#include "th/server/session_stream.h"

namespace th {

struct ServerOptions {
  std::string listen = "127.0.0.1:7077";  // HOST:PORT; port 0: the system chooses
  std::string http_listen;                // HOST:PORT of the status page; empty: none
  std::unique_ptr<DurableStore> store;    // open
  RegistryLimits limits;
  OutboundLimits outbound;
  CallLimits calls;
  // The limit of what all connections together have sent and the server has not handled yet, joined
  // or not.
  // Near it gRPC reads less at a time; beyond it, it ends streams.
  size_t stream_memory_bytes = size_t{4} << 30;
  std::unique_ptr<EventLog> event_log;  // null: events are remembered in memory alone
  std::string software;                 // told to peers and shown on the status page
  // How long Shutdown() lets streams and calls end by themselves.
  absl::Duration shutdown_grace = absl::Seconds(2);
};

// Thread-safe.
class Server {
 public:
  // INVALID_ARGUMENT (an address, or no store), FAILED_PRECONDITION (a port is taken) and what else
  // the system says of an address that cannot be listened on, naming it.
  static absl::StatusOr<std::unique_ptr<Server>> Start(ServerOptions options);
  ~Server();  // Shutdown()
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // "127.0.0.1:43211", with the port that the system chose.
  const std::string& address() const;
  int port() const;
  // Empty without a status page.
  const std::string& http_address() const;
  Epoch epoch() const;

  // Waits at most `timeout` for the server to fail (its state cannot be written any more); OK: it
  // has not. A failed server refuses everybody and is to be shut down.
  absl::Status WaitForFailure(absl::Duration timeout) const;

  // Tells every worker to come back later, ends all streams and calls, and frees the ports. Bounded
  // by shutdown_grace. Idempotent; the second caller returns at once.
  void Shutdown();

 private:
  struct Impl;
  explicit Server(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace th

#endif  // TH_SERVER_SERVER_H_
