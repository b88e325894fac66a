// The C ABI over Controller.
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "th/c_interface/c_call.h"
#include "th/c_interface/c_handles.h"
#include "th/c_interface/c_options.h"
#include "th/c_interface/json_text.h"
#include "th/c_interface/tensorhub.h"
#include "th/client/client.h"
#include "th/status/status_macros.h"

namespace {

using th::c::Answer;
using th::c::Call;
using th::c::Needed;
using th::c::OrEmpty;
using th::c::ReadSeconds;
using th::c::ReadVersion;
using th::c::RunNow;
using th::c::Start;
using CallOr = absl::StatusOr<Call>;

// The time-out of questions, and of a connection.
constexpr absl::Duration kDefaultTimeout = absl::Seconds(10);

Answer Json(std::string json) {
  Answer answer;
  answer.json = std::move(json);
  return answer;
}

absl::StatusOr<Answer> Version(const absl::StatusOr<th::VersionInfo>& version) {
  TH_RETURN_IF_ERROR(version.status());
  return Json(th::VersionToJson(*version));
}

absl::StatusOr<Answer> Only(const absl::Status& status) {
  TH_RETURN_IF_ERROR(status);
  return Answer();
}

absl::StatusOr<th::Controller::Options> ReadController(const char* server, const char* run,
                                                       const char* model, double timeout) {
  TH_RETURN_IF_ERROR(Needed(server, "server"));
  th::Controller::Options options{server, OrEmpty(run), OrEmpty(model), kDefaultTimeout};
  TH_RETURN_IF_ERROR(ReadSeconds(timeout, "timeout", options.connect_timeout));
  return options;
}

CallOr Connect(const char* server, const char* run, const char* model, double timeout) {
  TH_ASSIGN_OR_RETURN(th::Controller::Options options, ReadController(server, run, model, timeout));
  return Call{[=]() -> absl::StatusOr<Answer> {
    TH_ASSIGN_OR_RETURN(std::unique_ptr<th::Controller> connected,
                        th::Controller::Connect(options));
    Answer answer;
    answer.controller = std::make_unique<th_controller>();
    answer.controller->controller = std::move(connected);
    return answer;
  }};
}

CallOr ListOnce(const char* server, const char* run, const char* model, double timeout) {
  TH_ASSIGN_OR_RETURN(th::Controller::Options options, ReadController(server, run, model, timeout));
  return Call{[=]() -> absl::StatusOr<Answer> {
    TH_ASSIGN_OR_RETURN(std::unique_ptr<th::Controller> connected,
                        th::Controller::Connect(options));
    TH_ASSIGN_OR_RETURN(const th::Catalog listed, connected->List(options.connect_timeout));
    return Json(th::CatalogToJson(listed));
  }};
}

// A call of `controller` that has `timeout`, or `otherwise` where that is 0.
using WithTime = std::function<absl::StatusOr<Answer>(th::Controller&, absl::Duration)>;
CallOr Ask(th_controller* controller, double timeout, absl::Duration otherwise, WithTime ask) {
  TH_RETURN_IF_ERROR(Needed(controller, "controller"));
  TH_RETURN_IF_ERROR(ReadSeconds(timeout, "timeout", otherwise));
  return Call{[controller, otherwise, ask = std::move(ask)] {
                return ask(*controller->controller, otherwise);
              },
              &controller->running};
}

CallOr List(th_controller* controller, double timeout) {
  return Ask(controller, timeout, kDefaultTimeout,
             [](th::Controller& asked, absl::Duration time) -> absl::StatusOr<Answer> {
               TH_ASSIGN_OR_RETURN(const th::Catalog listed, asked.List(time));
               return Json(th::CatalogToJson(listed));
             });
}

CallOr Events(th_controller* controller, uint64_t after, const char* id, double timeout) {
  th::EventId event;
  if (id != nullptr) {
    TH_ASSIGN_OR_RETURN(event, th::ParseEventId(id));
  }
  return Ask(controller, timeout, kDefaultTimeout,
             [=](th::Controller& asked, absl::Duration time) -> absl::StatusOr<Answer> {
               TH_ASSIGN_OR_RETURN(const th::RecentEvents events, asked.Events(after, event, time));
               return Json(th::EventsToJson(events));
             });
}

CallOr Resolve(th_controller* controller, const char* version, double timeout) {
  TH_ASSIGN_OR_RETURN(th::VersionSelector selector, ReadVersion(version, "version"));
  return Ask(controller, timeout, kDefaultTimeout, [=](th::Controller& asked, absl::Duration time) {
    return Version(asked.Resolve(selector, time));
  });
}

CallOr FindShard(th_controller* controller, const char* version, const char* form,
                 const char* group, uint32_t rank, double timeout) {
  TH_ASSIGN_OR_RETURN(th::VersionSelector selector, ReadVersion(version, "version"));
  th::ShardQuery query{
      .selector = std::move(selector), .group = OrEmpty(group), .rank = th::Rank(rank)};
  if (form != nullptr) query.form = form;
  return Ask(controller, timeout, kDefaultTimeout,
             [=](th::Controller& asked, absl::Duration time) -> absl::StatusOr<Answer> {
               TH_ASSIGN_OR_RETURN(const th::FoundShard shard, asked.FindShard(query, time));
               return Json(th::FoundShardToJson(shard));
             });
}

CallOr GetLayout(th_controller* controller, const char* layout, double timeout) {
  TH_RETURN_IF_ERROR(Needed(layout, "layout"));
  TH_ASSIGN_OR_RETURN(const th::Digest digest, th::Digest::FromHex(layout));
  return Ask(controller, timeout, kDefaultTimeout,
             [=](th::Controller& asked, absl::Duration time) -> absl::StatusOr<Answer> {
               TH_ASSIGN_OR_RETURN(const th::ShardLayout found, asked.GetLayout(digest, time));
               return Json(th::LayoutToJson(found));
             });
}

CallOr WaitFor(th_controller* controller, const char* version, double timeout) {
  TH_ASSIGN_OR_RETURN(th::VersionSelector selector, ReadVersion(version, "version"));
  return Ask(controller, timeout, absl::ZeroDuration(),
             [=](th::Controller& asked, absl::Duration time) {
               return Version(asked.WaitFor(selector, time));
             });
}

CallOr WaitApplied(th_controller* controller, const char* version, const char* const* groups,
                   size_t count, double timeout) {
  TH_ASSIGN_OR_RETURN(th::VersionSelector selector, ReadVersion(version, "version"));
  TH_ASSIGN_OR_RETURN(std::vector<std::string> names, th::c::ReadNames(groups, count, "groups"));
  return Ask(controller, timeout, absl::ZeroDuration(),
             [=](th::Controller& asked, absl::Duration time) -> absl::StatusOr<Answer> {
               TH_ASSIGN_OR_RETURN(const th::AppliedResult applied,
                                   asked.WaitApplied(selector, names, time));
               Answer answer = Json(th::AppliedResultToJson(applied));
               answer.yes = applied.all();
               return answer;
             });
}

// A command, which takes no time of the caller's.
using Commanded = std::function<absl::StatusOr<Answer>(th::Controller&)>;
CallOr Order(th_controller* controller, Commanded command) {
  return Ask(controller, 0, absl::ZeroDuration(),
             [command = std::move(command)](th::Controller& asked, absl::Duration) {
               return command(asked);
             });
}

CallOr RollBack(th_controller* controller, const char* to, const char* idempotency_key) {
  TH_ASSIGN_OR_RETURN(th::VersionSelector selector, ReadVersion(to, "to"));
  return Order(controller, [=, key = OrEmpty(idempotency_key)](th::Controller& asked) {
    return Version(asked.RollBack(selector, key));
  });
}

CallOr Retain(th_controller* controller, uint32_t keep_latest, const char* form) {
  return Order(controller, [keep_latest, form = OrEmpty(form)](th::Controller& asked) {
    return Only(asked.Retain(keep_latest, form));
  });
}

CallOr Pin(th_controller* controller, const char* version, const char* owner, double expires_after,
           const char* form) {
  TH_ASSIGN_OR_RETURN(th::VersionSelector selector, ReadVersion(version, "version"));
  TH_RETURN_IF_ERROR(Needed(owner, "owner"));
  absl::Duration expiry = absl::InfiniteDuration();
  TH_RETURN_IF_ERROR(ReadSeconds(expires_after, "expires_after", expiry));
  return Order(controller,
               [=, owner = std::string(owner), form = OrEmpty(form)](th::Controller& asked) {
                 return Version(asked.Pin(selector, owner, expiry, form));
               });
}

CallOr Release(th_controller* controller, const char* version, const char* owner,
               const char* form) {
  TH_ASSIGN_OR_RETURN(th::VersionSelector selector, ReadVersion(version, "version"));
  TH_RETURN_IF_ERROR(Needed(owner, "owner"));
  return Order(controller,
               [=, owner = std::string(owner), form = OrEmpty(form)](th::Controller& asked) {
                 return Only(asked.Release(selector, owner, form));
               });
}

CallOr Forget(th_controller* controller) {
  return Order(controller, [](th::Controller& asked) { return Only(asked.Forget()); });
}

}  // namespace

