#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "absl/algorithm/container.h"
#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "grpcpp/client_context.h"
#include "th/client/applied.h"
#include "th/client/cancel_hook.h"
#include "th/client/client.h"
#include "th/client/client_state.h"
#include "th/client/data_address.h"
#include "th/client/grpc_channel.h"
#include "th/client/process_guard.h"
#include "th/client/runtime.h"
#include "th/client/server_list.h"
#include "th/client/server_probe.h"
#include "th/proto/tensorhub.grpc.pb.h"
#include "th/transfer/monotonic_clock.h"
#include "th/wire/grpc_status.h"
#include "th/wire/wire.h"

namespace th {
namespace {

using Stub = pb::ReferenceServer::Stub;

// A call that meets a server in the middle of a restart is made again, at most this often. All
// calls may be repeated: those that change something carry an idempotency key.
constexpr int kMaxAttempts = 5;
// How gRPC's own message begins where a call has met its deadline.
constexpr absl::string_view kNoAnswer = "Deadline Exceeded";
constexpr absl::Duration kBetweenAttempts = absl::Milliseconds(100);
// For a command, or a wait whose time is the server's to keep.
constexpr absl::Duration kCommandTimeout = absl::Seconds(30);
constexpr absl::Duration kWaitGrace = absl::Seconds(2);
// The pauses of a call that asks until something has happened; each is twice the one before.
constexpr absl::Duration kFirstLook = absl::Milliseconds(50);
constexpr absl::Duration kLongestLook = absl::Seconds(1);

ProtocolHello Hello() { return {kMinProtocolVersion, kProtocolVersion, 0, "libtensorhub"}; }

// Everything of one call, until gRPC has called back.
template <typename Request, typename Response>
struct Exchange {
  grpc::ClientContext context;
  Request request;
  Response response;
  grpc::Status status;
  absl::Notification done;
};

template <typename Request, typename Response>
using Method = void (Stub::async::*)(grpc::ClientContext*, const Request*, Response*,
                                     std::function<void(grpc::Status)>);

// How often a wait for a connection looks for a cancellation.
constexpr absl::Duration kCancelInterval = absl::Milliseconds(50);
// A server that was reached before has so long to answer before it is looked for elsewhere.
constexpr absl::Duration kMoveOnAfter = absl::Seconds(1);

class Pauses {
 public:
  // Returns after the next one, or at `deadline`. CANCELLED, saying `what` becomes of it.
  absl::Status Await(absl::Time deadline, absl::string_view what) {
    (void)never_.WaitUnlessCancelled(std::min(next_, deadline - MonotonicNow()));
    next_ = std::min(2 * next_, kLongestLook);
    return CheckNotCancelled(what);
  }

 private:
  const Signal never_;
  absl::Duration next_ = kFirstLook;
};

// The connection to one server.
struct Link {
  std::string server;
  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<Stub> stub;
};

std::shared_ptr<Link> MakeLink(Runtime& runtime, const std::string& server) {
  auto link = std::make_shared<Link>();
  link->server = server;
  const SignalsBlocked blocked;  // gRPC may start threads here
  runtime.RunOnControl([&] {
    link->channel = MakeChannel(server);
    link->stub = pb::ReferenceServer::NewStub(link->channel);
  });
  return link;
}

// True for a server that restarts, or has too many calls just now: it is asked again.
bool MayPass(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsResourceExhausted(status);
}

// True when a group has a replica of the version in that form, or is filling one.
bool IsListed(const Catalog& catalog, const FormQuery& query, VersionSequence sequence) {
  const CatalogModel* model = FindModel(catalog, query.key);
  return model != nullptr && absl::c_any_of(model->versions, [&](const CatalogVersion& version) {
           return version.info.sequence == sequence &&
                  absl::c_any_of(version.replicas, [&](const CatalogReplica& replica) {
                    return replica.form == query.form;
                  });
         });
}

bool AwaitConnected(grpc::Channel& channel, absl::Time until) {
  const SignalsBlocked blocked;  // gRPC may start threads here
  while (!CallsAreCancelled()) {
    const absl::Time next = std::min(until, absl::Now() + kCancelInterval);
    if (channel.WaitForConnected(absl::ToChronoTime(next))) return true;
    if (next == until) return false;
  }
  return false;
}

}  // namespace

struct Controller::Impl {
  const ProcessGuard guard;
  Options options;
  std::shared_ptr<Runtime> runtime;
  absl::Mutex mu;
  std::optional<ServerList> servers ABSL_GUARDED_BY(mu);
  std::shared_ptr<Link> link ABSL_GUARDED_BY(mu);
  bool moving_on ABSL_GUARDED_BY(mu) = false;  // some call looks for another address

