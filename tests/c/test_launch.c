/* A whole broker of real processes: what a C program gets from shm_launch and shm_run. */
#include "broker.h"

#include <sys/resource.h>

#include "base/error_detail.h"
#include "ipc/frame.h"

/* ---- service ---- */

static int calls_many(int child) {
  for (uint64_t i = 0; i < 50; i++) {
    echo_t *echo = echo_new((uint64_t)child * 1000 + i);
    CHECK_EQ(call(fn_add_one, echo), SHM_OK);
    CHECK_EQ(echo->out, (uint64_t)child * 1000 + i + 1);
    CHECK_EQ(echo->runs, 1);
    CHECK(echo->helper >= 0 && echo->helper < 2);
    CHECK_EQ(shm_free(echo), SHM_OK);
  }
  atomic_fetch_add(&notes[child], 1);
  return 0;
}

TEST(results_land_in_the_callers_own_arena) {
  broker_open(4, 2);
  launch_well(calls_many);
  for (int child = 0; child < 4; child++) CHECK_EQ(notes[child], 1);
}

static int own_bundle(void *arg) {
  uint64_t number = *(uint64_t *)arg;
  CHECK_EQ(shm_get_child_id(), (int)number - 100);
  CHECK_EQ(shm_get_helper_id(), SHM_ENOT_HELPER);
  CHECK_EQ(shm_get_role(), SHM_ROLE_CHILD);
  notes[number - 100] = number;
  return 0;
}
static int other_bundle(void *arg) {
  CHECK_EQ(shm_get_child_id(), 2);
  notes[2] = *(uint64_t *)arg + 5;
  return 0;
}

TEST(child_i_runs_bundle_i) {
  broker_open(0, 0);
  uint64_t numbers[3] = {100, 101, 102};
  shm_main_bundle_t bundles[3] = {
      {own_bundle, &numbers[0]}, {own_bundle, &numbers[1]}, {other_bundle, &numbers[2]}};
  CHECK_EQ(shm_launch(3, bundles, 4096, 1), SHM_OK);
  expect_nothing_left();
  CHECK_EQ(notes[0], 100);
  CHECK_EQ(notes[1], 101);
  CHECK_EQ(notes[2], 107);
}

/* A helper waits inside a call until the other one is inside a call too. */
static int meets(int child) {
  echo_t *echo = echo_new(5);
  echo->note = 10;
  if (child == 0) {
    AWAIT(notes[10] == 2);
    notes[11] = 1;
    return 0;
  }
  CHECK_EQ(call(fn_gate, echo), SHM_OK);
  notes[child] = (uint64_t)echo->helper + 1;
  return 0;
}

TEST(several_helpers_serve_at_once) {
  broker_open(3, 2);
  launch_well(meets);
  CHECK(notes[1] != notes[2]);
}

static int counts_nothing(int child) {
  (void)child;
  expect_service();
  return 0;
}

TEST(many_launches_one_after_another_leave_nothing) {
  broker_open(2, 2);
  for (int i = 0; i < 15; i++) launch_well(counts_nothing);
}

TEST(sixty_four_helpers_and_many_children_work) {
  broker_open(HARNESS_SANITIZED ? 8 : 48, HARNESS_SANITIZED ? 8 : 64);
  launch_well(counts_nothing);
}

/* ---- windows, shm_send_msg and shm_read_msg ---- */

static int fills_window(int child) {
  (void)child;
  echo_t *echo[8];
  shm_msg_t msg, got;
  for (int i = 0; i < 8; i++) echo[i] = echo_new((uint64_t)i);
  CHECK_EQ(shm_read_msg(&got), SHM_EAGAIN); /* nothing is out */
  echo[0]->note = 20;
  msg = (shm_msg_t){fn_gate, echo[0]};
  CHECK_EQ(shm_send_msg(&msg), SHM_OK);
  msg.params = echo[1];
  CHECK_EQ(shm_send_msg(&msg), SHM_EWINDOW);
  notes[21] = 1;
  CHECK_EQ(shm_read_msg(&got), SHM_OK);
  CHECK(got.params == echo[0] && got.func_ptr == fn_gate);
  CHECK_EQ(echo[0]->out, 1);
  CHECK_EQ(shm_read_msg(&got), SHM_EAGAIN);

  CHECK_EQ(shm_set_window(0), SHM_EBAD_SIZE);
  CHECK_EQ(shm_set_window(-1), SHM_EBAD_SIZE);
  CHECK_EQ(shm_set_window(shm_port_window() + 1), SHM_EBAD_SIZE);
  CHECK_EQ(shm_set_window(4), SHM_OK);
  shm_msg_t msgs[8];
  int statuses[8], taken = 0;
  for (int i = 0; i < 8; i++) msgs[i] = (shm_msg_t){fn_add_one, echo[i]};
  CHECK_EQ(shm_send_msgs(msgs, 8), 4);
  CHECK_EQ(shm_send_msgs(msgs + 4, 4), SHM_EWINDOW);
  CHECK_EQ(shm_send_msg(&msgs[4]), SHM_EWINDOW);
  while (taken < 4) {
    int n = shm_read_msgs(msgs, statuses, 8);
    CHECK(n > 0);
    for (int i = 0; i < n; i++) CHECK_EQ(statuses[i], SHM_OK);
    taken += n;
  }
  for (int i = 0; i < 4; i++) CHECK_EQ(echo[i]->out, (uint64_t)i + 1);
  for (int i = 4; i < 8; i++) CHECK_EQ(echo[i]->out, 0);
  CHECK_EQ(shm_read_msg(NULL), SHM_EAGAIN);
  CHECK_EQ(shm_send_msgs(msgs, 0), 0);
  return 0;
}

TEST(the_window_bounds_what_is_out) {
  broker_open(1, 1);
  launch_well(fills_window);
}

static int reads_in_order(int child) {
  (void)child;
  enum { COUNT = 200 };
  static echo_t *echo[COUNT];
  shm_msg_t msgs[COUNT], got[COUNT];
  int statuses[COUNT];
  CHECK_EQ(shm_set_window(COUNT), SHM_OK);
  for (int i = 0; i < COUNT; i++) {
    echo[i] = echo_new((uint64_t)i);
    msgs[i] = (shm_msg_t){fn_add_one, echo[i]};
  }
  CHECK_EQ(shm_send_msgs(msgs, COUNT), COUNT);
  int taken = 0;
  while (taken < COUNT) {
    int n = shm_read_msgs(got + taken, statuses, 7);
    CHECK(n > 0 && n <= 7);
    taken += n;
  }
  for (int i = 0; i < COUNT; i++) { /* one helper: a FIFO from end to end */
    CHECK(got[i].params == echo[i]);
    CHECK_EQ(echo[i]->out, (uint64_t)i + 1);
    CHECK_EQ(echo[i]->runs, 1);
  }
  return 0;
}

