/* messages.c -- the relay's workload, carried by shmgpu's public C interface.
 *
 * Same arguments, same counting, same line of JSON as relay.c (see stage.h); the only
 * difference is who carries the messages. --handover is accepted and has no effect: how many
 * frames a helper is handed ahead is the dispatcher's own decision.
 *
 * The function called does nothing, unless it is given a service time, and its parameter
 * block is one cache line. So what is measured is the way there and back and everything the
 * broker does on it: stamping, validation, policy, statistics, trace.
 */
#include "shmgpu.h"
#include "stage.h"

enum { PARAMS_BYTES = 64, ARENA_BYTES = 1 << 20 };

static stage_options_t options;
static stage_t *stage;

/* The function: nothing, or a service of a given time. */
static void serve(void *params)
{
  (void)params;
  stage_serve(stage, &options);
}

static int failed(const char *what, int status)
{
  fprintf(stderr, "messages: %s: %s\n", what, shm_status_text(status));
  return 1;
}

/* A window of several: send again, in one go, as many as were answered, as the relay's child does. */
static int run_window(int child, void *const params[])
{
  shm_msg_t messages[STAGE_MAX_WINDOW];
  int statuses[STAGE_MAX_WINDOW];
  uint64_t total = 0;
  int out = 0, answered = options.window;
  for (int i = 0; i < options.window; i++)
    messages[i] = (shm_msg_t){serve, params[i]};
  for (;;) {
    int sent = shm_send_msgs(messages, answered);
    if (sent < 0)
      return failed("shm_send_msgs", sent);
    out += sent;
    answered = shm_read_msgs(messages, statuses, options.window);
    if (answered < 0)
      return failed("shm_read_msgs", answered);
    out -= answered;
    for (int i = 0; i < answered; i++) {
      if (statuses[i] < 0)
        return failed("a message", statuses[i]);
    }
    stage_count(stage, child, total += (uint64_t)answered);
    if (stage_stopped(stage))
      break;
  }
  while (out > 0) {
    answered = shm_read_msgs(messages, statuses, options.window);
    if (answered < 0)
      return failed("shm_read_msgs", answered);
    out -= answered;
  }
  return 0;
}

/* One child: keep `window` messages out until the clock says stop, then read what is left. */
static int run_child(void *arg)
{
  (void)arg;
  int child = shm_get_child_id();
  int status = shm_set_window(options.window);
  if (status < 0)
    return failed("shm_set_window", status);

  shm_msg_t message = {serve, NULL};
  void *params[STAGE_MAX_WINDOW];
  for (int i = 0; i < options.window; i++) {
    params[i] = shm_malloc(PARAMS_BYTES);
    if (params[i] == NULL)
      return failed("shm_malloc", shm_last_status());
    memset(params[i], 0, PARAMS_BYTES);
  }
  if (!stage_enter(stage, &options, child))
    return 0;

  if (options.window > 1)
    return run_window(child, params);

  int timed = stage_timed(&options);
  uint64_t total = 0;
  int out = !timed;
  message.params = params[0];
  if (!timed && (status = shm_send_msg(&message)) < 0)
    return failed("shm_send_msg", status);
  while (!stage_stopped(stage)) {
    uint64_t began_ns = 0;
    if (timed) {
      began_ns = stage_now_ns();
      if ((status = shm_send_msg(&message)) < 0)
        return failed("shm_send_msg", status);
    }
    if ((status = shm_read_msg(&message)) < 0)
      return failed("shm_read_msg", status);
    stage_count(stage, child, ++total);
    if (timed)
      stage_sample(stage, stage_now_ns() - began_ns);
    else if ((status = shm_send_msg(&message)) < 0) /* the block that just came back */
      return failed("shm_send_msg", status);
  }
  while (out-- > 0) {
    if ((status = shm_read_msg(NULL)) < 0)
      return failed("shm_read_msg", status);
  }
  return 0;
}

int main(int argc, char **argv)
{
  options = stage_options(argc, argv);
  stage = stage_open();
  int status = shm_register(serve, "serve", PARAMS_BYTES);
  if (status < 0)
    return failed("shm_register", status);

  pid_t clock = stage_start_clock(stage, &options);
  static shm_main_bundle_t bundles[STAGE_MAX_CHILDREN];
  for (int i = 0; i < options.children; i++)
    bundles[i] = (shm_main_bundle_t){run_child, NULL};
  status = shm_launch(options.children, bundles, ARENA_BYTES, options.helpers);
  if (status < 0) {
    kill(clock, SIGKILL);
    waitpid(clock, NULL, 0);
    return failed("shm_launch", status);
  }
  return stage_report(stage, &options, "messages", clock);
}