th_status th_controller_connect(const char* server, const char* run, const char* model,
                                double timeout, th_controller** controller) {
  return RunNow(
      [&]() -> CallOr {
        TH_RETURN_IF_ERROR(Needed(controller, "controller"));
        return Connect(server, run, model, timeout);
      },
      {.controller = controller});
}

th_status th_controller_connect_start(const char* server, const char* run, const char* model,
                                      double timeout, th_operation** operation) {
  return Start([&] { return Connect(server, run, model, timeout); }, operation);
}

void th_controller_free(th_controller* controller) { delete controller; }

th_status th_list(const char* server, const char* run, const char* model, double timeout,
                  char** catalog) {
  return RunNow(
      [&]() -> CallOr {
        TH_RETURN_IF_ERROR(Needed(catalog, "catalog"));
        return ListOnce(server, run, model, timeout);
      },
      {.json = catalog});
}

th_status th_list_start(const char* server, const char* run, const char* model, double timeout,
                        th_operation** operation) {
  return Start([&] { return ListOnce(server, run, model, timeout); }, operation);
}

th_status th_controller_list(th_controller* controller, double timeout, char** catalog) {
  return RunNow([&] { return List(controller, timeout); }, {.json = catalog});
}

th_status th_controller_list_start(th_controller* controller, double timeout,
                                   th_operation** operation) {
  return Start([&] { return List(controller, timeout); }, operation);
}

