#include "th/server/controller_service.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "grpcpp/impl/codegen/proto_utils.h"
#include "th/proto/tensorhub.grpc.pb.h"
#include "th/server/form_claims.h"
#include "th/status/status_macros.h"
#include "th/wire/grpc_status.h"
#include "th/wire/wire.h"

namespace th {
namespace {

namespace pb = ::tensorhub::v1;

// Parses the request and checks that both sides share a protocol version.
template <typename Request>
auto DecodeCall(grpc::ByteBuffer& bytes, const ProtocolHello& own)
    -> decltype(FromProto(std::declval<Request>())) {
  Request request;
  if (!grpc::SerializationTraits<Request>::Deserialize(&bytes, &request).ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the call's request is no ", request.GetTypeName()));
  }
  auto query = FromProto(request);
  if (!query.ok()) return query;
  const absl::StatusOr<uint32_t> agreed = AgreeOnVersion(own, query->hello);
  if (!agreed.ok()) return agreed.status();
  return query;
}

pb::ResolveResponse ToResponse(const VersionInfo& version) {
  pb::ResolveResponse response;
  *response.mutable_version() = ToProto(version);
  return response;
}

void SendAnswer(ControllerCall& call, const google::protobuf::MessageLite& answer) {
  call.Answer(answer);
}
void SendAnswer(ControllerCall& call, const pb::CommandFinished& answer) {
  call.AnswerCommand(answer);
}

absl::StatusOr<FormChoice> ChooseMaker(const FormQuery& query, RegistryTurn& turn) {
  TH_ASSIGN_OR_RETURN(FoundForm found, turn.registry.FindForm(query));
  const FormOfVersion form{query.key, found.version.sequence, query.form};
  if (found.offered) {
    turn.form_claims.Drop(form);
    return FormChoice{.version = std::move(found.version)};
  }
  std::string maker =
      turn.form_claims.Choose(form, query.group, query.claim, turn.now,
                              [&turn](const ModelKey& key, const std::string& group) {
                                return turn.registry.HasGroup(key, group);
                              });
  const FormMaker who = maker == query.group ? FormMaker::kAsker : FormMaker::kAnother;
  return FormChoice{std::move(found.version), who, std::move(maker)};
}

void OmitAttributes(Catalog& catalog) {
  for (CatalogModel& model : catalog.models) {
    for (CatalogVersion& version : model.versions) version.info.attributes.clear();
  }
}

}  // namespace

template <typename Request, typename Handle>
void ControllerService::Serve(absl::string_view method, Handle handle) {
  handlers_[absl::StrCat("/", pb::ReferenceServer::service_full_name(), "/", method)] =
      [this, handle](ControllerCall& call, grpc::ByteBuffer& request) {
        auto query = DecodeCall<Request>(request, hello_);
        if (!query.ok()) return call.Fail(query.status());
        handle(call, *std::move(query));
      };
}

template <typename Request, typename Work>
void ControllerService::AskLoop(absl::string_view method, Work work) {
  Serve<Request>(method, [this, work](ControllerCall& call, auto query) {
    const absl::Status accepted =
        loop_->Ask([query = std::move(query), &call, work](RegistryTurn& turn) -> Answer {
          turn.asked_by = call.caller();
          return [result = work(query, turn), &call](const absl::Status& durable) {
            if (!durable.ok()) return call.Fail(durable);
            if (!result.ok()) return call.Fail(result.status());
            SendAnswer(call, *result);
          };
        });
    if (!accepted.ok()) call.Fail(accepted);
  });
}

ControllerService::ControllerService(RegistryLoop* loop, ServerMetrics* metrics,
                                     ProtocolHello hello, CallLimits limits)
    : loop_(loop),
      hello_(std::move(hello)),
      longest_wait_(limits.longest_wait),
      open_calls_(limits, metrics) {
  AskLoop<pb::ListRequest>(
      "List", [](const ListQuery& query, RegistryTurn& turn) -> absl::StatusOr<pb::Catalog> {
        Catalog catalog = turn.registry.List(query.run, query.model, turn.now);
        if (query.omit_attributes) OmitAttributes(catalog);
        pb::Catalog out = ToProto(catalog);
        if (out.ByteSizeLong() <= kMaxMessageBytesOnWire) return out;
        return absl::ResourceExhaustedError(
            absl::StrCat("the list has more than ", kMaxMessageBytesOnWire,
                         " bytes; name a run and a model, or leave the attributes out"));
      });
  AskLoop<pb::ResolveRequest>(
      "Resolve",
      [](const ResolveQuery& query, RegistryTurn& turn) -> absl::StatusOr<pb::ResolveResponse> {
        const absl::StatusOr<VersionInfo> version =
            turn.registry.Resolve(query.key, query.selector);
        if (!version.ok()) return version.status();
        return ToResponse(*version);
      });
  ServeWaits();
  AskLoop<pb::CommandRequest>("Command",
                              [](const ControllerCommand& command,
                                 RegistryTurn& turn) -> absl::StatusOr<pb::CommandFinished> {
                                return ToProto(turn.run_command(command.key, command.command));
                              });
  AskLoop<pb::FindShardRequest>(
      "FindShard",
      [](const FindShardQuery& query, RegistryTurn& turn) -> absl::StatusOr<pb::FindShardResponse> {
        const absl::StatusOr<FoundShard> found = turn.registry.FindShard(query.shard);
        if (!found.ok()) return found.status();
        return ToProto(*found);
      });
  AskLoop<pb::ClaimFormRequest>(
      "ClaimForm",
      [](const ClaimFormQuery& query, RegistryTurn& turn) -> absl::StatusOr<pb::ClaimFormResponse> {
        TH_ASSIGN_OR_RETURN(const FormChoice choice, ChooseMaker(query.form, turn));
        return ToProto(choice);
      });
  AskLoop<pb::GetLayoutRequest>(
      "GetLayout",
      [](const LayoutQuery& query, RegistryTurn& turn) -> absl::StatusOr<pb::GetLayoutResponse> {
        const auto layout = turn.registry.EncodedLayout(query.digest);
        if (!layout.ok()) return layout.status();
        pb::GetLayoutResponse out;
        out.set_layout(**layout);
        return out;
      });
  AskLoop<pb::EventsRequest>(
      "Events",
      [loop](const EventsQuery& query, RegistryTurn& turn) -> absl::StatusOr<pb::EventsResponse> {
        RecentEvents events =
            turn.events.Find({.run = query.run,
                              .model = query.model,
                              .id = query.id,
                              .after = query.after,
                              .limit = query.limit == 0 ? kMaxEventsOfAnswer : query.limit},
                             turn.now);
        events.epoch = loop->epoch();
        return ToProto(events);
      });
}

void ControllerService::ServeWaits() {
  Serve<pb::WaitVersionRequest>("WaitVersion", [this](ControllerCall& call, WaitQuery query) {
    const absl::StatusOr<VersionWaitId> wait =
        loop_->Wait({.key = std::move(query.key),
                     .selector = std::move(query.selector),
                     .after = query.after,
                     .timeout = std::min(query.timeout, longest_wait_),
                     .done = [&call](absl::StatusOr<VersionInfo> version) {
                       if (!version.ok()) return call.Fail(version.status());
                       call.Answer(ToResponse(*version));
                     }});
    if (!wait.ok()) return call.Fail(wait.status());
    // CancelWait makes the loop answer at once, and does nothing for a wait that has ended. The
    // call outlives this handler even if it has been answered by now.
    call.SetCancelCallback([loop = loop_, id = *wait] { loop->CancelWait(id); });
  });
}

grpc::ServerGenericBidiReactor* ControllerService::CreateReactor(
    grpc::GenericCallbackServerContext* context) {
  const auto handler = handlers_.find(context->method());
  if (handler == handlers_.end()) return CallbackGenericService::CreateReactor(context);
  return new ControllerCall(&open_calls_, &handler->second, context->peer());
}

}  // namespace th
