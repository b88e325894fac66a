// SIGINT and SIGTERM kept back while there is something to clean up.
//
//   const HeldSignals held;                  // first, before any thread and any file exists
//   auto folder = ScratchFolder::Make(...);  // goes before `held`
//   ... ProcessPoller takes what comes while it lives ...
//
// What comes before or after the stage waits: a stage that opens later takes it at once, and after
// the last one it is for the owner to ask for.
#ifndef TH_PROCESSES_HELD_SIGNALS_H_
#define TH_PROCESSES_HELD_SIGNALS_H_

#include <csignal>

namespace th {

// One a process, of its main thread.
class HeldSignals {
 public:
  HeldSignals();
  // Forgets what came and was not taken, and lets later ones through.
  ~HeldSignals();
  HeldSignals(const HeldSignals&) = delete;
  HeldSignals& operator=(const HeldSignals&) = delete;

  // True when one has come that nobody has taken.
  bool Pending() const;

 private:
  sigset_t held_;
  sigset_t before_;
};

}  // namespace th

#endif  // TH_PROCESSES_HELD_SIGNALS_H_