TEST(one_childs_messages_are_served_in_their_order) {
  broker_open(1, 1);
  config.window = 256;
  launch_well(reads_in_order);
}

/* ---- forged messages ---- */

static void fn_never(void *params) {
  (void)params;
  atomic_fetch_add(&notes[30], 1);
}

static int forges_functions(int child) {
  (void)child;
  echo_t *echo = echo_new(1);
  uint64_t forged[] = {0,
                       1,
                       (uint64_t)(uintptr_t)fn_never,
                       (uint64_t)(uintptr_t)fn_add_one + 1,
                       (uint64_t)(uintptr_t)fn_add_one - 1,
                       (uint64_t)(uintptr_t)echo,
                       notes[31],      /* a binding's row: its inside, its end */
                       notes[31] + 8,
                       notes[31] - 8,
                       UINT64_MAX};
  for (size_t i = 0; i < sizeof forged / sizeof *forged; i++) {
    if (i == 6) continue; /* the row itself is a row */
    shm_func_t func = (shm_func_t)(uintptr_t)forged[i];
    CHECK_EQ(call(func, echo), SHM_EBAD_FUNCTION);
    shm_msg_t msg = {func, echo};
    CHECK_EQ(shm_send_msg(&msg), SHM_OK);
    CHECK_EQ(shm_read_msg(&msg), SHM_EBAD_FUNCTION);
  }
  CHECK_EQ(echo->runs, 0);
  expect_service();
  return 0;
}

TEST(a_forged_function_is_refused_and_never_called) {
  broker_open(1, 1);
  shm_function_config_t row = {.name = "row"};
  uint64_t address;
  CHECK_EQ(shm_register_function(&row, &address), SHM_OK);
  notes[31] = address;
  launch_well(forges_functions);
  CHECK_EQ(notes[30], 0);
}

static int forges_params(int child) {
  enum { PATTERN = 0x5a };
  if (child == 1) { /* its arena must stay as it is */
    unsigned char *block = shm_malloc(4096);
    CHECK(block != NULL);
    memset(block, PATTERN, 4096);
    notes[40] = (uint64_t)(uintptr_t)block;
    AWAIT(notes[41] != 0);
    for (int i = 0; i < 4096; i++) CHECK_EQ(block[i], PATTERN);
    return 0;
  }
  AWAIT(notes[40] != 0);
  uint64_t base = shm_arena_base(0), bytes = shm_arena_bytes(), size = sizeof(echo_t);
  uint64_t forged[] = {0,
                       8,
                       base + 1,
                       base + 4,
                       base - 8,
                       base - size,
                       base + bytes,
                       base + bytes - size + 8,
                       base + bytes - 8,
                       base + bytes + 65536,
                       notes[40],                /* inside the other child's arena */
                       shm_arena_base(1),
                       shm_reservation_base(),
                       (uint64_t)(uintptr_t)&config,
                       UINT64_MAX - 7,
                       UINT64_MAX};
  for (size_t i = 0; i < sizeof forged / sizeof *forged; i++) {
    int status = call(fn_add_one, (void *)(uintptr_t)forged[i]);
    if (status != SHM_EBAD_PARAMS)
      harness_fail(__FILE__, __LINE__, "row %zu: %s", i, shm_status_name(status));
  }
  echo_t *last = (echo_t *)(uintptr_t)(base + bytes - size); /* the last place that fits */
  *last = (echo_t){.in = 6};
  CHECK_EQ(call(fn_add_one, last), SHM_OK);
  CHECK_EQ(last->out, 7);
  expect_service();
  notes[41] = 1;
  return 0;
}

TEST(forged_parameters_are_refused_and_touch_nothing) {
  broker_open(2, 1);
  launch_well(forges_params);
}

static void fn_looks(void *params) {
  uint64_t *words = params; /* address, bytes, answer */
  words[2] = (uint64_t)shm_in_arena((void *)(uintptr_t)words[0], words[1]);
}
static int asks_in_arena(int child) {
  uint64_t *words = shm_malloc(64), base = shm_arena_base(child), bytes = shm_arena_bytes();
  uint64_t rows[][3] = {{base, bytes, 1},     {base, bytes + 1, 0}, {base + 8, UINT64_MAX, 0},
                        {base - 1, 1, 0},     {base + bytes, 0, 1}, {base + bytes, 1, 0},
                        {0, 0, 0},            {shm_arena_base(1 - child), 1, 0},
                        {(uint64_t)(uintptr_t)words, 64, 1}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    words[0] = rows[i][0];
    words[1] = rows[i][1];
    words[2] = 9;
    CHECK_EQ(call(fn_looks, words), SHM_OK);
    CHECK_EQ(words[2], rows[i][2]);
  }
  CHECK_EQ(shm_in_arena(words, 1), 0); /* a helper's question: a child has its own means */
  return 0;
}

TEST(a_helper_can_tell_whether_a_pointer_is_the_callers) {
  broker_open(2, 1);
  CHECK_EQ(shm_register(fn_looks, "looks", 24), SHM_OK);
  launch_well(asks_in_arena);
}

/* ---- a child that floods its pipe by hand ---- */

static void flood(int fd, uint64_t params, int count) {
  shmi_frame_t frames[64];
  for (int sent = 0; sent < count; sent += 64) {
    for (int i = 0; i < 64; i++) {
      frames[i] = (shmi_frame_t){.msg = {fn_add_one, (void *)(uintptr_t)params},
                                 .sequence = (uint64_t)(sent + i),
                                 .kind = SHMI_FRAME_CALL,
                                 .rows = 1};
    }
    if (write(fd, frames, sizeof frames) < 0) break;
  }
}

