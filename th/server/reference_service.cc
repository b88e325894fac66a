#include "th/server/reference_service.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "th/wire/grpc_status.h"
#include "th/wire/wire.h"

namespace th {
namespace {

namespace pb = ::tensorhub::v1;

// The request as a value, once both sides have a protocol version in common.
template <typename Request>
auto DecodeCall(const Request& request, const ProtocolHello& own) -> decltype(FromProto(request)) {
  auto query = FromProto(request);
  if (!query.ok()) return query;
  const absl::StatusOr<uint32_t> agreed = AgreeOnVersion(own, query->hello);
  if (!agreed.ok()) return agreed.status();
  return query;
}

grpc::ServerUnaryReactor* FinishNow(grpc::CallbackServerContext* context,
                                    const absl::Status& status) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(ToGrpcStatus(status));
  return reactor;
}

pb::ResolveResponse ToResponse(const VersionInfo& version) {
  pb::ResolveResponse response;
  *response.mutable_version() = ToProto(version);
  return response;
}

void OmitAttributes(Catalog& catalog) {
  for (CatalogModel& model : catalog.models) {
    for (CatalogVersion& version : model.versions) version.info.attributes.clear();
  }
}

// A controller that waits. It finishes exactly once: when the loop answers. A caller that hangs up
// makes the loop answer at once.
class WaitReactor final : public grpc::ServerUnaryReactor {
 public:
  static WaitReactor* Start(RegistryLoop* loop, VersionWait wait, pb::ResolveResponse* response) {
    auto* reactor = new WaitReactor(loop);  // deletes itself in OnDone
    wait.done = [reactor, response](absl::StatusOr<VersionInfo> version) {
      if (version.ok()) *response = ToResponse(*version);
      reactor->Finish(ToGrpcStatus(version.status()));
    };
    reactor->Begin(std::move(wait));
    return reactor;
  }

  void OnCancel() override {
    if (id_.ok()) loop_->CancelWait(*id_);
  }
  void OnDone() override { delete this; }

 private:
  explicit WaitReactor(RegistryLoop* loop) : loop_(loop) {}

  // Called before gRPC gets hold of the reactor: neither OnCancel nor OnDone can come meanwhile.
  void Begin(VersionWait wait) {
    id_ = loop_->Wait(std::move(wait));
    if (!id_.ok()) Finish(ToGrpcStatus(id_.status()));
  }

  RegistryLoop* const loop_;
  absl::StatusOr<VersionWaitId> id_;
};

}  // namespace

ReferenceService::ReferenceService(RegistryLoop* loop, ServerMetrics* metrics, ProtocolHello hello,
                                   OutboundLimits limits)
    : loop_(loop), metrics_(metrics), hello_(std::move(hello)), limits_(limits) {}

template <typename Request, typename Response, typename Work>
grpc::ServerUnaryReactor* ReferenceService::AskLoop(grpc::CallbackServerContext* context,
                                                    const Request& request, Response* response,
                                                    Work work) {
  auto query = DecodeCall(request, hello_);
  if (!query.ok()) return FinishNow(context, query.status());
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const absl::Status accepted = loop_->Ask([query = *std::move(query), reactor, response,
                                            work](RegistryTurn& turn) -> Answer {
    return [result = work(query, turn), reactor, response](const absl::Status& durable) mutable {
      const absl::Status status = durable.ok() ? result.status() : durable;
      if (status.ok()) *response = *std::move(result);
      reactor->Finish(ToGrpcStatus(status));
    };
  });
  if (!accepted.ok()) reactor->Finish(ToGrpcStatus(accepted));
  return reactor;
}

grpc::ServerBidiReactor<pb::WorkerToServer, pb::ServerToWorker>* ReferenceService::Session(
    grpc::CallbackServerContext* context) {
  return SessionStream::Start(context, loop_, metrics_, limits_);
}