th_status th_events(th_controller* controller, uint64_t after, const char* id, double timeout,
                    char** events) {
  return RunNow([&] { return Events(controller, after, id, timeout); }, {.json = events});
}

th_status th_events_start(th_controller* controller, uint64_t after, const char* id, double timeout,
                          th_operation** operation) {
  return Start([&] { return Events(controller, after, id, timeout); }, operation);
}

th_status th_resolve(th_controller* controller, const char* version, double timeout, char** found) {
  return RunNow([&] { return Resolve(controller, version, timeout); }, {.json = found});
}

th_status th_resolve_start(th_controller* controller, const char* version, double timeout,
                           th_operation** operation) {
  return Start([&] { return Resolve(controller, version, timeout); }, operation);
}

th_status th_find_shard(th_controller* controller, const char* version, const char* form,
                        const char* group, uint32_t rank, double timeout, char** shard) {
  return RunNow([&] { return FindShard(controller, version, form, group, rank, timeout); },
                {.json = shard});
}

th_status th_find_shard_start(th_controller* controller, const char* version, const char* form,
                              const char* group, uint32_t rank, double timeout,
                              th_operation** operation) {
  return Start([&] { return FindShard(controller, version, form, group, rank, timeout); },
               operation);
}

th_status th_get_layout(th_controller* controller, const char* layout, double timeout,
                        char** tensors) {
  return RunNow([&] { return GetLayout(controller, layout, timeout); }, {.json = tensors});
}

th_status th_get_layout_start(th_controller* controller, const char* layout, double timeout,
                              th_operation** operation) {
  return Start([&] { return GetLayout(controller, layout, timeout); }, operation);
}

th_status th_controller_wait_for(th_controller* controller, const char* version, double timeout,
                                 char** found) {
  return RunNow([&] { return WaitFor(controller, version, timeout); }, {.json = found});
}

th_status th_controller_wait_for_start(th_controller* controller, const char* version,
                                       double timeout, th_operation** operation) {
  return Start([&] { return WaitFor(controller, version, timeout); }, operation);
}

th_status th_wait_applied(th_controller* controller, const char* version, const char* const* groups,
                          size_t groups_count, double timeout, int32_t* all, char** result) {
  return RunNow([&] { return WaitApplied(controller, version, groups, groups_count, timeout); },
                {.json = result, .yes = all});
}

th_status th_wait_applied_start(th_controller* controller, const char* version,
                                const char* const* groups, size_t groups_count, double timeout,
                                th_operation** operation) {
  return Start([&] { return WaitApplied(controller, version, groups, groups_count, timeout); },
               operation);
}

th_status th_controller_roll_back(th_controller* controller, const char* to,
                                  const char* idempotency_key, char** version) {
  return RunNow([&] { return RollBack(controller, to, idempotency_key); }, {.json = version});
}

th_status th_controller_roll_back_start(th_controller* controller, const char* to,
                                        const char* idempotency_key, th_operation** operation) {
  return Start([&] { return RollBack(controller, to, idempotency_key); }, operation);
}

th_status th_retain(th_controller* controller, uint32_t keep_latest, const char* form) {
  return RunNow([&] { return Retain(controller, keep_latest, form); }, {});
}

th_status th_retain_start(th_controller* controller, uint32_t keep_latest, const char* form,
                          th_operation** operation) {
  return Start([&] { return Retain(controller, keep_latest, form); }, operation);
}

th_status th_pin(th_controller* controller, const char* version, const char* owner,
                 double expires_after, const char* form, char** pinned) {
  return RunNow([&] { return Pin(controller, version, owner, expires_after, form); },
                {.json = pinned});
}

th_status th_pin_start(th_controller* controller, const char* version, const char* owner,
                       double expires_after, const char* form, th_operation** operation) {
  return Start([&] { return Pin(controller, version, owner, expires_after, form); }, operation);
}

th_status th_release(th_controller* controller, const char* version, const char* owner,
                     const char* form) {
  return RunNow([&] { return Release(controller, version, owner, form); }, {});
}

th_status th_release_start(th_controller* controller, const char* version, const char* owner,
                           const char* form, th_operation** operation) {
  return Start([&] { return Release(controller, version, owner, form); }, operation);
}

th_status th_forget(th_controller* controller) {
  return RunNow([&] { return Forget(controller); }, {});
}

th_status th_forget_start(th_controller* controller, th_operation** operation) {
  return Start([&] { return Forget(controller); }, operation);
}