static void note_events(const shm_event_t *event) {
  if (event->kind == SHM_EVENT_CHILD_PROTOCOL) notes[50 + event->index]++;
  if (event->kind == SHM_EVENT_CHILD_ENDED && notes[60] == 0) { /* the first to end */
    notes[60] = (uint64_t)event->index + 1;
    notes[61] = (uint64_t)(int64_t)event->exit_status;
    shm_broker_stats_t stats;
    shm_get_broker_stats(&stats);
    notes[62] = stats.protocol_errors;
  }
}

static int floods(int child) {
  expect_service();
  if (child == 0) {
    AWAIT(notes[55] == 3);
    echo_t *echo = echo_new(1);
    flood(request_pipe(), (uint64_t)(uintptr_t)echo, 100000);
    AWAIT(0); /* it is ended */
  }
  notes[55]++;
  for (;;) { /* the others are served until the launch as a whole is ended */
    expect_service();
    notes[56]++;
  }
}

TEST(a_flood_beyond_the_window_ends_that_child_alone) {
  broker_open(4, 2);
  config.window = 4;
  host.on_event = note_events;
  CHECK_EQ(launch(floods), SHM_ECHILD_FAILED);
  expect_nothing_left();
  CHECK(notes[50] >= 1);
  for (int child = 1; child < 4; child++) CHECK_EQ(notes[50 + child], 0);
  CHECK_EQ(notes[60], 1);
  CHECK_EQ((int64_t)notes[61], -SIGKILL);
  CHECK(notes[62] >= 16);
}

/* Within the window as the dispatcher counts answers, but never reading one. */
static int never_reads(int child) {
  if (child == 0) {
    echo_t *echo = echo_new(1);
    int fd = request_pipe();
    AWAIT(notes[55] == 1);
    for (uint64_t i = 0; notes[57] == 0; i++) {
      shmi_frame_t frame = {.msg = {fn_add_one, echo}, .sequence = i, .kind = SHMI_FRAME_CALL};
      CHECK_EQ(write(fd, &frame, sizeof frame), (int)sizeof frame);
      uint64_t runs = i;
      int64_t until = harness_now_ns() + 200000000; /* paced: each is answered before the next */
      while (((volatile echo_t *)echo)->runs <= runs && harness_now_ns() < until) harness_pause();
    }
    return 0;
  }
  notes[55] = 1;
  for (int i = 0; i < 3000; i++) expect_service();
  notes[57] = 1;
  return 0;
}

TEST(a_child_that_never_reads_its_replies_costs_nobody_else) {
  broker_open(2, 1);
  config.window = 2;
  int status = launch(never_reads);
  CHECK(status == SHM_OK || status == SHM_ECHILD_FAILED);
  expect_nothing_left();
  CHECK_EQ(notes[57], 1);
}

static int tears(int child) {
  if (child == 1) {
    expect_service();
    notes[55] = 1;
    for (;;) expect_service();
  }
  AWAIT(notes[55] == 1);
  char half[30] = {0};
  CHECK_EQ(write(request_pipe(), half, sizeof half), (int)sizeof half);
  AWAIT(0);
  return 0;
}

TEST(a_torn_frame_ends_the_child_that_wrote_it) {
  broker_open(2, 1);
  host.on_event = note_events;
  CHECK_EQ(launch(tears), SHM_ECHILD_FAILED);
  expect_nothing_left();
  CHECK_EQ(notes[60], 1);
  CHECK_EQ(notes[51], 0);
}

static int talks_nonsense(int child) {
  if (child == 1) {
    AWAIT(notes[57] != 0);
    for (int i = 0; i < 100; i++) expect_service();
    return 0;
  }
  int fd = request_pipe();
  echo_t *echo = echo_new(1);
  uint64_t random = 88172645463325252u;
  /* Fewer wrong ones than patience lasts; every kind, every field at random. */
  for (int i = 0; i < 12; i++) {
    shmi_frame_t frame;
    uint64_t *words = (uint64_t *)(void *)&frame;
    for (int w = 0; w < 8; w++) {
      random ^= random << 13;
      random ^= random >> 7;
      random ^= random << 17;
      words[w] = random;
    }
    frame.kind = (uint8_t)(i % 2 == 0 ? SHMI_FRAME_CANCEL : SHMI_FRAME_GROW);
    if (i % 4 == 3) frame.kind = 200;
    CHECK_EQ(write(fd, &frame, sizeof frame), (int)sizeof frame);
  }
  expect_service();
  CHECK_EQ(shm_free(echo), SHM_OK);
  notes[57] = 1;
  return 0;
}

TEST(a_few_nonsense_frames_are_survived_by_everybody) {
  broker_open(2, 1);
  launch_well(talks_nonsense);
}

/* ---- children that fail ---- */

static int fails_or_waits(int child) {
  notes[child] = (uint64_t)getpid();
  if (child == 2) {
    AWAIT(notes[0] != 0 && notes[1] != 0);
    return 7;
  }
  AWAIT(0); /* it is told to end long before */
  return 0;
}

TEST(a_child_that_returns_non_zero_fails_the_launch_and_ends_the_others) {
  broker_open(3, 1);
  CHECK_EQ(launch(fails_or_waits), SHM_ECHILD_FAILED);
  CHECK(strstr(shm_error_detail(), "child 2") != NULL);
  CHECK(strstr(shm_error_detail(), "7") != NULL);
  expect_nothing_left();
}

static int dies(int child) {
  if (child == 0) raise(SIGKILL);
  AWAIT(0);
  return 0;
}

TEST(a_killed_child_fails_the_launch) {
  broker_open(2, 1);
  CHECK_EQ(launch(dies), SHM_ECHILD_FAILED);
  CHECK(strstr(shm_error_detail(), "child 0") != NULL);
  expect_nothing_left();
}

static int ignores_term(int child) {
  if (child == 0) {
    signal(SIGTERM, SIG_IGN);
    notes[0] = 1;
    AWAIT(0);
  }
  AWAIT(notes[0] != 0);
  return 1;
}

TEST(a_child_that_ignores_the_request_to_end_is_killed_after_the_grace) {
  broker_open(2, 1);
  config.grace_ns = 50000000;
  CHECK_EQ(launch(ignores_term), SHM_ECHILD_FAILED);
  expect_nothing_left();
}

/* ---- settings out of range ---- */

static int never_runs(int child) {
  (void)child;
  notes[70]++;
  return 0;
}

