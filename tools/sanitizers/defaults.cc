// Options and suppressions of gcc's sanitizers, compiled in so that a test runs under one with no
// environment.
//
// gRPC comes as a library that is not instrumented: ThreadSanitizer does not see its locks, and
// reports what they protect. Only frames of such libraries may be suppressed here, never our own.

// The names are the sanitizers' own. NOLINTBEGIN(bugprone-reserved-identifier)
extern "C" {

const char* __tsan_default_suppressions() {
  return "race:grpc_core\n"
         "race:grpc_event_engine\n"
         "race:grpc::\n"
         "race:grpc_\n"
         "race:gpr_\n"
         "called_from_lib:libgrpc\n"
         // The C library frees the thread-local variables of libraries that were opened at run time
         // (the fake CUDA driver's) after their thread has ended, without telling the sanitizer.
         "race:_dl_deallocate_tls\n"
         // Abseil 20220623 hands a thread's identity to the next one without telling the sanitizer.
         "race:synchronization_internal::Waiter::Post\n";
}

const char* __tsan_default_options() { return "halt_on_error=0:second_deadlock_stack=1"; }

const char* __asan_default_options() {
  return "detect_stack_use_after_return=1:check_initialization_order=1:strict_string_checks=1";
}

// c-ares 1.18, of which gRPC asks the address of a host by name, forgets a copy of the name.
const char* __lsan_default_suppressions() { return "leak:ares_strdup\n"; }

const char* __lsan_default_options() { return "print_suppressions=0"; }

const char* __ubsan_default_options() { return "print_stacktrace=1"; }

}  // extern "C"
// NOLINTEND(bugprone-reserved-identifier)