  ModelKey key() const { return {options.run, options.model}; }
  absl::Status CanWait() const;
  // The link to a server that takes connections, looked for at all addresses, which are read again
  // where a file has them. UNAVAILABLE: there is none before `deadline`, which is `timeout` after
  // the call; CANCELLED.
  absl::StatusOr<std::shared_ptr<Link>> AwaitLink(absl::Time deadline, absl::Duration timeout);
  // Nobody answers there: goes on to the next address, unless another call does or has done so.
  void MoveOn(const std::shared_ptr<Link>& from);
  template <typename Request, typename Response>
  absl::StatusOr<Response> Attempt(const Link& link, Method<Request, Response> method,
                                   const Request& request, absl::Time deadline,
                                   absl::Duration timeout);
  // Calls until the server has answered, or `timeout` has passed.
  template <typename Request, typename Response>
  absl::StatusOr<Response> Ask(Method<Request, Response> method, const Request& request,
                               absl::Duration timeout);
  absl::StatusOr<VersionInfo> Run(Command command, std::string idempotency_key);
  absl::StatusOr<Catalog> List(absl::Duration timeout);
  // The server's choice of who is to make the form. One of an earlier release makes none: then the
  // group that asks, where nobody is listed with the form.
  absl::StatusOr<FormChoice> Choose(const FormQuery& query, absl::Duration timeout);
};

absl::Status Controller::Impl::CanWait() const {
  TH_RETURN_IF_ERROR(guard.Check());
  if (!runtime->callbacks().OnLoop()) return absl::OkStatus();
  return absl::FailedPreconditionError("a call that waits was made from a TensorHub callback");
}

absl::StatusOr<std::shared_ptr<Link>> Controller::Impl::AwaitLink(absl::Time deadline,
                                                                  absl::Duration timeout) {
  for (;;) {
    std::shared_ptr<Link> latest;
    {
      absl::MutexLock lock(&mu);
      latest = link;
    }
    const absl::Duration left = LeftUntil(deadline);
    if (AwaitConnected(*latest->channel, absl::Now() + std::min(left, kMoveOnAfter))) return latest;
    TH_RETURN_IF_ERROR(CheckNotCancelled("the server was not reached"));
    if (left <= kMoveOnAfter) {
      return absl::UnavailableError(absl::StrCat("the reference server at ", latest->server,
                                                 " was not reached within ",
                                                 absl::FormatDuration(timeout)));
    }
    MoveOn(latest);
  }
}

void Controller::Impl::MoveOn(const std::shared_ptr<Link>& from) {
  std::optional<ServerList> list;
  {
    absl::MutexLock lock(&mu);
    if (link != from || moving_on) return;
    moving_on = true;
    list = servers;
  }
  // Without the lock: the disk may be slow, and th-control busy.
  list->MoveAfter({.joined = false});
  list->ReadAgain();
  std::shared_ptr<Link> next =
      list->current() == from->server ? from : MakeLink(*runtime, list->current());
  absl::MutexLock lock(&mu);
  servers = std::move(list);
  link = std::move(next);
  moving_on = false;
}

template <typename Request, typename Response>
absl::StatusOr<Response> Controller::Impl::Attempt(const Link& link,
                                                   Method<Request, Response> method,
                                                   const Request& request, absl::Time deadline,
                                                   absl::Duration timeout) {
  // Shared with gRPC: its thread may still be in Notify when this one goes on.
  const auto exchange = std::make_shared<Exchange<Request, Response>>();
  exchange->request = request;
  exchange->context.set_wait_for_ready(true);
  exchange->context.set_deadline(absl::ToChronoTime(absl::Now() + LeftUntil(deadline)));
  runtime->RunOnControl([&] {
    (link.stub->async()->*method)(&exchange->context, &exchange->request, &exchange->response,
                                  [exchange](const grpc::Status& status) {
                                    exchange->status = status;
                                    exchange->done.Notify();
                                  });
  });
  const CancelHook end_if_cancelled([&] { exchange->context.TryCancel(); });
  exchange->done.WaitForNotification();  // bounded by the deadline
  const absl::Status status = FromGrpcStatus(exchange->status);
  if (absl::IsCancelled(status)) {
    TH_RETURN_IF_ERROR(CheckNotCancelled("a command may still take effect, once"));
  }
  if (absl::IsUnimplemented(status)) {  // what listens there knows nothing of the call
    return absl::UnimplementedError(
        absl::StrCat("what answers at ", link.server,
                     " is no reference server of this version: ", status.message()));
  }
  if (absl::IsDeadlineExceeded(status) && absl::StartsWith(status.message(), kNoAnswer)) {
    return absl::UnavailableError(
        absl::StrCat("the reference server at ", link.server, " has not answered within ",
                     absl::FormatDuration(timeout), "; a command may have taken effect, once"));
  }
  TH_RETURN_IF_ERROR(status);
  return std::move(exchange->response);
}

template <typename Request, typename Response>
absl::StatusOr<Response> Controller::Impl::Ask(Method<Request, Response> method,
                                               const Request& request, absl::Duration timeout) {
  TH_RETURN_IF_ERROR(CanWait());
  const absl::Time deadline = MonotonicNow() + timeout;
  for (int attempt = 1;; ++attempt) {
    TH_ASSIGN_OR_RETURN(const std::shared_ptr<Link> reached, AwaitLink(deadline, timeout));
    absl::StatusOr<Response> response = Attempt(*reached, method, request, deadline, timeout);
    const bool again = response.status().code() == absl::StatusCode::kUnavailable &&
                       attempt < kMaxAttempts && !CallsAreCancelled() &&
                       MonotonicNow() + kBetweenAttempts < deadline;
    if (!again) return response;
    absl::SleepFor(kBetweenAttempts);
  }
}

absl::StatusOr<VersionInfo> Controller::Impl::Run(Command command, std::string idempotency_key) {
  if (idempotency_key.empty()) idempotency_key = RandomIdempotencyKey();
  const pb::CommandRequest request = ToProto(ControllerCommand{
      Hello(), key(), RunCommand{std::move(idempotency_key), std::move(command)}, ""});
  TH_ASSIGN_OR_RETURN(const pb::CommandFinished response,
                      (Ask<pb::CommandRequest, pb::CommandFinished>(&Stub::async::Command, request,
                                                                    kCommandTimeout)));
  TH_ASSIGN_OR_RETURN(CommandFinished finished, FromProto(response));
  TH_RETURN_IF_ERROR(finished.status);
  return std::move(finished.version);
}

absl::StatusOr<Catalog> Controller::Impl::List(absl::Duration timeout) {
  const ListQuery query{Hello(), options.run, options.model, false};
  TH_ASSIGN_OR_RETURN(
      const pb::Catalog response,
      (Ask<pb::ListRequest, pb::Catalog>(&Stub::async::List, ToProto(query), timeout)));
  return FromProto(response);
}

absl::StatusOr<FormChoice> Controller::Impl::Choose(const FormQuery& query,
                                                    absl::Duration timeout) {
  const absl::StatusOr<pb::ClaimFormResponse> response =
      Ask<pb::ClaimFormRequest, pb::ClaimFormResponse>(
          &Stub::async::ClaimForm, ToProto(ClaimFormQuery{Hello(), query}), timeout);
  if (response.ok()) return FromProto(*response);
  if (!absl::IsUnimplemented(response.status())) return response.status();
  TH_ASSIGN_OR_RETURN(const Catalog catalog, List(timeout));
  const VersionSequence sequence = std::get<VersionSequence>(query.selector);
  const bool offered = IsListed(catalog, query, sequence);
  return FormChoice{{.sequence = sequence}, offered ? FormMaker::kNobody : FormMaker::kAsker};
}

Controller::Controller(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Controller::~Controller() {
  if (impl_->guard.forked()) LeaveBehind(std::move(impl_));
}

absl::StatusOr<std::unique_ptr<Controller>> Controller::Connect(Options options) {
  TH_RETURN_IF_ERROR(CheckServers(options.server));
  TH_RETURN_IF_ERROR(ClaimProcess());
  auto impl = std::make_unique<Impl>();
  impl->options = std::move(options);
  impl->runtime = Runtime::Acquire();
  TH_RETURN_IF_ERROR(impl->CanWait());
  const absl::Duration timeout = impl->options.connect_timeout;
  const absl::Time began = absl::Now();
  TH_ASSIGN_OR_RETURN(const ServerList servers, AwaitServers(impl->options.server, timeout));
  // The wait for the file of addresses counts.
  const absl::Duration left = timeout - (absl::Now() - began);
  for (const std::string& server : servers.all()) {
    std::shared_ptr<Link> link = MakeLink(*impl->runtime, server);
    const absl::Time until = absl::Now() + left / static_cast<double>(servers.all().size());
    if (AwaitConnected(*link->channel, until)) {
      {
        absl::MutexLock lock(&impl->mu);
        impl->servers = servers;
        impl->link = std::move(link);
      }
      return std::unique_ptr<Controller>(new Controller(std::move(impl)));
    }
    TH_RETURN_IF_ERROR(CheckNotCancelled("the server was not reached"));
  }
  const std::string why = WhyNoServer(servers.first(), kProbeTimeout);
  return absl::UnavailableError(absl::StrCat("no reference server at ",
                                             absl::StrJoin(servers.all(), ","), " within ",
                                             absl::FormatDuration(timeout), ": ", why));
}

absl::StatusOr<Catalog> Controller::List(absl::Duration timeout) { return impl_->List(timeout); }

absl::StatusOr<RecentEvents> Controller::Events(uint64_t after, EventId id,
                                                absl::Duration timeout) {
  const EventsQuery query{Hello(), impl_->options.run, impl_->options.model, id, after, 0};
  TH_ASSIGN_OR_RETURN(const pb::EventsResponse response,
                      (impl_->Ask<pb::EventsRequest, pb::EventsResponse>(&Stub::async::Events,
                                                                         ToProto(query), timeout)));
  return FromProto(response);
}

absl::StatusOr<VersionInfo> Controller::Resolve(VersionSelector version, absl::Duration timeout) {
  const ResolveQuery query{Hello(), impl_->key(), std::move(version)};
  TH_ASSIGN_OR_RETURN(const pb::ResolveResponse response,
                      (impl_->Ask<pb::ResolveRequest, pb::ResolveResponse>(
                          &Stub::async::Resolve, ToProto(query), timeout)));
  return FromProto(response.version());
}

absl::StatusOr<VersionInfo> Controller::WaitFor(VersionSelector version, absl::Duration timeout) {
  const absl::Time deadline = MonotonicNow() + timeout;
  for (;;) {
    const absl::Duration left = LeftUntil(deadline);
    const WaitQuery query{Hello(), impl_->key(), version, {}, left};
    const absl::StatusOr<pb::ResolveResponse> response =
        impl_->Ask<pb::WaitVersionRequest, pb::ResolveResponse>(&Stub::async::WaitVersion,
                                                                ToProto(query), left + kWaitGrace);
    if (response.ok()) return FromProto(response->version());
    if (!absl::IsDeadlineExceeded(response.status())) return response.status();
    // The server bounds one call; the rest of the time is asked for again.
    if (MonotonicNow() < deadline) continue;
    return absl::DeadlineExceededError(absl::StrCat("no version ", ToString(version), " of ",
                                                    impl_->key().ToString(), " within ",
                                                    absl::FormatDuration(timeout)));
  }
}

absl::StatusOr<AppliedResult> Controller::WaitApplied(VersionSelector version,
                                                      std::vector<std::string> groups,
                                                      absl::Duration timeout) {
  if (groups.empty()) return absl::InvalidArgumentError("no group is named to wait for");
  const absl::Time deadline = MonotonicNow() + timeout;
  TH_ASSIGN_OR_RETURN(const VersionInfo found, WaitFor(std::move(version), timeout));
  for (Pauses pauses;;) {
    // A look that began in time has some to end.
    const absl::StatusOr<Catalog> catalog = List(LeftUntil(deadline) + kWaitGrace);
    const bool is_over = MonotonicNow() >= deadline;
    if (!catalog.ok() && (is_over || !MayPass(catalog.status()))) return catalog.status();
    if (catalog.ok()) {
      AppliedResult result =
          FindApplied(FindModel(*catalog, impl_->key()), catalog->recovering, found, groups);
      if (result.all() || is_over) return result;
    }
    TH_RETURN_IF_ERROR(pauses.Await(deadline, "the groups go on"));
  }
}

absl::StatusOr<AwaitedForm> Controller::AwaitForm(VersionSelector version, const std::string& form,
                                                  const std::string& group,
                                                  absl::Duration timeout) {
  const absl::Time deadline = MonotonicNow() + timeout;
  TH_ASSIGN_OR_RETURN(VersionInfo found, WaitFor(version, timeout));
  for (Pauses pauses;;) {
    const absl::Duration left = LeftUntil(deadline);
    // Whoever waits for this group has the other half for making the form itself.
    const absl::StatusOr<FormChoice> choice =
        impl_->Choose({impl_->key(), found.sequence, form, group, left / 2}, left + kWaitGrace);
    if (choice.ok() && choice->maker != FormMaker::kAnother) {
      return AwaitedForm{std::move(found), choice->maker == FormMaker::kAsker};
    }
    const bool is_over = MonotonicNow() >= deadline;
    if (choice.ok() && is_over) {
      return absl::DeadlineExceededError(
          absl::StrCat("version ", found.ToString(), " is not there in form ", form, " within ",
                       absl::FormatDuration(timeout), ": group ", choice->group, " makes it"));
    }
    if (absl::IsNotFound(choice.status()) && !is_over) {
      // After a restart of the server, until somebody has announced the version.
      TH_ASSIGN_OR_RETURN(found, WaitFor(version, LeftUntil(deadline)));
    } else if (!choice.ok() && (is_over || !MayPass(choice.status()))) {
      return choice.status();
    }
    TH_RETURN_IF_ERROR(pauses.Await(deadline, "the group that makes the form goes on"));
  }
}

absl::StatusOr<VersionInfo> Controller::RollBack(VersionSelector to, std::string idempotency_key) {
  return impl_->Run(th::RollBack{std::move(to)}, std::move(idempotency_key));
}

absl::Status Controller::Retain(uint32_t keep_latest, std::string form) {
  return impl_->Run(SetRetention{keep_latest, std::move(form)}, "").status();
}

absl::StatusOr<VersionInfo> Controller::Pin(VersionSelector version, std::string owner,
                                            absl::Duration expires_after, std::string form) {
  return impl_->Run(
      PinVersion{std::move(version), std::move(owner), expires_after, std::move(form)}, "");
}

absl::Status Controller::Release(VersionSelector version, std::string owner, std::string form) {
  return impl_->Run(ReleasePin{std::move(version), std::move(owner), std::move(form)}, "").status();
}

absl::Status Controller::Forget() { return impl_->Run(th::Forget{}, "").status(); }

absl::StatusOr<FoundShard> Controller::FindShard(ShardQuery query, absl::Duration timeout) {
  query.key = impl_->key();
  const FindShardQuery request{Hello(), std::move(query)};
  TH_ASSIGN_OR_RETURN(const pb::FindShardResponse response,
                      (impl_->Ask<pb::FindShardRequest, pb::FindShardResponse>(
                          &Stub::async::FindShard, ToProto(request), timeout)));
  return FromProto(response);
}

absl::StatusOr<ShardLayout> Controller::GetLayout(Digest digest, absl::Duration timeout) {
  TH_ASSIGN_OR_RETURN(
      const pb::GetLayoutResponse response,
      (impl_->Ask<pb::GetLayoutRequest, pb::GetLayoutResponse>(
          &Stub::async::GetLayout, ToProto(LayoutQuery{Hello(), digest}), timeout)));
  TH_ASSIGN_OR_RETURN(ShardLayout layout, ShardLayout::Decode(response.layout()));
  if (layout.digest() != digest) {
    return absl::DataLossError("the server sent another layout than the one asked for");
  }
  return layout;
}

}  // namespace th