TEST(settings_out_of_range_are_refused_with_a_sentence_and_nothing_is_left) {
  broker_open(2, 2);
  const shm_config_t good = config;
  static const struct {
    const char *what;
    int children, helpers, pools;
    uint32_t window;
    size_t bytes;
    int status;
  } rows[] = {
      {"no children", 0, 1, 1, 0, 4096, SHM_EBAD_CONFIG},
      {"fewer than none", -1, 1, 1, 0, 4096, SHM_EBAD_CONFIG},
      {"too many children", SHM_MAX_CHILDREN + 1, 1, 1, 0, 4096, SHM_EBAD_CONFIG},
      {"no helpers", 1, 0, 1, 0, 4096, SHM_EBAD_CONFIG},
      {"fewer helpers than none", 1, -5, 1, 0, 4096, SHM_EBAD_CONFIG},
      {"too many helpers", 1, SHM_MAX_HELPERS + 1, 1, 0, 4096, SHM_EBAD_CONFIG},
      {"no pool", 1, 1, 0, 0, 4096, SHM_EBAD_CONFIG},
      {"too many pools", 1, 1, SHM_MAX_POOLS + 1, 0, 4096, SHM_EBAD_CONFIG},
      {"too large a window", 1, 1, 1, SHM_MAX_WINDOW + 1, 4096, SHM_EBAD_CONFIG},
      {"an arena of nothing", 1, 1, 1, 0, 0, SHM_EBAD_SIZE},
      {"an arena of everything", 1, 1, 1, 0, SIZE_MAX, SHM_EBAD_SIZE},
      {"more than the machine has", 2, 1, 1, 0, (size_t)1 << 45, SHM_ENO_MEMORY},
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    config = good;
    config.child_count = rows[i].children;
    config.helper_count = rows[i].helpers;
    config.pool_count = rows[i].pools;
    config.window = rows[i].window;
    config.arena_bytes = rows[i].bytes;
    int status = launch(never_runs);
    if (status != rows[i].status)
      harness_fail(__FILE__, __LINE__, "%s: %s", rows[i].what, shm_status_name(status));
    if (strlen(shm_error_detail()) < 10)
      harness_fail(__FILE__, __LINE__, "%s: no sentence", rows[i].what);
    expect_nothing_left();
  }
  config = good;
  config.helper_pool[1] = 1;
  CHECK_EQ(launch(never_runs), SHM_EBAD_CONFIG);
  CHECK(strstr(shm_error_detail(), "pool") != NULL);
  config = good;
  CHECK_EQ(notes[70], 0);
  launch_well(counts_nothing);
}

TEST(the_talks_launch_refuses_the_same_with_a_sentence) {
  broker_open(1, 1);
  uint64_t number = 100;
  shm_main_bundle_t good = {own_bundle, &number}, none = {NULL, NULL};
  struct {
    int children, helpers;
    const shm_main_bundle_t *bundles;
    size_t bytes;
    int status;
  } rows[] = {{0, 1, &good, 4096, SHM_EBAD_CONFIG},     {-3, 1, &good, 4096, SHM_EBAD_CONFIG},
              {1, 0, &good, 4096, SHM_EBAD_CONFIG},     {1, 1, NULL, 4096, SHM_EBAD_CONFIG},
              {1, 1, &none, 4096, SHM_EBAD_CONFIG},     {1, 1, &good, 0, SHM_EBAD_SIZE},
              {1, 1, &good, SIZE_MAX, SHM_EBAD_SIZE},   {1 << 30, 1, &good, 4096, SHM_EBAD_CONFIG},
              {1, 1, &good, (size_t)1 << 46, SHM_ENO_MEMORY}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    shm_register(fn_add_one, "add_one", sizeof(echo_t));
    shmi_error_detail_set("%s", "");
    int status = shm_launch(rows[i].children, rows[i].bundles, rows[i].bytes, rows[i].helpers);
    if (status != rows[i].status)
      harness_fail(__FILE__, __LINE__, "row %zu: %s", i, shm_status_name(status));
    if (strlen(shm_error_detail()) < 10) harness_fail(__FILE__, __LINE__, "row %zu: no sentence", i);
    expect_nothing_left();
  }
  CHECK_EQ(shm_launch(1, &good, 4096, 1), SHM_OK);
  CHECK_EQ(notes[0], 100);
}

/* ---- what is refused inside a broker ---- */

static void fn_nests(void *params) {
  echo_t *echo = params;
  shm_main_bundle_t bundle = {own_bundle, NULL};
  echo->out = (uint64_t)(int64_t)shm_launch(1, &bundle, 4096, 1);
  echo->in = (uint64_t)(int64_t)shm_register(fn_never, "late", 0);
  CHECK_EQ(shm_get_child_id(), SHM_ENOT_CHILD);
  CHECK(shm_malloc(8) == NULL);
  CHECK_EQ(shm_last_status(), SHM_ENOT_CHILD);
  shm_msg_t msg = {fn_never, NULL};
  CHECK_EQ(shm_send_msg(&msg), SHM_ENOT_CHILD);
  CHECK_EQ(shm_read_msg(&msg), SHM_ENOT_CHILD);
  CHECK_EQ(shm_get_role(), SHM_ROLE_HELPER);
}
static int nests(int child) {
  (void)child;
  shm_main_bundle_t bundle = {own_bundle, NULL};
  CHECK_EQ(shm_launch(1, &bundle, 4096, 1), SHM_ENESTED);
  CHECK_EQ(shm_register(fn_never, "late", 0), SHM_ESEALED);
  CHECK_EQ(call(fn_never, NULL), SHM_EBAD_FUNCTION);
  CHECK_EQ(shm_leave(), SHM_ENOT_RUNNING);
  shm_work_t work;
  CHECK_EQ(shm_helper_take(&work, 1, 0), SHM_ENOT_HELPER);
  CHECK_EQ(shm_helper_ready(SHM_OK), SHM_ENOT_HELPER);
  CHECK_EQ(shm_helper_finish(1, SHM_OK, 0), SHM_ENOT_HELPER);
  echo_t *echo = echo_new(0);
  CHECK_EQ(call(fn_nests, echo), SHM_OK);
  CHECK_EQ((int64_t)echo->out, SHM_ENESTED);
  CHECK_EQ((int64_t)echo->in, SHM_ESEALED);
  expect_service();
  return 0;
}

TEST(a_broker_inside_a_broker_and_late_functions_are_refused) {
  broker_open(1, 1);
  CHECK_EQ(shm_register(fn_nests, "nests", sizeof(echo_t)), SHM_OK);
  launch_well(nests);
  CHECK_EQ(shm_register(fn_never, "late", 0), SHM_OK); /* no broker runs any more */
}

