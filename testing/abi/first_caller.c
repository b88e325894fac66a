/* A program that was compiled with the first header of the ABI: it publishes, updates, and asks
 * what there is, with a library that has grown since. Its structs end where they ended then, before
 * memory that is not zero. Arguments: the server's address. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "testing/abi/tensorhub_first.h"

#define BYTES 300000

static void check(th_status status, const char* what) {
  if (status == TH_OK) return;
  fprintf(stderr, "%s: %s: %s\n", what, th_status_name(status), th_last_error());
  exit(1);
}

static void expect(int holds, const char* what) {
  if (holds) return;
  fprintf(stderr, "does not hold: %s\n", what);
  exit(1);
}

/* Memory for a struct of `size`, with what is none of the library's behind it. */
static void* padded(size_t size) {
  char* memory = malloc(size + 4096);
  expect(memory != NULL, "memory");
  memset(memory, 0, size);
  memset(memory + size, 0xff, 4096);
  *(size_t*)memory = size;
  return memory;
}

static th_client* join(const char* server, const char* group) {
  th_join_options* options = padded(sizeof(th_join_options));
  th_client* client = NULL;
  options->server = server;
  options->run = "abi";
  options->model = "first";
  options->group = group;
  check(th_join(options, &client), "th_join");
  free(options);
  return client;
}

static th_buffer* registered(th_client* client, void* data) {
  const int64_t shape[] = {BYTES};
  th_register_options* options = padded(sizeof(th_register_options));
  th_tensor* tensor = padded(sizeof(th_tensor));
  th_buffer* buffer = NULL;
  tensor->name = "w";
  tensor->dtype = "U8";
  tensor->shape = shape;
  tensor->dimensions = 1;
  tensor->data = data;
  check(th_register(client, tensor, 1, options, &buffer), "th_register");
  expect(th_buffer_bytes(buffer) == BYTES, "the buffer has the tensor's size");
  free(tensor);
  free(options);
  return buffer;
}

static void publish(th_buffer* buffer) {
  th_publish_options* options = padded(sizeof(th_publish_options));
  char* version = NULL;
  options->attributes = "{\"step\": \"1\"}";
  check(th_publish(buffer, "step-1", options), "th_publish");
  check(th_await_published(buffer, &version), "th_await_published");
  expect(strstr(version, "\"step-1\"") != NULL, "the version has its label");
  th_string_free(version);
  free(options);
}

static void update(th_buffer* buffer) {
  th_update_options* options = padded(sizeof(th_update_options));
  th_outcome outcome = TH_NONE;
  char* result = NULL;
  options->timeout = 60;
  check(th_update(buffer, "latest", options, &outcome, &result), "th_update");
  expect(outcome == TH_MOVED, "the update has moved the buffer");
  expect(strstr(result, "\"bytes_received\"") != NULL, "the result has what was received");
  th_string_free(result);
  free(options);
}

static void unpublish(th_buffer* buffer) {
  th_unpublish_options* options = padded(sizeof(th_unpublish_options));
  check(th_unpublish(buffer, options), "th_unpublish");
  free(options);
}

int main(int argc, char** argv) {
  char* source = malloc(BYTES);
  char* target = malloc(BYTES);
  char* catalog = NULL;
  expect(argc == 2 && source != NULL && target != NULL, "one argument, and memory");
  expect(th_abi_version() == TH_ABI_VERSION, "the library's ABI is that of the first header");
  memset(source, 7, BYTES);
  memset(target, 0, BYTES);
  th_client* trainer = join(argv[1], "trainer");
  th_client* rollout = join(argv[1], "rollout");
  th_buffer* published = registered(trainer, source);
  th_buffer* weights = registered(rollout, target);
  publish(published);
  update(weights);
  expect(memcmp(source, target, BYTES) == 0, "the weights have come");
  expect(th_buffer_undefined(weights) == 0, "the buffer is defined");
  check(th_list(argv[1], "abi", "first", 10, &catalog), "th_list");
  expect(strstr(catalog, "\"rollout\"") != NULL, "the catalog has the rollout");
  th_string_free(catalog);
  unpublish(published);
  th_buffer_free(weights);
  th_buffer_free(published);
  check(th_leave(rollout, 2), "th_leave");
  expect(th_membership(rollout) == TH_CANCELLED, "who has left is told so");
  th_client_free(rollout);
  th_client_free(trainer);
  free(target);
  free(source);
  puts("works");
  return 0;
}