grpc::ServerUnaryReactor* ReferenceService::List(grpc::CallbackServerContext* context,
                                                 const pb::ListRequest* request,
                                                 pb::Catalog* response) {
  return AskLoop(context, *request, response,
                 [](const ListQuery& query, RegistryTurn& turn) -> absl::StatusOr<pb::Catalog> {
                   Catalog catalog = turn.registry.List(query.run, query.model, turn.now);
                   if (query.omit_attributes) OmitAttributes(catalog);
                   pb::Catalog out = ToProto(catalog);
                   if (out.ByteSizeLong() <= kMaxMessageBytesOnWire) return out;
                   return absl::ResourceExhaustedError(
                       absl::StrCat("the list has more than ", kMaxMessageBytesOnWire,
                                    " bytes; name a run and a model, or leave the attributes out"));
                 });
}

grpc::ServerUnaryReactor* ReferenceService::Resolve(grpc::CallbackServerContext* context,
                                                    const pb::ResolveRequest* request,
                                                    pb::ResolveResponse* response) {
  return AskLoop(
      context, *request, response,
      [](const ResolveQuery& query, RegistryTurn& turn) -> absl::StatusOr<pb::ResolveResponse> {
        const absl::StatusOr<VersionInfo> version =
            turn.registry.Resolve(query.key, query.selector);
        if (!version.ok()) return version.status();
        return ToResponse(*version);
      });
}

grpc::ServerUnaryReactor* ReferenceService::WaitVersion(grpc::CallbackServerContext* context,
                                                        const pb::WaitVersionRequest* request,
                                                        pb::ResolveResponse* response) {
  absl::StatusOr<WaitQuery> query = DecodeCall(*request, hello_);
  if (!query.ok()) return FinishNow(context, query.status());
  metrics_->calls.fetch_add(1, std::memory_order_relaxed);
  return WaitReactor::Start(loop_,
                            {.key = query->key,
                             .selector = query->selector,
                             .after = query->after,
                             .timeout = std::min(query->timeout, kMaxWaitForVersion)},
                            response);
}

grpc::ServerUnaryReactor* ReferenceService::Command(grpc::CallbackServerContext* context,
                                                    const pb::CommandRequest* request,
                                                    pb::CommandFinished* response) {
  return AskLoop(context, *request, response,
                 [](const ControllerCommand& command,
                    RegistryTurn& turn) -> absl::StatusOr<pb::CommandFinished> {
                   return ToProto(turn.run_command(command.key, command.command));
                 });
}

grpc::ServerUnaryReactor* ReferenceService::FindShard(grpc::CallbackServerContext* context,
                                                      const pb::FindShardRequest* request,
                                                      pb::FindShardResponse* response) {
  return AskLoop(
      context, *request, response,
      [](const FindShardQuery& query, RegistryTurn& turn) -> absl::StatusOr<pb::FindShardResponse> {
        const absl::StatusOr<FoundShard> found = turn.registry.FindShard(query.shard);
        if (!found.ok()) return found.status();
        return ToProto(*found);
      });
}

grpc::ServerUnaryReactor* ReferenceService::GetLayout(grpc::CallbackServerContext* context,
                                                      const pb::GetLayoutRequest* request,
                                                      pb::GetLayoutResponse* response) {
  return AskLoop(
      context, *request, response,
      [](const LayoutQuery& query, RegistryTurn& turn) -> absl::StatusOr<pb::GetLayoutResponse> {
        const auto layout = turn.registry.EncodedLayout(query.digest);
        if (!layout.ok()) return layout.status();
        pb::GetLayoutResponse out;
        out.set_layout(**layout);
        return out;
      });
}

grpc::ServerUnaryReactor* ReferenceService::Events(grpc::CallbackServerContext* context,
                                                   const pb::EventsRequest* request,
                                                   pb::EventsResponse* response) {
  return AskLoop(
      context, *request, response,
      [epoch = loop_->epoch()](const EventsQuery& query,
                               RegistryTurn& turn) -> absl::StatusOr<pb::EventsResponse> {
        RecentEvents events =
            turn.events.Find({.run = query.run,
                              .model = query.model,
                              .id = query.id,
                              .after = query.after,
                              .limit = query.limit == 0 ? kMaxEventsOfAnswer : query.limit},
                             turn.now);
        events.epoch = epoch;
        return ToProto(events);
      });
}

}  // namespace th