TEST(outside_a_broker_every_call_says_so) {
  shm_msg_t msg = {fn_never, NULL};
  shm_reply_t reply;
  shm_call_config_t plain = {.rows = 1};
  uint64_t sequence;
  CHECK(shm_malloc(64) == NULL);
  CHECK_EQ(shm_last_status(), SHM_ENOT_CHILD);
  CHECK(shm_realloc(NULL, 64) == NULL);
  CHECK(shm_memalign(64, 64) == NULL);
  CHECK_EQ(shm_free(NULL), SHM_OK);
  CHECK_EQ(shm_free(&msg), SHM_ENOT_CHILD);
  CHECK_EQ(shm_usable_size(&msg), 0);
  CHECK_EQ(shm_send_msg(&msg), SHM_ENOT_CHILD);
  CHECK_EQ(shm_read_msg(&msg), SHM_ENOT_CHILD);
  CHECK_EQ(shm_call(&msg, 0), SHM_ENOT_CHILD);
  CHECK_EQ(shm_get_helper_id(), SHM_ENOT_HELPER);
  CHECK_EQ(shm_get_child_id(), SHM_ENOT_CHILD);
  CHECK_EQ(shm_set_window(1), SHM_ENOT_CHILD);
  CHECK_EQ(shm_in_arena(&msg, 1), 0);
  CHECK_EQ(shm_check(), SHM_ENOT_CHILD);
  CHECK_EQ(shm_leave(), SHM_ENOT_RUNNING);
  CHECK_EQ(shm_port_call(&plain, 0, 0, &reply), SHM_ENOT_CHILD);
  CHECK_EQ(shm_port_submit(&plain, 0, 0, 0, &sequence), SHM_ENOT_CHILD);
  CHECK_EQ(shm_port_drain(&reply, 1, 0), SHM_ENOT_CHILD);
  CHECK_EQ(shm_port_wait(1, 0, &reply), SHM_ENOT_CHILD);
  CHECK_EQ(shm_port_cancel(1), SHM_ENOT_CHILD);
  CHECK_EQ(shm_port_fd(), SHM_ENOT_CHILD);
  CHECK_EQ(shm_get_role(), SHM_ROLE_NONE);
}

/* ---- the arena through the public calls ---- */

static int misuses_memory(int child) {
  unsigned char *a = shm_malloc(100), *b = shm_malloc(100);
  int local = 0;
  CHECK(a != NULL && b != NULL);
  CHECK_EQ((uint64_t)(uintptr_t)a % 64, 0);
  CHECK(shm_usable_size(a) >= 100);
  memset(b, 0x77, 100);
  CHECK_EQ(shm_free(a + 64), SHM_EBAD_FREE);
  CHECK_EQ(shm_free(a + 1), SHM_EBAD_FREE);
  CHECK_EQ(shm_free(&local), SHM_EBAD_FREE);
  CHECK_EQ(shm_free((void *)(uintptr_t)shm_arena_base(1 - child)), SHM_EBAD_FREE);
  CHECK_EQ(shm_free((void *)8), SHM_EBAD_FREE);
  CHECK_EQ(shm_free(a), SHM_OK);
  CHECK_EQ(shm_free(a), SHM_EBAD_FREE);
  for (int i = 0; i < 100; i++) CHECK_EQ(b[i], 0x77);
  CHECK(shm_malloc(0) == NULL);
  CHECK_EQ(shm_last_status(), SHM_EBAD_SIZE);
  CHECK(shm_malloc(SIZE_MAX) == NULL);
  CHECK(shm_last_status() < 0);
  CHECK(shm_malloc(2 * MIB) == NULL);
  CHECK_EQ(shm_last_status(), SHM_EBAD_SIZE);
  CHECK(shm_memalign(3, 64) == NULL);
  CHECK_EQ(shm_last_status(), SHM_EBAD_ALIGN);
  b = shm_realloc(b, 5000);
  for (int i = 0; i < 100; i++) CHECK_EQ(b[i], 0x77);
  CHECK_EQ(shm_free(b), SHM_OK);
  shm_arena_stats_t stats;
  CHECK_EQ(shm_get_arena_stats(&stats), SHM_OK);
  CHECK_EQ(stats.live_blocks, 0);
  CHECK_EQ(stats.used_bytes, 0);
  CHECK_EQ(shm_check(), SHM_OK);
  void *all = shm_malloc(MIB);
  CHECK(all != NULL);
  CHECK(shm_malloc(1) == NULL);
  CHECK_EQ(shm_last_status(), SHM_EARENA_FULL);
  CHECK_EQ(shm_free(all), SHM_OK);
  expect_service();
  return 0;
}

TEST(misused_memory_is_told_and_nothing_is_lost) {
  broker_open(2, 1);
  launch_well(misuses_memory);
}

/* ---- who sees what ---- */

static void fn_maps(void *params) {
  uint64_t *words = params;
  words[1] = strcmp(permissions_at(shm_arena_base(0)), "rw-s") == 0;
  words[2] = strcmp(permissions_at(shm_arena_base(1)), "rw-s") == 0;
  words[3] = (uint64_t)(uintptr_t)params;
  words[4] = (uint64_t)harness_open_fds();
  words[5] = strcmp(permissions_at(shm_scratch_base(0)), "rw-s") == 0;
}
static int looks_around(int child) {
  CHECK_STR_EQ(permissions_at(shm_arena_base(child)), "rw-s");
  CHECK_STR_EQ(permissions_at(shm_arena_base(1 - child)), "---p");
  CHECK_STR_EQ(permissions_at(shm_arena_base(0) - 4096), "---p");
  CHECK_STR_EQ(permissions_at(shm_scratch_base(0)), "---p");
  CHECK_EQ(harness_mappings("shmgpu-arena"), 1);
  CHECK_EQ(harness_open_fds(), guard.fds + 2);
  uint64_t *words = shm_malloc(64);
  CHECK_EQ(call(fn_maps, words), SHM_OK);
  CHECK_EQ(words[1], 1);
  CHECK_EQ(words[2], 1);
  CHECK_EQ(words[3], (uint64_t)(uintptr_t)words);
  CHECK_EQ(words[4], (uint64_t)guard.fds + 3);
  CHECK_EQ(words[5], 1);
  fflush(NULL);
  pid_t stranger = fork();
  if (stranger == 0) {
    signal(SIGSEGV, SIG_DFL);
    *(volatile char *)(uintptr_t)shm_arena_base(1 - child) = 1;
    _exit(0);
  }
  int status;
  CHECK_EQ(waitpid(stranger, &status, 0), stranger);
  CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
  char byte = 0; /* the user's own descriptors are where they were */
  CHECK_EQ(pread((int)notes[80], &byte, 1, 0), 1);
  CHECK_EQ(byte, 'u');
  return 0;
}

TEST(each_role_holds_exactly_its_own_descriptors_and_mappings) {
  broker_open(2, 2);
  CHECK_EQ(shm_register(fn_maps, "maps", 64), SHM_OK);
  FILE *users = tmpfile();
  CHECK(users != NULL);
  fputc('u', users);
  fflush(users);
  notes[80] = (uint64_t)fileno(users);
  guard.fds = harness_open_fds();
  config.scratch_bytes = 65536;
  launch_well(looks_around);
  fclose(users);
}

/* ---- what cannot be had ---- */

static int forks_left;
static int limited_fork(void) {
  if (forks_left-- == 0) {
    errno = EAGAIN;
    return -1;
  }
  return host_fork();
}
static int waits_for_ever(int child) {
  (void)child;
  AWAIT(0);
  return 0;
}

TEST(a_fork_that_fails_ends_the_launch_with_its_reason_and_nothing_is_left) {
  for (int works = 0; works < 5; works++) {
    broker_open(3, 2);
    host.fork = limited_fork;
    forks_left = works;
    CHECK_EQ(launch(waits_for_ever), SHM_ESYSTEM);
    CHECK(strstr(shm_error_detail(), strerror(EAGAIN)) != NULL);
    expect_nothing_left();
  }
}

TEST(too_few_descriptors_end_the_launch_with_its_reason) {
  broker_open(32, 2);
  struct rlimit limit = {40, 40};
  CHECK_SYS(setrlimit(RLIMIT_NOFILE, &limit));
  CHECK_EQ(launch(never_runs), SHM_ESYSTEM);
  CHECK(strstr(shm_error_detail(), "open files") != NULL);
  expect_nothing_left();
  CHECK_EQ(notes[70], 0);
}

static int session_fails(int helper, uint32_t generation) {
  (void)generation;
  if (helper == 1) {
    shm_helper_ready(SHM_ESESSION);
    return 1;
  }
  shm_work_t work;
  CHECK_EQ(shm_helper_ready(SHM_OK), SHM_OK);
  CHECK_EQ(shm_helper_take(&work, 1, -1), SHM_ESTOPPED);
  return 0;
}
static void note_failures(const shm_event_t *event) {
  if (event->kind != SHM_EVENT_HELPER_FAILED) return;
  CHECK_EQ(event->index, 1);
  CHECK_EQ(event->is_final, 1);
  CHECK_EQ(event->deaths, 0);
  notes[71]++;
}
static int session_dies(int helper, uint32_t generation) {
  if (helper == 1) return 9;
  return session_fails(0, generation);
}

TEST(a_session_that_cannot_be_made_fails_the_launch) {
  broker_open(2, 2);
  host.run_helper = session_fails;
  host.on_event = note_failures;
  CHECK_EQ(launch(never_runs), SHM_ESESSION);
  CHECK(strstr(shm_error_detail(), "helper 1") != NULL);
  CHECK_EQ(notes[71], 1);
  expect_nothing_left();
  host.on_event = NULL;
  host.run_helper = session_dies;
  CHECK_EQ(launch(never_runs), SHM_ESESSION);
  CHECK(strstr(shm_error_detail(), "helper 1") != NULL);
  expect_nothing_left();
  CHECK_EQ(notes[70], 0);
  host.run_helper = NULL;
  launch_well(counts_nothing);
}

/* ---- the user's own world ---- */

TEST(ignored_sigchld_changes_nothing) {
  signal(SIGCHLD, SIG_IGN);
  broker_open(3, 2);
  launch_well(calls_many);
}

TEST(the_users_own_subprocesses_keep_their_status) {
  broker_open(2, 1);
  fflush(NULL);
  pid_t users = fork();
  if (users == 0) _exit(33);
  child_body = counts_nothing;
  CHECK_EQ(shm_run(&config, &host), SHM_OK);
  int status;
  CHECK_EQ(waitpid(users, &status, 0), users);
  CHECK_EQ(WEXITSTATUS(status), 33);
  expect_nothing_left();
}

static int one_line(void *arg) {
  fprintf(arg, "child\n");
  return 0;
}

TEST(what_stdio_holds_is_written_once) {
  broker_open(1, 1);
  FILE *file = tmpfile();
  CHECK(file != NULL);
  guard.fds = harness_open_fds();
  fprintf(file, "before\n");
  shm_main_bundle_t bundle = {one_line, file};
  CHECK_EQ(shm_launch(1, &bundle, 4096, 2), SHM_OK);
  fprintf(file, "after\n");
  fflush(file);
  char text[128] = "";
  CHECK_EQ(pread(fileno(file), text, sizeof text - 1, 0), 7 + 6 + 6);
  CHECK_STR_EQ(text, "before\nchild\nafter\n");
  expect_nothing_left();
  fclose(file);
}

/* ---- pools and placement ---- */

static int call_at(uint8_t pool, uint64_t mask, echo_t *echo) {
  shm_call_config_t at = {.function = (uint64_t)(uintptr_t)fn_add_one,
                          .rows = 1,
                          .pool = pool,
                          .placement = mask};
  shm_reply_t reply;
  int status = shm_port_call(&at, (uint64_t)(uintptr_t)echo, 0, &reply);
  CHECK(reply.sequence != 0);
  if (status == SHM_OK) CHECK_EQ(reply.helper, echo->helper);
  return status;
}
static int uses_pools(int child) {
  (void)child;
  echo_t *echo = echo_new(0);
  for (int i = 0; i < 20; i++) {
    CHECK_EQ(call_at(0, 0, echo), SHM_OK);
    CHECK(echo->helper == 0 || echo->helper == 2);
    CHECK_EQ(call_at(1, 0, echo), SHM_OK);
    CHECK_EQ(echo->helper, 1);
    for (int helper = 0; helper < 3; helper++) {
      CHECK_EQ(call_at(0, UINT64_C(1) << helper, echo), SHM_OK);
      CHECK_EQ(echo->helper, helper);
    }
    CHECK_EQ(call_at(0, 6, echo), SHM_OK);
    CHECK(echo->helper == 1 || echo->helper == 2);
    CHECK_EQ(call_at(2, 0, echo), SHM_EBAD_POOL);
    CHECK_EQ(call_at(255, 0, echo), SHM_EBAD_POOL);
    CHECK_EQ(call_at(0, 8, echo), SHM_EPLACEMENT);
  }
  return 0;
}

TEST(messages_go_to_their_pool_and_to_the_helpers_of_their_mask) {
  broker_open(2, 3);
  config.pool_count = 2;
  config.helper_pool[1] = 1;
  launch_well(uses_pools);
}

static void fn_scratch(void *params) {
  uint64_t *words = params; /* helper to write for, value to leave, value found */
  uint64_t *scratch = (uint64_t *)(uintptr_t)shm_scratch_base((int)words[0]);
  words[2] = *scratch;
  *scratch = words[1];
}
static int uses_scratch(int child) {
  (void)child;
  uint64_t *words = shm_malloc(64);
  shm_reply_t reply;
  shm_call_config_t at = {.function = (uint64_t)(uintptr_t)fn_scratch, .rows = 1};
  for (uint64_t i = 1; i <= 10; i++) { /* written by one helper, read by the other */
    words[0] = 1;
    words[1] = i;
    at.placement = i % 2 + 1;
    CHECK_EQ(shm_port_call(&at, (uint64_t)(uintptr_t)words, 0, &reply), SHM_OK);
    CHECK_EQ(words[2], i - 1);
  }
  return 0;
}

TEST(helpers_share_their_scratch) {
  broker_open(1, 2);
  config.scratch_bytes = 4096;
  CHECK_EQ(shm_register(fn_scratch, "scratch", 24), SHM_OK);
  launch_well(uses_scratch);
}

/* ---- what is counted ---- */

static void read_at_the_end(const shm_event_t *event) {
  if (event->kind != SHM_EVENT_OVER) {
    notes[90 + event->kind]++;
    return;
  }
  shm_broker_stats_t broker;
  CHECK_EQ(shm_get_broker_stats(&broker), SHM_OK);
  CHECK_EQ(broker.submitted, 200);
  CHECK_EQ(broker.answered, 200);
  CHECK_EQ(broker.failed, 0);
  CHECK_EQ(broker.dropped, 0);
  CHECK_EQ(broker.protocol_errors, 0);
  CHECK_EQ(broker.helper_deaths, 0);
  CHECK_EQ(broker.trace_written, 200);
  uint64_t finished = 0, bytes = 0;
  for (int i = 0; i < 4; i++) {
    shm_child_stats_t child;
    CHECK_EQ(shm_get_child_stats(i, &child), SHM_OK);
    CHECK_EQ(child.submitted, 50);
    CHECK_EQ(child.answered, 50);
    CHECK_EQ(child.frames_sent, 50);
    CHECK_EQ(child.frames_received, 50);
    CHECK_EQ(child.state, 2);
    bytes += child.bytes[SHM_BYTES_MARSHALLED];
  }
  for (int i = 0; i < 2; i++) {
    shm_helper_stats_t helper;
    CHECK_EQ(shm_get_helper_stats(i, &helper), SHM_OK);
    finished += helper.finished;
    bytes += helper.bytes[SHM_BYTES_MARSHALLED];
    CHECK_EQ(helper.deaths, 0);
  }
  CHECK_EQ(finished, 200);
  CHECK_EQ(bytes, 0);
  shm_trace_record_t records[256];
  uint64_t next = 0;
  CHECK_EQ(shm_read_trace(&next, records, 256), 200);
  for (int i = 0; i < 200; i++) {
    CHECK(records[i].queued_ns <= records[i].handed_ns);
    CHECK(records[i].handed_ns <= records[i].answered_ns);
    CHECK_EQ(records[i].status, SHM_OK);
    CHECK_EQ(records[i].function, (uint64_t)(uintptr_t)fn_add_one);
    CHECK(records[i].started_units <= records[i].finished_units);
    CHECK(records[i].helper < 2 && records[i].slot < 4);
  }
  notes[90]++;
}

TEST(statistics_and_trace_count_every_message) {
  broker_open(4, 2);
  host.on_event = read_at_the_end;
  launch_well(calls_many);
  CHECK_EQ(notes[90], 1);
  CHECK_EQ(notes[90 + SHM_EVENT_HELPER_STARTED], 2);
  CHECK_EQ(notes[90 + SHM_EVENT_HELPER_READY], 2);
  CHECK_EQ(notes[90 + SHM_EVENT_READY], 1);
  CHECK_EQ(notes[90 + SHM_EVENT_CHILD_STARTED], 4);
  CHECK_EQ(notes[90 + SHM_EVENT_CHILD_ENDED], 4);
  CHECK_EQ(notes[90 + SHM_EVENT_HELPER_DIED], 0);
  shm_broker_stats_t broker;
  CHECK_EQ(shm_get_broker_stats(&broker), SHM_ENOT_RUNNING);
}

/* A call that is known to be long must not keep back the answer of a short one before it. */
static void fn_slow(void *params) { /* until the child saw the other answer; note: milliseconds */
  echo_t *echo = params;
  int64_t until = harness_now_ns() + (int64_t)echo->note * 1000000;
  while (harness_now_ns() < until && notes[100] == 0) harness_pause();
  echo->out = notes[100];
}
static int waits_for_the_short_one(int child) {
  (void)child;
  CHECK_EQ(shm_set_window(2), SHM_OK);
  for (int i = 0; i < 50; i++) expect_service();
  echo_t *quick = echo_new(1), *slow = echo_new(0);
  slow->note = 5;
  CHECK_EQ(call(fn_slow, slow), SHM_OK);
  CHECK_EQ(slow->out, 0);
  slow->note = 4000;
  shm_msg_t msgs[2] = {{fn_add_one, quick}, {fn_slow, slow}}, got;
  CHECK_EQ(shm_send_msgs(msgs, 2), 2);
  CHECK_EQ(shm_read_msg(&got), SHM_OK);
  CHECK(got.params == quick);
  notes[100] = 1;
  CHECK_EQ(shm_read_msg(&got), SHM_OK);
  CHECK_EQ(slow->out, 1);
  return 0;
}

TEST(a_short_calls_answer_does_not_wait_for_the_long_one_behind_it) {
  broker_open(1, 1);
  CHECK_EQ(shm_register(fn_slow, "slow", sizeof(echo_t)), SHM_OK);
  launch_well(waits_for_the_short_one);
}

/* Nor one that nobody could know to be long: it always was short. */
static int waits_for_the_one_before(int child) {
  (void)child;
  CHECK_EQ(shm_set_window(2), SHM_OK);
  echo_t *quick = echo_new(1), *slow = echo_new(0);
  for (int i = 0; i < 50; i++) CHECK_EQ(call(fn_slow, quick), SHM_OK);
  slow->note = 4000;
  shm_msg_t msgs[2] = {{fn_slow, quick}, {fn_slow, slow}}, got;
  CHECK_EQ(shm_send_msgs(msgs, 2), 2);
  CHECK_EQ(shm_read_msg(&got), SHM_OK);
  CHECK(got.params == quick);
  notes[100] = 1;
  CHECK_EQ(shm_read_msg(&got), SHM_OK);
  CHECK_EQ(slow->out, 1);
  return 0;
}

TEST(an_answer_does_not_wait_for_a_call_that_was_taken_for_short) {
  broker_open(1, 1);
  CHECK_EQ(shm_register(fn_slow, "slow", sizeof(echo_t)), SHM_OK);
  launch_well(waits_for_the_one_before);
}

/* ---- fairness, by counted order ---- */

static void fn_order(void *params) {
  echo_t *echo = params;
  uint64_t at = atomic_fetch_add(&notes[200], 1);
  if (at < 2000) notes[201 + at] = echo->in + 1;
}
static int floods_fairly(int child) {
  enum { COUNT = 200 };
  shm_msg_t msgs[64], got[64];
  int statuses[64], sent = 0, taken = 0;
  echo_t *echo = echo_new((uint64_t)child), *gate = echo_new(0);
  if (child == 0) { /* hold the only helper until everybody's window is queued */
    gate->note = 110;
    shm_msg_t first = {fn_gate, gate};
    CHECK_EQ(shm_send_msg(&first), SHM_OK);
    AWAIT(notes[110] == 1);
  } else {
    AWAIT(notes[110] == 1);
  }
  CHECK_EQ(shm_set_window(50), SHM_OK);
  for (int i = 0; i < 64; i++) msgs[i] = (shm_msg_t){fn_order, echo};
  sent = shm_send_msgs(msgs, 40);
  CHECK_EQ(sent, 40);
  atomic_fetch_add(&notes[112], 1);
  if (child == 0) {
    AWAIT(notes[112] == 4);
    shm_broker_stats_t stats;
    AWAIT(shm_get_broker_stats(&stats) == SHM_OK && stats.submitted == 161);
    notes[111] = 1;
  }
  taken = child == 0 ? -1 : 0;
  while (taken < 40) {
    int n = shm_read_msgs(got, statuses, 64);
    CHECK(n > 0);
    taken += n;
  }
  return 0;
}

TEST(children_with_full_windows_are_served_in_turn) {
  broker_open(4, 1);
  CHECK_EQ(shm_register(fn_order, "order", sizeof(echo_t)), SHM_OK);
  launch_well(floods_fairly);
  CHECK_EQ(notes[200], 160);
  int counts[4] = {0};
  for (int i = 0; i < 160; i++) {
    int child = (int)notes[201 + i] - 1;
    CHECK(child >= 0 && child < 4);
    counts[child]++;
    for (int a = 0; a < 4; a++) {
      for (int b = 0; b < 4; b++) CHECK(counts[a] - counts[b] <= 1);
    }
  }
}

/* ---- a caller that cannot take its place ---- */

static int fork_and_lose_the_arena(void) {
  static int forks; /* the first is the caller's own, the others its parent's */
  forks++;
  int pid = host_fork();
  if (forks > 1) return pid;
  for (int fd = 3; pid > 0 && fd < 1024; fd++) {
    char path[64], name[64] = "";
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (readlink(path, name, sizeof name - 1) <= 0 || strstr(name, "shmgpu-arena") == NULL) continue;
    int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
    CHECK_SYS(dup3(nothing, fd, O_CLOEXEC));
    close(nothing);
  }
  return pid;
}

TEST(a_caller_that_cannot_map_its_arena_is_told_so_and_leaves_nothing) {
  broker_open(1, 1);
  config.caller_is_child = 1;
  host.fork = fork_and_lose_the_arena;
  int64_t began_ns = harness_now_ns();
  CHECK_EQ(shm_run(&config, &host), SHM_ESYSTEM);
  CHECK(strstr(shm_error_detail(), "mapping an arena") != NULL);
  CHECK(harness_now_ns() - began_ns < 4 * SECOND_NS); /* nobody waits for it to send a word */
  expect_nothing_left();
}

/* ---- what a child forks ---- */

/* In a process of the child's own: it parts with the broker, with blocks in use or without. */
static void in_a_fork(echo_t *alive) {
  pid_t pid = fork();
  CHECK_SYS(pid);
  if (pid == 0) {
    CHECK_EQ(shm_disown(), SHM_OK);
    CHECK_EQ(harness_mappings("shmgpu-arena"), alive != NULL);
    if (alive != NULL) {
      CHECK_EQ(alive->out, 6); /* as its owner left it */
      CHECK_EQ(shm_free(alive), SHM_OK);
      CHECK_EQ(harness_mappings("shmgpu-arena"), 0);
    }
    _exit(33);
  }
  int status;
  CHECK_EQ(waitpid(pid, &status, 0), pid);
  CHECK(WIFEXITED(status));
  CHECK_EQ(WEXITSTATUS(status), 33);
}

static int forks_twice(int child) {
  (void)child;
  in_a_fork(NULL);
  echo_t *echo = echo_new(5);
  CHECK_EQ(call(fn_add_one, echo), SHM_OK);
  in_a_fork(echo);
  CHECK_EQ(echo->out, 6);
  CHECK_EQ(shm_free(echo), SHM_OK);
  return 0;
}

TEST(what_a_child_forked_keeps_the_arena_as_long_as_a_block_of_it_lives) {
  broker_open(1, 1);
  launch_well(forks_twice);
}
